#include "server/worker_registry.h"

#include <string>
#include <utility>

#include "core/network_namespace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const absl::Time kNow = absl::UnixEpoch();

internal::v1::Join MakeJoin(const std::string& worker) {
  internal::v1::Join join;
  join.set_version("1.2.3");
  join.set_worker(worker);
  join.set_host("box");
  join.set_address(":50052");
  join.set_device("cpu");
  return join;
}

absl::Status AdmitStatus(const internal::v1::Join& join) {
  WorkerRegistry registry("1.2.3");
  return registry.Admit(join, "10.0.0.7", kNow).status();
}

TEST(WorkerRegistryTest, AnAdmittedWorkerIsAsItSaid) {
  WorkerRegistry registry("1.2.3");
  internal::v1::Join join = MakeJoin("box/1");
  join.set_local_slot(3);
  join.add_kernels(ithaca::v1::ATTENTION_KERNEL_MATH);
  auto worker = registry.Admit(join, "127.0.0.1", kNow);
  ASSERT_TRUE(worker.ok());
  EXPECT_EQ((*worker)->member.worker, "box/1");
  EXPECT_EQ((*worker)->member.address, "127.0.0.1:50052");
  EXPECT_EQ((*worker)->local_slot, 3);
  EXPECT_THAT((*worker)->member.kernels,
              ElementsAre(ithaca::v1::ATTENTION_KERNEL_MATH));
  EXPECT_EQ(registry.Find((*worker)->id), *worker);
}

TEST(WorkerRegistryTest, ALocalSocketCountsInTheSameNetworkNamespaceAlone) {
  WorkerRegistry registry("1.2.3");
  internal::v1::Join join = MakeJoin("box/1");
  join.set_local_socket("unix-abstract:a");
  for (const auto& [name, expected] :
       {std::pair<std::string, std::string>{NetworkNamespace(),
                                            "unix-abstract:a"},
        {NetworkNamespace() + "0", ""},
        {"", ""}}) {
    join.set_network_namespace(name);
    const auto worker = registry.Admit(join, "127.0.0.1", kNow);
    ASSERT_TRUE(worker.ok());
    EXPECT_EQ((*worker)->member.local_socket, expected)
        << "in '" << name << "'";
    EXPECT_EQ((*worker)->member.address, "127.0.0.1:50052");
  }
}

TEST(WorkerRegistryTest, ALocalSocketThatIsNoneIsRefused) {
  internal::v1::Join join = MakeJoin("box/1");
  join.set_local_socket("unix:/etc/passwd");
  const absl::Status status = AdmitStatus(join);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("unix:/etc/passwd"));
}

TEST(WorkerRegistryTest, AnotherVersionIsRefusedNamingBoth) {
  internal::v1::Join join = MakeJoin("box/1");
  join.set_version("0.9");
  const absl::Status status = AdmitStatus(join);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'0.9'"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("'1.2.3'"));
}

TEST(WorkerRegistryTest, TwoWorkersOnOneGpuAreRefusedNamingBoth) {
  WorkerRegistry registry("1.2.3");
  internal::v1::Join first = MakeJoin("box/1");
  first.set_device("cuda:0");
  first.set_device_uuid("GPU-abc");
  ASSERT_TRUE(registry.Admit(first, "10.0.0.7", kNow).ok());
  internal::v1::Join second = first;
  second.set_worker("box/2");
  second.set_address(":50053");
  const absl::Status status = registry.Admit(second, "10.0.0.7", kNow).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("box/1"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("box/2"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("GPU-abc"));
  second.set_device_uuid("GPU-def");
  EXPECT_TRUE(registry.Admit(second, "10.0.0.7", kNow).ok());
}

TEST(WorkerRegistryTest, CpuWorkersShareTheirDevice) {
  WorkerRegistry registry("1.2.3");
  EXPECT_TRUE(registry.Admit(MakeJoin("box/1"), "10.0.0.7", kNow).ok());
  EXPECT_TRUE(registry.Admit(MakeJoin("box/2"), "10.0.0.7", kNow).ok());
}

TEST(WorkerRegistryTest, MissingAndMalformedFieldsAreNamed) {
  internal::v1::Join join = MakeJoin("");
  EXPECT_EQ(AdmitStatus(join).code(), absl::StatusCode::kInvalidArgument);
  for (const char* address : {"", "host", "host:", "host:0", "host:70000"}) {
    join = MakeJoin("box/1");
    join.set_address(address);
    const absl::Status status = AdmitStatus(join);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(status.message()), HasSubstr("join.address"));
  }
  join = MakeJoin("box/1");
  join.set_local_slot(-1);
  EXPECT_EQ(AdmitStatus(join).code(), absl::StatusCode::kInvalidArgument);
}

TEST(WorkerRegistryTest, AnotherHostCannotSpeakForALocalSlot) {
  internal::v1::Join join = MakeJoin("evil/1");
  join.set_local_slot(0);
  const absl::Status status = AdmitStatus(join);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("join.local_slot"));
}

TEST(WorkerRegistryTest, AProcessThatJoinsAnewHasAPredecessor) {
  WorkerRegistry registry("1.2.3");
  auto worker = registry.Admit(MakeJoin("box/1"), "10.0.0.7", kNow);
  EXPECT_EQ(registry.FindPredecessor(MakeJoin("box/1"), "10.0.0.7"), *worker);
  EXPECT_EQ(registry.FindPredecessor(MakeJoin("box/1"), "10.0.0.8"), nullptr);
  EXPECT_EQ(registry.FindPredecessor(MakeJoin("box/2"), "10.0.0.7"), nullptr);
}

TEST(WorkerRegistryTest, SilenceIsMeasuredFromTheLastWord) {
  WorkerRegistry registry("1.2.3");
  EXPECT_EQ(registry.LongestSilent(), absl::InfiniteFuture());
  const WorkerId one =
      (*registry.Admit(MakeJoin("box/1"), "10.0.0.7", kNow))->id;
  const WorkerId two =
      (*registry.Admit(MakeJoin("box/2"), "10.0.0.7", kNow))->id;
  registry.Find(two)->last_heard = kNow + absl::Seconds(1);
  EXPECT_EQ(registry.LongestSilent(), kNow);
  EXPECT_THAT(registry.SilentSince(kNow), ElementsAre(one));
  registry.ForgiveSilence(kNow + absl::Seconds(5));
  EXPECT_THAT(registry.SilentSince(kNow + absl::Seconds(4)), IsEmpty());
}

TEST(PeerHostTest, ReadsWhatGrpcSays) {
  EXPECT_EQ(PeerHost("ipv4:10.0.0.7:4242"), "10.0.0.7");
  EXPECT_EQ(PeerHost("ipv6:[::1]:4242"), "[::1]");
  EXPECT_EQ(PeerHost("ipv6:%5Bfe80::1%25eth0%5D:42"), "[fe80::1%eth0]");
  EXPECT_EQ(PeerHost("unix:/tmp/socket"), "");
  EXPECT_EQ(PeerHost(""), "");
}

TEST(ResolveAddressTest, FillsInOnlyAMissingHost) {
  EXPECT_EQ(ResolveAddress(":1", "[::1]"), "[::1]:1");
  EXPECT_EQ(ResolveAddress("box:1", "10.0.0.7"), "box:1");
}

}  // namespace
}  // namespace ithaca::server
