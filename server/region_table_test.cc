#include "server/region_table.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/lease_token.h"

namespace ithaca::server {
namespace {

std::ptrdiff_t OpenDescriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

int64_t ResidentKilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoll(line.substr(6));
  }
  return 0;
}

class RegionTableTest : public ::testing::Test {
 protected:
  RegionTableTest()
      : table_({/*leases=*/3, /*regions_per_lease=*/3, /*regions=*/4},
               [this](const internal::v1::Region& memory,
                      std::function<void()> done) {
                 {
                   const absl::MutexLock lock(&mutex_);
                   if (hold_detach_) {
                     held_.push_back(std::move(done));
                     return;
                   }
                   detached_.push_back(memory.id());
                 }
                 done();
               }) {}

  ~RegionTableTest() override { shm_unlink(object_.c_str()); }

  void CreateObject(off_t size) const {
    const int fd = shm_open(object_.c_str(), O_CREAT | O_RDWR, 0600);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(ftruncate(fd, size), 0);
    close(fd);
  }
  bool ObjectExists() const {
    const int fd = shm_open(object_.c_str(), O_RDONLY, 0);
    if (fd >= 0) close(fd);
    return fd >= 0;
  }

  std::string Open(const std::string& peer = "ipv4:client") {
    return *table_.OpenLease(peer);
  }

  absl::StatusOr<RegionTable::RegionPtr> Reserve(const std::string& lease,
                                                 const std::string& name,
                                                 bool shared = false) {
    internal::v1::Region memory;
    memory.set_byte_size(64);
    std::optional<SharedMemoryObject> object;
    if (shared) {
      memory.mutable_shared()->set_offset(36);
      object = *SharedMemoryObject::Open(object_);
    } else {
      memory.mutable_cuda();
    }
    return table_.Reserve({lease, ""}, name, memory, std::move(object));
  }

  absl::Status Register(const std::string& lease, const std::string& name,
                        bool shared = false,
                        const absl::Status& attached = absl::OkStatus()) {
    const auto region = Reserve(lease, name, shared);
    if (!region.ok()) return region.status();
    absl::Status outcome = absl::UnknownError("not told");
    table_.FinishRegistration(
        *region, attached,
        [&outcome](const absl::Status& status) { outcome = status; });
    return outcome;
  }

  absl::StatusOr<RegionPin> Pin(const std::string& name,
                                const std::string& lease) {
    return table_.Pin(name, {lease, ""});
  }

  void ExpectEmpty() {
    EXPECT_TRUE(table_.AwaitEmpty(absl::InfinitePast()));
    const auto totals = table_.totals();
    EXPECT_EQ(totals.regions[0] + totals.regions[1], 0u);
    EXPECT_EQ(totals.bytes[0] + totals.bytes[1], 0);
  }

  const std::string object_ = "/ithaca-region-table-test-" + NewLeaseToken();
  absl::Mutex mutex_;  // of these, where a test has threads
  std::vector<uint64_t> detached_;
  bool hold_detach_ = false;
  std::vector<std::function<void()>> held_;
  RegionTable table_;
};

TEST_F(RegionTableTest, ARegionIsFoundUntilItIsUnregistered) {
  const std::string lease = Open();
  ASSERT_TRUE(Register(lease, "r").ok());
  const auto listed = table_.List(lease);
  ASSERT_TRUE(listed.ok());
  ASSERT_EQ(listed->size(), 1u);
  EXPECT_EQ(listed->front().name, "r");
  EXPECT_EQ(listed->front().kind, MemoryKind::kCuda);
  EXPECT_EQ(listed->front().byte_size, 64u);
  EXPECT_EQ(listed->front().calls_in_use, 0u);
  EXPECT_EQ(table_.totals().regions[1], 1u);
  EXPECT_EQ(table_.totals().bytes[1], 64);
  const uint64_t id = Pin("r", lease)->region->memory.id();

  bool released = false;
  ASSERT_TRUE(
      table_.Unregister(lease, "r", [&released] { released = true; }).ok());
  EXPECT_TRUE(released);
  EXPECT_EQ(detached_, std::vector<uint64_t>{id});
  EXPECT_TRUE(absl::IsNotFound(Pin("r", lease).status()));
  EXPECT_TRUE(table_.List(lease)->empty());
  ExpectEmpty();
}

