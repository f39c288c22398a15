#include "worker/local_address.h"

#include "gtest/gtest.h"

namespace ithaca {
namespace {

TEST(LocalAddressTest, TheWayToOneselfIsTheLoopback) {
  EXPECT_EQ(*LocalAddressTowards("127.0.0.1:50051"), "127.0.0.1");
}

TEST(LocalAddressTest, WhatIsNoAddressIsRefused) {
  EXPECT_EQ(LocalAddressTowards("host").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LocalAddressTowards("host:no-such-port").status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ithaca
