#include "core/network_namespace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

namespace ithaca {
namespace {

TEST(NetworkNamespaceTest, NamesTheBootAndTheNamespace) {
  EXPECT_THAT(NetworkNamespace(),
              ::testing::MatchesRegex("[0-9a-f-]+/net:\\[[0-9]+\\]"));
}

TEST(NetworkNamespaceTest, IsTheSameForEachThreadOfAProcess) {
  auto other = std::async(std::launch::async, NetworkNamespace);
  EXPECT_EQ(NetworkNamespace(), other.get());
}

}  // namespace
}  // namespace ithaca