TEST_F(RegionTableTest, UnregisteringWaitsForTheCallsThatHaveIt) {
  const std::string lease = Open();
  ASSERT_TRUE(Register(lease, "r").ok());
  auto first = Pin("r", lease);
  auto second = Pin("r", lease);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(table_.List(lease)->front().calls_in_use, 2u);
  bool released = false;
  ASSERT_TRUE(
      table_.Unregister(lease, "r", [&released] { released = true; }).ok());
  EXPECT_TRUE(absl::IsNotFound(Pin("r", lease).status()));
  EXPECT_TRUE(absl::IsNotFound(table_.Unregister(lease, "r", [] {})));
  EXPECT_TRUE(absl::IsAlreadyExists(Register(lease, "r")));
  first->hold.reset();
  EXPECT_FALSE(released);
  EXPECT_TRUE(detached_.empty());
  second->hold.reset();
  EXPECT_TRUE(released);
  // What a call knows of it outlives it.
  EXPECT_EQ(detached_.front(), first->region->memory.id());
  EXPECT_TRUE(Register(lease, "r").ok());
}

TEST_F(RegionTableTest, ANameIsTakenUntilTheWorkersHaveForgottenTheRegion) {
  const std::string lease = Open();
  ASSERT_TRUE(Register(lease, "r").ok());
  hold_detach_ = true;
  bool released = false;
  ASSERT_TRUE(
      table_.Unregister(lease, "r", [&released] { released = true; }).ok());
  EXPECT_FALSE(released);
  EXPECT_TRUE(absl::IsAlreadyExists(Register(Open(), "r")));
  ASSERT_EQ(held_.size(), 1u);
  held_.front()();
  EXPECT_TRUE(released);
  hold_detach_ = false;
  EXPECT_TRUE(Register(lease, "r").ok());
}

TEST_F(RegionTableTest, EndedLeasesTakeTheirRegionsAndNoOthers) {
  const std::string ended = Open("ipv4:a");
  const std::string other = Open("ipv4:b");
  ASSERT_TRUE(Register(ended, "a1").ok());
  ASSERT_TRUE(Register(ended, "a2").ok());
  ASSERT_TRUE(Register(other, "b1").ok());
  auto in_call = Pin("a1", ended);
  EXPECT_EQ(table_.CloseLease(ended, RegionTable::LeaseEnd::kClientLeft), 2u);
  EXPECT_EQ(table_.CloseLease(ended, RegionTable::LeaseEnd::kClientLeft), 0u);
  EXPECT_TRUE(absl::IsNotFound(table_.CheckLease(ended)));
  EXPECT_TRUE(absl::IsNotFound(table_.List(ended).status()));
  EXPECT_TRUE(absl::IsNotFound(Pin("a1", ended).status()));
  EXPECT_TRUE(absl::IsNotFound(Register(ended, "a3")));
  EXPECT_EQ(detached_.size(), 1u);
  in_call->hold.reset();
  EXPECT_EQ(detached_.size(), 2u);
  EXPECT_EQ(table_.List(other)->size(), 1u);
  EXPECT_TRUE(Pin("b1", other).ok());
}

