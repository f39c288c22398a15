#include "server/region_access.h"

#include <gtest/gtest.h>

namespace ithaca::server {
namespace {

TEST(RegionAccessTest, OnlyAnAddressWithItsPortIsOneClients) {
  EXPECT_EQ(ConnectionOf("ipv4:127.0.0.1:4711"), "ipv4:127.0.0.1:4711");
  EXPECT_EQ(ConnectionOf("ipv6:%5B::1%5D:4711"), "ipv6:%5B::1%5D:4711");
  // All who come over a Unix socket have this peer.
  EXPECT_EQ(ConnectionOf("unix:"), "");
  EXPECT_EQ(ConnectionOf("unix:/run/ithaca.sock"), "");
  EXPECT_EQ(ConnectionOf(""), "");
}

}  // namespace
}  // namespace ithaca::server
