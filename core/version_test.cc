#include "core/version.h"

#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace ithaca {
namespace {

TEST(VersionTest, IsTheRootFilesFirstLine) {
  std::ifstream file("VERSION");
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_FALSE(line.empty());
  EXPECT_EQ(Version(), line);
}

}  // namespace
}  // namespace ithaca