TEST_F(RegionTableTest, ARegionIsItsLeasesAndItsConnectionsOnly) {
  const std::string lease = Open("ipv4:a");
  const std::string other = Open("ipv4:b");
  ASSERT_TRUE(Register(lease, "r").ok());
  EXPECT_TRUE(table_.Pin("r", {lease, "ipv4:z"}).ok());
  EXPECT_TRUE(table_.Pin("r", {"", "ipv4:a"}).ok());
  const absl::Status unknown = table_.Pin("none", {"", "ipv4:a"}).status();
  EXPECT_TRUE(absl::IsNotFound(unknown));
  for (const RegionAccess& access :
       {RegionAccess{other, "ipv4:a"}, RegionAccess{"wrong", "ipv4:a"},
        RegionAccess{"", "ipv4:b"}, RegionAccess{"", ""},
        RegionAccess{other, ""}}) {
    const absl::Status status = table_.Pin("r", access).status();
    EXPECT_EQ(status.code(), unknown.code());
    EXPECT_EQ(status.message(), "region: this client has none named \"r\"");
  }
  EXPECT_TRUE(absl::IsNotFound(table_.Unregister(other, "r", [] {})));
  EXPECT_TRUE(absl::IsNotFound(table_.Unregister("", "r", [] {})));
  EXPECT_TRUE(table_.List(other)->empty());
  EXPECT_TRUE(absl::IsNotFound(table_.List("").status()));
  // A connection that registers may use what it registered for.
  internal::v1::Region memory;
  memory.mutable_cuda();
  const auto region =
      table_.Reserve({lease, "ipv4:b"}, "s", memory, std::nullopt);
  ASSERT_TRUE(region.ok());
  table_.FinishRegistration(*region, absl::OkStatus(),
                            [](const absl::Status&) {});
  EXPECT_TRUE(table_.Pin("s", {"", "ipv4:b"}).ok());
}

TEST_F(RegionTableTest, AnAddressThatIsNotOneClientsOpensNothing) {
  const std::string lease = Open("");
  ASSERT_TRUE(Register(lease, "r").ok());
  EXPECT_TRUE(absl::IsNotFound(table_.Pin("r", {"", ""}).status()));
  EXPECT_TRUE(table_.Pin("r", {lease, ""}).ok());
}

TEST_F(RegionTableTest, NamesAreUniqueOnTheServer) {
  const std::string lease = Open();
  const std::string other = Open();
  ASSERT_TRUE(Register(lease, "r").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Register(lease, "r")));
  EXPECT_TRUE(absl::IsAlreadyExists(Register(other, "r")));
  EXPECT_TRUE(Register(other, "s").ok());
}

TEST_F(RegionTableTest, LimitsAreResourceExhausted) {
  const std::string lease = Open();
  const std::string other = Open();
  Open();
  EXPECT_TRUE(absl::IsResourceExhausted(table_.OpenLease("").status()));
  for (const char* name : {"1", "2", "3"}) {
    ASSERT_TRUE(Register(lease, name).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(Register(lease, "4")));
  ASSERT_TRUE(Register(other, "4").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Register(other, "5")));
  ASSERT_TRUE(table_.Unregister(lease, "1", [] {}).ok());
  EXPECT_TRUE(Register(lease, "5").ok());
  table_.CloseLease(other, RegionTable::LeaseEnd::kClientLeft);
  EXPECT_TRUE(table_.OpenLease("").ok());
}

TEST_F(RegionTableTest, ARefusedRegistrationLeavesNothing) {
  const std::string lease = Open();
  const absl::Status refusal = absl::FailedPreconditionError("worker w: no");
  EXPECT_EQ(Register(lease, "r", false, refusal), refusal);
  EXPECT_EQ(detached_.size(), 1u);
  EXPECT_TRUE(table_.List(lease)->empty());
  ExpectEmpty();
  EXPECT_TRUE(Register(lease, "r").ok());
}

TEST_F(RegionTableTest, ALeaseThatEndsDuringARegistrationTakesTheRegion) {
  CreateObject(100);
  const std::string lease = Open();
  const auto region = Reserve(lease, "r", /*shared=*/true);
  ASSERT_TRUE(region.ok());
  EXPECT_TRUE(absl::IsNotFound(Pin("r", lease).status()));
  EXPECT_TRUE(absl::IsNotFound(table_.Unregister(lease, "r", [] {})));
  EXPECT_EQ(table_.CloseLease(lease, RegionTable::LeaseEnd::kClientLeft), 1u);
  EXPECT_TRUE(detached_.empty());
  absl::Status outcome;
  table_.FinishRegistration(
      *region, absl::OkStatus(),
      [&outcome](const absl::Status& status) { outcome = status; });
  EXPECT_TRUE(absl::IsNotFound(outcome)) << outcome;
  EXPECT_EQ(detached_.size(), 1u);
  EXPECT_FALSE(ObjectExists());
  ExpectEmpty();
}

