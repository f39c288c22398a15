#include "worker/region_table.h"

#include <atomic>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "worker/cpu_device.h"
#include "worker/cpu_regions.h"
#include "worker/shared_memory_test_object.h"

namespace ithaca {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(60);

// Counts what is open.
class FakeOpener : public RegionOpener {
 public:
  absl::StatusOr<std::unique_ptr<AttachedRegion>> Open(
      const Region& region) override {
    ++opens;
    if (region.byte_size == 0) return absl::NotFoundError("no such object");
    return std::make_unique<Counted>(&open);
  }

  std::atomic<int> opens{0}, open{0};

 private:
  class Counted : public AttachedRegion {
   public:
    explicit Counted(std::atomic<int>* open) : open_(open) { ++*open_; }
    ~Counted() override { --*open_; }
    absl::Status Check() override { return absl::OkStatus(); }
    absl::Status CopyToDevice(Device*, void*, int64_t, int64_t) override {
      return absl::OkStatus();
    }
    absl::Status CopyFromDevice(Device*, int64_t, const void*,
                                int64_t) override {
      return absl::OkStatus();
    }

   private:
    std::atomic<int>* const open_;
  };
};

Region Some(uint64_t id, uint64_t byte_size = 8) {
  return {id, byte_size, SharedMemoryObject{"/ithaca-some", 0, 1, 2}};
}

absl::Status Attach(RegionTable* table, const Region& region) {
  absl::Notification done;
  absl::Status attached;
  table->Attach(region, [&](const absl::Status& status) {
    attached = status;
    done.Notify();
  });
  EXPECT_TRUE(done.WaitForNotificationWithTimeout(kDeadline));
  return attached;
}

void Detach(RegionTable* table, uint64_t id) {
  absl::Notification done;
  table->Detach(id, [&] { done.Notify(); });
  EXPECT_TRUE(done.WaitForNotificationWithTimeout(kDeadline));
}

TEST(RegionTableTest, ARegionIsOpenedOnceAndClosedWhenDetached) {
  FakeOpener opener;
  RegionTable table(&opener);
  EXPECT_TRUE(Attach(&table, Some(1)).ok());
  EXPECT_TRUE(table.Acquire(Some(1)).ok());
  EXPECT_TRUE(table.Acquire(Some(2)).ok());  // attached as it is named
  EXPECT_TRUE(Attach(&table, Some(2)).ok());
  EXPECT_EQ(opener.opens, 2);
  Detach(&table, 1);
  EXPECT_EQ(opener.open, 1);
  Detach(&table, 1);
  Detach(&table, 99);
  EXPECT_EQ(opener.open, 1);
}

TEST(RegionTableTest, ADetachedRegionIsNotOpenedByALateCall) {
  FakeOpener opener;
  RegionTable table(&opener);
  ASSERT_TRUE(Attach(&table, Some(1)).ok());
  Detach(&table, 1);
  EXPECT_EQ(table.Acquire(Some(1)).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(opener.open, 0);
  EXPECT_TRUE(table.Acquire(Some(2)).ok());

  // Another coordinator counts from the start.
  table.DropAll();
  EXPECT_TRUE(table.Acquire(Some(1)).ok());
}

TEST(RegionTableTest, DetachWaitsForTheCallsThatUseTheRegion) {
  FakeOpener opener;
  RegionTable table(&opener);
  auto a = *table.Acquire(Some(1)), b = *table.Acquire(Some(1));
  absl::Notification detached;
  table.Detach(1, [&] {
    EXPECT_EQ(opener.open, 1);  // the second one's
    detached.Notify();
  });
  // Others go on meanwhile.
  EXPECT_TRUE(Attach(&table, Some(2)).ok());
  EXPECT_FALSE(detached.HasBeenNotified());
  a.reset();
  EXPECT_FALSE(detached.HasBeenNotified());
  b.reset();
  EXPECT_TRUE(detached.WaitForNotificationWithTimeout(kDeadline));
}

TEST(RegionTableTest, AFailureIsSaidAndForgotten) {
  FakeOpener opener;
  RegionTable table(&opener);
  EXPECT_EQ(Attach(&table, Some(1, 0)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(table.Acquire(Some(1, 0)).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(opener.opens, 2);
  EXPECT_TRUE(table.Acquire(Some(1)).ok());
  EXPECT_EQ(opener.opens, 3);
}

TEST(RegionTableTest, AnIdOfAnotherRegionIsOpenedAnew) {
  FakeOpener opener;
  RegionTable table(&opener);
  EXPECT_TRUE(table.Acquire(Some(1, 8)).ok());
  auto used = *table.Acquire(Some(1, 16));
  EXPECT_EQ(opener.opens, 2);
  EXPECT_EQ(opener.open, 1);
}

TEST(RegionTableTest, WhenAllAreDroppedThoseInUseStayUntilLetGo) {
  FakeOpener opener;
  RegionTable table(&opener);
  auto used = *table.Acquire(Some(1));
  EXPECT_TRUE(table.Acquire(Some(2)).ok());
  table.DropAll();
  Detach(&table, 99);  // after what was dropped
  EXPECT_EQ(opener.open, 1);
  used.reset();
  EXPECT_EQ(opener.open, 0);
  EXPECT_TRUE(table.Acquire(Some(2)).ok());
  EXPECT_EQ(opener.opens, 3);
}

TEST(RegionTableTest, ManyWhoComeAtOnceShareOneOpening) {
  FakeOpener opener;
  RegionTable table(&opener);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] { EXPECT_TRUE(table.Acquire(Some(1)).ok()); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(opener.opens, 1);
}

size_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST(RegionTableTest, TenThousandCyclesLeaveNoDescriptor) {
  const std::unique_ptr<RegionOpener> opener = MakeCpuRegionOpener();
  RegionTable table(opener.get());
  SharedMemoryTestObject object(std::string(64, 'x'));
  CpuDevice device;
  Region region{0, 64, object.Object()};
  Region missing{0, 64, object.Object()};
  ++std::get<SharedMemoryObject>(missing.memory).inode;
  const size_t before = OpenDescriptors();
  for (uint64_t id = 1; id <= 10'000; ++id) {
    region.id = id;
    missing.id = id + 1'000'000;
    char byte = 0;
    ASSERT_TRUE(
        (*table.Acquire(region))->CopyToDevice(&device, &byte, 63, 1).ok());
    ASSERT_EQ(byte, 'x');
    ASSERT_EQ(table.Acquire(missing).status().code(),
              absl::StatusCode::kNotFound);
    Detach(&table, id);
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

}  // namespace
}  // namespace ithaca
