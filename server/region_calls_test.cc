// Calls on regions, from the request to the ranks and back.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "ithaca/v1/attention.grpc.pb.h"
#include "server/fake_group.h"
#include "server/memory_test_client.h"
#include "server/memory_test_server.h"

namespace ithaca::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

using RegionCallsTest = MemoryServerTest;

TEST_F(RegionCallsTest, ACallOnARegionWritesItsOutputThere) {
  client_->OpenLease();
  EXPECT_EQ(client_->lease().size(), 32u);
  ASSERT_TRUE(client_->Register("r", object_).ok());
  EXPECT_EQ(group_.attached(0).size(), 1u);
  EXPECT_EQ(group_.attached(1).size(), 1u);
  v1::AttentionResponse response;
  const grpc::Status status =
      client_->Attend(MemoryTestClient::CallOn("r"), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  object_.ExpectOutput();
  EXPECT_TRUE(response.output().has_memory());
  EXPECT_EQ(response.output().memory().region(), "r");
  EXPECT_EQ(response.output().memory().offset(),
            3 * TensorObject::kTensorBytes);
  EXPECT_EQ(response.output().memory().byte_size(), TensorObject::kTensorBytes);
  EXPECT_EQ(response.output().shape_size(), 4);
  EXPECT_EQ(response.report().group(), "g1");
  EXPECT_EQ(Counted("ithaca_tensor_bytes_total{direction=\"in\",plane="
                    "\"shared_memory\"}"),
            3.0 * TensorObject::kTensorBytes);
  EXPECT_EQ(Counted("ithaca_tensor_bytes_total{direction=\"out\",plane="
                    "\"shared_memory\"}"),
            1.0 * TensorObject::kTensorBytes);
  EXPECT_EQ(
      Counted("ithaca_tensor_bytes_total{direction=\"in\",plane=\"unary\"}"),
      0);

  ASSERT_TRUE(client_->Unregister("r").ok());
  EXPECT_THAT(group_.attached(0), IsEmpty());
  EXPECT_THAT(group_.attached(1), IsEmpty());
  ExpectRefused(client_->Attend(MemoryTestClient::CallOn("r")),
                grpc::StatusCode::NOT_FOUND, "query.memory.region");
  EXPECT_TRUE(object_.Exists());
}

TEST_F(RegionCallsTest, TensorsInRegionsAndInTheMessageMix) {
  client_->OpenLease();
  ASSERT_TRUE(client_->Register("r", object_).ok());
  v1::AttentionRequest request = MemoryTestClient::CallOn("r");
  request.mutable_query()->set_data(
      std::string(TensorObject::kTensorBytes, '\0'));
  request.clear_output();
  v1::AttentionResponse response;
  const grpc::Status status = client_->Attend(request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.output().data().size(), TensorObject::kTensorBytes);
  float first = 0;
  std::memcpy(&first, response.output().data().data(), sizeof(first));
  EXPECT_FLOAT_EQ(first, 1.0F);
  for (const auto& [plane, bytes] : std::vector<std::pair<std::string, double>>{
           {"unary", TensorObject::kTensorBytes},
           {"shared_memory", 2.0 * TensorObject::kTensorBytes}}) {
    EXPECT_EQ(Counted("ithaca_tensor_bytes_total{direction=\"in\",plane=\"" +
                      plane + "\"}"),
              bytes);
  }
}

TEST_F(RegionCallsTest, OnlyTheBytesOfMessagesAreBudgeted) {
  client_->OpenLease();
  ASSERT_TRUE(client_->Register("r", object_).ok());
  group_.Hold();
  std::thread call([this] {
    EXPECT_TRUE(client_->Attend(MemoryTestClient::CallOn("r")).ok());
  });
  group_.AwaitHeld(1);
  EXPECT_EQ(budget_.reserved(), 0);
  group_.Release();
  call.join();
}

TEST_F(RegionCallsTest, AnObjectThatShrankIsRefusedByName) {
  client_->OpenLease();
  ASSERT_TRUE(client_->Register("r", object_).ok());
  object_.Truncate(100);
  ExpectRefused(client_->Attend(MemoryTestClient::CallOn("r")),
                grpc::StatusCode::FAILED_PRECONDITION, "shrunk");
  object_.Truncate(TensorObject::kBytes);
  EXPECT_TRUE(client_->Attend(MemoryTestClient::CallOn("r")).ok());
}

TEST_F(RegionCallsTest, ACallOnARegionIsRetriedOnAnotherGroup) {
  FakeGroup second(2);
  scheduler_.OnGroupFormed(second.Describe("g2", 2));
  AwaitTrue([this] { return scheduler_.Ready("g2", 2); });
  client_->OpenLease();
  ASSERT_TRUE(client_->Register("r", object_).ok());
  // Whichever gets it first loses it.
  group_.FailNext(0, {grpc::StatusCode::UNAVAILABLE, "a rank died"});
  v1::AttentionResponse response;
  const grpc::Status status =
      client_->Attend(MemoryTestClient::CallOn("r"), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.report().group(), "g2");
  object_.ExpectOutput();
  EXPECT_EQ(client_->List()[0].calls_in_use(), 0u);
  // It was not told of the region before: its first call brought it.
  EXPECT_EQ(second.attached(0).size(), 1u);
  scheduler_.OnGroupLost("g2", 2, GroupFailureReason::kWorkerLost, "test");
}

TEST_F(RegionCallsTest, UnregisteringWaitsForARunningCall) {
  client_->OpenLease();
  ASSERT_TRUE(client_->Register("r", object_).ok());
  group_.Hold();
  std::thread call([this] {
    EXPECT_TRUE(client_->Attend(MemoryTestClient::CallOn("r")).ok());
  });
  group_.AwaitHeld(1);
  EXPECT_EQ(client_->List()[0].calls_in_use(), 1u);
  std::atomic<bool> unregistered = false;
  std::thread unregister([&] {
    EXPECT_TRUE(client_->Unregister("r").ok());
    unregistered = true;
  });
  AwaitTrue([this] { return client_->List().empty(); });
  ExpectRefused(client_->Attend(MemoryTestClient::CallOn("r")),
                grpc::StatusCode::NOT_FOUND, "region");
  EXPECT_EQ(group_.attached(0).size(), 1u);
  EXPECT_FALSE(unregistered);
  group_.Release();
  call.join();
  unregister.join();
  object_.ExpectOutput();
  EXPECT_THAT(group_.attached(0), IsEmpty());
  EXPECT_TRUE(client_->Register("r", object_).ok());
}

TEST_F(RegionCallsTest, ARegionGoesThoughItsClientStoppedWaiting) {
  client_->OpenLease();
  ASSERT_TRUE(client_->Register("r", object_).ok());
  group_.Hold();
  // The client of the call gives up as well: the ranks still have the region.
  ExpectRefused(client_->Attend(MemoryTestClient::CallOn("r"), nullptr, "",
                                absl::Milliseconds(100)),
                grpc::StatusCode::DEADLINE_EXCEEDED, "");
  group_.AwaitHeld(1);
  EXPECT_EQ(client_->List()[0].calls_in_use(), 1u);
  ExpectRefused(client_->Unregister("r", absl::Milliseconds(50)),
                grpc::StatusCode::DEADLINE_EXCEEDED, "");
  EXPECT_EQ(group_.attached(0).size(), 1u);
  group_.Release();
  AwaitTrue([this] { return group_.attached(0).empty(); });
  AwaitTrue([this] { return client_->Register("r", object_).ok(); });
}

TEST_F(RegionCallsTest, ALeaseEndsWithItsConnectionDuringACall) {
  auto gone = std::make_unique<MemoryTestClient>(port_);
  gone->OpenLease();
  ASSERT_TRUE(gone->Register("r", object_).ok());
  group_.Hold();
  std::thread call([&] {
    EXPECT_FALSE(gone->Attend(MemoryTestClient::CallOn("r"), nullptr, "",
                              absl::Milliseconds(200))
                     .ok());
  });
  group_.AwaitHeld(1);
  call.join();
  gone.reset();
  AwaitTrue([this] { return Counted("ithaca_leases") == 0; });
  EXPECT_EQ(group_.attached(0).size(), 1u);
  EXPECT_TRUE(object_.Exists());
  group_.Release();
  AwaitTrue([this] { return group_.attached(0).empty(); });
  AwaitTrue([this] { return !object_.Exists(); });
}

}  // namespace
}  // namespace ithaca::server