TEST_F(RegionTableTest, ADeadClientsObjectLosesItsNameAfterItsLastCall) {
  CreateObject(100);
  const std::string lease = Open();
  ASSERT_TRUE(Register(lease, "r", /*shared=*/true).ok());
  auto pin = Pin("r", lease);
  table_.CloseLease(lease, RegionTable::LeaseEnd::kClientLeft);
  EXPECT_TRUE(ObjectExists());
  pin->hold.reset();
  EXPECT_FALSE(ObjectExists());
}

TEST_F(RegionTableTest, AnObjectKeepsItsNameWhenItsClientMayBeAlive) {
  CreateObject(100);
  // It unregistered.
  const std::string orderly = Open();
  ASSERT_TRUE(Register(orderly, "r", /*shared=*/true).ok());
  ASSERT_TRUE(table_.Unregister(orderly, "r", [] {}).ok());
  table_.CloseLease(orderly, RegionTable::LeaseEnd::kClientLeft);
  EXPECT_TRUE(ObjectExists());
  // The server ends.
  const std::string served = Open();
  ASSERT_TRUE(Register(served, "r", /*shared=*/true).ok());
  table_.CloseLease(served, RegionTable::LeaseEnd::kServerEnds);
  EXPECT_TRUE(ObjectExists());
  // Another client has the object too.
  const std::string first = Open();
  const std::string second = Open();
  ASSERT_TRUE(Register(first, "r", /*shared=*/true).ok());
  ASSERT_TRUE(Register(second, "s", /*shared=*/true).ok());
  table_.CloseLease(first, RegionTable::LeaseEnd::kClientLeft);
  EXPECT_TRUE(ObjectExists());
  // The name stands for a newer object.
  shm_unlink(object_.c_str());
  CreateObject(100);
  table_.CloseLease(second, RegionTable::LeaseEnd::kClientLeft);
  EXPECT_TRUE(ObjectExists());
}

TEST_F(RegionTableTest, AnObjectThatShrankIsRefusedUntilItIsWhole) {
  CreateObject(100);
  const std::string lease = Open();
  ASSERT_TRUE(Register(lease, "r", /*shared=*/true).ok());
  ASSERT_TRUE(Pin("r", lease).ok());
  CreateObject(99);
  const absl::Status status = Pin("r", lease).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(table_.List(lease)->front().calls_in_use, 0u);
  CreateObject(100);
  EXPECT_TRUE(Pin("r", lease).ok());
}

TEST_F(RegionTableTest, TenThousandRegistrationsLeaveNothingBehind) {
  CreateObject(100);
  const std::string lease = Open();
  const auto cycle = [&](int i) {
    if (i % 2 == 0) {
      EXPECT_TRUE(Register(lease, "r", /*shared=*/true).ok());
      EXPECT_TRUE(table_.Unregister(lease, "r", [] {}).ok());
    } else {
      EXPECT_FALSE(
          Register(lease, "r", /*shared=*/true, absl::InternalError("")).ok());
    }
    detached_.clear();
  };
  for (int i = 0; i < 1000; ++i) cycle(i);
  const auto descriptors = OpenDescriptors();
  const int64_t kilobytes = ResidentKilobytes();
  for (int i = 0; i < 20000; ++i) cycle(i);
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_LT(ResidentKilobytes(), kilobytes + 1024);
  ExpectEmpty();
}

TEST_F(RegionTableTest, PinsAndUnregistrationsOnManyThreadsReleaseEachOnce) {
  const std::string lease = Open();
  std::atomic<int> released = 0;
  std::atomic<bool> stop = false;
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&] {
      while (!stop) {
        if (auto pin = Pin("r", lease); pin.ok()) pin->hold.reset();
      }
    });
  }
  constexpr int kRounds = 300;
  for (int i = 0; i < kRounds; ++i) {
    // The last round's may still be pinned.
    while (!Register(lease, "r").ok()) std::this_thread::yield();
    EXPECT_TRUE(
        table_.Unregister(lease, "r", [&released] { ++released; }).ok());
  }
  stop = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(table_.AwaitEmpty(absl::Now() + absl::Seconds(30)));
  EXPECT_EQ(released, kRounds);
}

}  // namespace
}  // namespace ithaca::server
