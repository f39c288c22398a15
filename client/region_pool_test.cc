#include "client/region_pool.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "client/fake_attention_service.h"
#include "client/fake_memory_service.h"

namespace ithaca::client {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr absl::Duration kLong = absl::Seconds(60);

class RegionPoolTest : public ::testing::Test {
 protected:
  using Region = std::shared_ptr<MemoryRegion>;

  absl::StatusOr<Region> Acquire(uint64_t bytes) {
    absl::StatusOr<Region> result;
    absl::Notification ended;
    pool_->Acquire(bytes, absl::Now() + kLong,
                   [&](absl::StatusOr<Region> region) {
                     result = std::move(region);
                     ended.Notify();
                   });
    ended.WaitForNotification();
    return result;
  }

  // Unregistering does not wait.
  bool AwaitRegions(int count) {
    const absl::Time limit = absl::Now() + kLong;
    while (service_.memory().regions() != count && absl::Now() < limit) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    return service_.memory().regions() == count;
  }

  FakeAttentionService service_;
  std::shared_ptr<MemoryLease> lease_ = std::make_shared<MemoryLease>(
      grpc::CreateChannel(service_.address(),
                          grpc::InsecureChannelCredentials()),
      "");
  std::shared_ptr<RegionPool> pool_ =
      std::make_shared<RegionPool>(lease_, 16 * kMiB);
};

TEST_F(RegionPoolTest, RegionsAreUsedAgain) {
  for (int i = 0; i < 100; ++i) {
    const uint64_t bytes = 5 * kMiB - static_cast<uint64_t>(i);
    const auto region = Acquire(bytes);
    ASSERT_TRUE(region.ok()) << region.status();
    EXPECT_GE((*region)->byte_size(), bytes);
  }
  EXPECT_EQ(service_.memory().registrations(), 1);
}

TEST_F(RegionPoolTest, NobodySharesARegionThatIsInUse) {
  const auto one = Acquire(kMiB);
  const auto other = Acquire(kMiB);
  ASSERT_TRUE(one.ok());
  ASSERT_TRUE(other.ok());
  EXPECT_NE((*one)->bytes().data(), (*other)->bytes().data());
  EXPECT_EQ(service_.memory().regions(), 2);
}

TEST_F(RegionPoolTest, ASmallCallDoesNotTakeALargeRegion) {
  { const auto large = Acquire(8 * kMiB); }
  const auto small = Acquire(kMiB);
  ASSERT_TRUE(small.ok());
  EXPECT_LT((*small)->byte_size(), 2 * kMiB);
  EXPECT_GE(pool_->idle_bytes(), 8 * kMiB);
}

TEST_F(RegionPoolTest, NoMoreThanTheLimitStaysIdle) {
  {
    std::vector<absl::StatusOr<Region>> regions;
    for (int i = 0; i < 5; ++i) regions.push_back(Acquire(6 * kMiB));
    EXPECT_EQ(service_.memory().regions(), 5);
  }
  EXPECT_EQ(pool_->idle_bytes(), 12 * kMiB);
  EXPECT_TRUE(AwaitRegions(2));
}

TEST_F(RegionPoolTest, AnUncertainRegionIsNotUsedAgain) {
  {
    const auto region = Acquire(kMiB);
    ASSERT_TRUE(region.ok());
    (*region)->MarkUncertain();
  }
  EXPECT_EQ(pool_->idle_bytes(), 0u);
  EXPECT_TRUE(AwaitRegions(0));
}

TEST_F(RegionPoolTest, RegionsOfALostLeaseAreReplaced) {
  { const auto region = Acquire(kMiB); }
  service_.memory().EndLeases();
  ASSERT_TRUE(AwaitRegions(0));
  // The client may not have seen the end yet; it is told by the server then.
  const auto region = Acquire(3 * kMiB);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ(service_.memory().regions(), 1);
  EXPECT_EQ(service_.memory().leases(), 1);
}

TEST_F(RegionPoolTest, ARefusalIsRememberedUntilForgiven) {
  service_.memory().RefuseWith(
      {grpc::StatusCode::FAILED_PRECONDITION, "another host"});
  EXPECT_EQ(Acquire(kMiB).status().message(), "another host");
  service_.memory().RefuseWith(grpc::Status::OK);
  EXPECT_EQ(Acquire(kMiB).status().message(), "another host");
  EXPECT_EQ(service_.memory().registrations(), 0);
  pool_->Forgive();
  EXPECT_TRUE(Acquire(kMiB).ok());
}

TEST_F(RegionPoolTest, WhatHasNoRoomIsRefusedByItsSizeAlone) {
  EXPECT_EQ(Acquire(uint64_t{1} << 60).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Acquire(kMiB).ok());
}

TEST_F(RegionPoolTest, AServerThatIsNotThereIsAskedAgain) {
  service_.memory().RefuseWith({grpc::StatusCode::UNAVAILABLE, "starting"});
  EXPECT_EQ(Acquire(kMiB).status().code(), absl::StatusCode::kUnavailable);
  service_.memory().RefuseWith(grpc::Status::OK);
  EXPECT_TRUE(Acquire(kMiB).ok());
}

TEST_F(RegionPoolTest, TheLeaseEndsWithItsLastRegion) {
  auto region = Acquire(kMiB);
  ASSERT_TRUE(region.ok());
  pool_.reset();
  lease_.reset();
  EXPECT_EQ(service_.memory().leases(), 1);
  *region = nullptr;
  const absl::Time limit = absl::Now() + kLong;
  while (service_.memory().leases() > 0 && absl::Now() < limit) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(service_.memory().leases(), 0);
}

}  // namespace
}  // namespace ithaca::client
