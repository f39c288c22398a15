#include "client/cli/progress_bar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace ithaca::client {
namespace {

TEST(ProgressBarTest, FillsAndClearsItsLine) {
  std::ostringstream out;
  {
    ProgressBar bar(out, /*enabled=*/true);
    bar.Update(0.5, "half");
    EXPECT_THAT(out.str(),
                ::testing::EndsWith("[###############...............] half"));
    bar.Update(7, "over");
    EXPECT_THAT(out.str(),
                ::testing::EndsWith("[##############################] over"));
  }
  EXPECT_THAT(out.str(), ::testing::EndsWith("\r\033[K"));
}

TEST(ProgressBarTest, WritesNothingWhereItIsDisabled) {
  std::ostringstream out;
  {
    ProgressBar bar(out, /*enabled=*/false);
    bar.Update(0.5, "half");
  }
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace ithaca::client
