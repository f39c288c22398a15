#include "worker/rank_device.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/file_rendezvous_store.h"

namespace ithaca {
namespace {

using ::testing::HasSubstr;

absl::Status StatusOf(const std::string& name) {
  RankDeviceOptions options;
  options.name = name;
  return OpenRankDevice(options).status();
}

TEST(RankDeviceTest, TheCpuFormsAGroup) {
  auto device = OpenRankDevice({});
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->device()->name(), "cpu");
  EXPECT_EQ((*device)->uuid(), "");
  EXPECT_FALSE((*device)->kernels()->Available().empty());

  FileRendezvousStore store = FileRendezvousStore::Fresh();
  auto communicator =
      (*device)->FormGroup(store, 0, 1, absl::Seconds(30), absl::Seconds(30));
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  EXPECT_EQ((*communicator)->world_size(), 1);
  EXPECT_TRUE((*communicator)->Agree({1, 1}).ok());
}

TEST(RankDeviceTest, AnUnknownNameIsRefusedAndTheNamesAreSaid) {
  for (const char* name : {"", "gpu", "cud:0"}) {
    const absl::Status status = StatusOf(name);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("cuda:N"));
  }
}

}  // namespace
}  // namespace ithaca
