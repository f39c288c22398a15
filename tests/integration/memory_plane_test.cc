// Calls on a client's shared memory, through the real coordinator and workers.

#include <gmock/gmock.h>
#include <grpcpp/support/status.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/attention_call.h"
#include "ithaca/v1/attention.grpc.pb.h"
#include "tests/integration/attention_requests.h"
#include "tests/integration/coordinator_process.h"
#include "tests/integration/memory_client.h"
#include "tests/integration/stream_client.h"
#include "tests/oracle/tensor_data.h"

namespace ithaca {
namespace {

using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;

constexpr size_t kObjectBytes = 1 << 20;
// What the test's child is told.
constexpr char kAddressVariable[] = "ITHACA_TEST_COORDINATOR";
constexpr char kObjectVariable[] = "ITHACA_TEST_OBJECT";

class MemoryPlaneTest : public ::testing::TestWithParam<int> {
 protected:
  MemoryPlaneTest()
      : server_({"--local-workers=" + std::to_string(GetParam()),
                 "--allow-shared-memory"}) {}

  void SetUp() override {
    ASSERT_TRUE(server_.AwaitReady()) << server_.Log();
    client_ = std::make_unique<MemoryClient>(server_.address());
  }

  // A call on the region whose output is known; nothing, or what is wrong.
  std::string GoodCall(MemoryClient* client, const std::string& region,
                       TestObject* object) {
    v1::AttentionRequest request = GoodRequest("good");
    const size_t output_size = request.query().data().size();
    const size_t output = MoveToRegion(region, 64, object, &request);
    v1::AttentionResponse response;
    const grpc::Status status = client->Attend(request, &response);
    if (!status.ok()) return status.error_message();
    if (!response.output().has_memory()) return "the output is elsewhere";
    response.mutable_output()->set_data(object->Read(output, output_size));
    return WhatIsWrong(response);
  }

  int WorkersDescriptors(const std::string& object_name) {
    int count = 0;
    for (const pid_t pid : server_.WorkerPids()) {
      count += Descriptors(pid, object_name);
    }
    return count;
  }

  bool AwaitNoLeases() {
    return AwaitTrue([this] { return server_.Metric("ithaca_leases") == 0; });
  }

  CoordinatorProcess server_;
  std::unique_ptr<MemoryClient> client_;
  TestObject object_{FreshObjectName(), kObjectBytes};
};

INSTANTIATE_TEST_SUITE_P(Workers, MemoryPlaneTest, ::testing::Values(1, 3));

TEST_P(MemoryPlaneTest, OutputsAreThoseOfTheSameCallsInAMessage) {
  ASSERT_TRUE(client_->Register("r", object_).ok());
  uint64_t seed = 0;
  for (const int64_t batch : {1, 2}) {
    for (const auto order : {TokenOrder::kImageFirst, TokenOrder::kTextFirst}) {
      for (const int64_t image : {1, 2, 37}) {  // fewer than ranks too
        for (const int64_t text : {0, 5}) {
          AttentionShape shape;
          shape.dtype =
              ++seed % 2 == 0 ? DataType::kBFloat16 : DataType::kFloat32;
          shape.batch = batch;
          shape.image_tokens = image;
          shape.text_tokens = text;
          shape.valid_text_tokens.assign(static_cast<size_t>(batch), text);
          shape.valid_text_tokens[0] = text / 2;
          shape.order = order;
          shape.image_queries_only = seed % 3 == 0;
          shape.num_heads = 6;
          shape.num_kv_heads = seed % 2 == 0 ? 2 : 6;
          shape.head_dim = 24;
          const auto inputs = oracle::RandomInputs(shape, seed);
          v1::AttentionRequest request = MakeRequest("", shape, inputs);
          v1::AttentionResponse expected;
          ASSERT_TRUE(client_->Attend(request, &expected).ok());
          // At any element, not only at page or cache line borders.
          const size_t output = MoveToRegion("r", 4 * seed, &object_, &request);
          v1::AttentionResponse response;
          const grpc::Status status = client_->Attend(request, &response);
          ASSERT_TRUE(status.ok()) << status.error_message();
          EXPECT_EQ(object_.Read(output, expected.output().data().size()),
                    expected.output().data())
              << shape.batch << " " << image << " " << text;
          // One tensor in the message, the output back in the response.
          request.mutable_key()->set_data(inputs.key);
          request.clear_output();
          ASSERT_TRUE(client_->Attend(request, &response).ok());
          EXPECT_EQ(response.output().data(), expected.output().data());
          // The same in chunks, the output in the region again.
          const std::string zeros(expected.output().data().size(), '\0');
          object_.Write(output, zeros);
          v1::MemorySlice* const slice = request.mutable_output();
          slice->set_region("r");
          slice->set_offset(output);
          slice->set_byte_size(zeros.size());
          StreamClient stream(client_->attention(), request);
          stream.SendAll(100);
          const grpc::Status streamed = stream.Receive(&response);
          ASSERT_TRUE(streamed.ok()) << streamed.error_message();
          EXPECT_TRUE(response.output().has_memory());
          EXPECT_EQ(object_.Read(output, zeros.size()),
                    expected.output().data());
        }
      }
    }
  }
}

TEST_P(MemoryPlaneTest, WorkersHaveARegionForAsLongAsItIsRegistered) {
  ASSERT_TRUE(client_->Register("r", object_).ok());
  EXPECT_EQ(WorkersDescriptors(object_.name()), GetParam());
  EXPECT_EQ(server_.Metric("ithaca_memory_regions{kind=\"shared\"}"), 1);
  EXPECT_EQ(server_.Metric("ithaca_memory_region_bytes{kind=\"shared\"}"),
            kObjectBytes);
  EXPECT_EQ(GoodCall(client_.get(), "r", &object_), "");
  ASSERT_TRUE(client_->Unregister("r").ok());
  EXPECT_EQ(WorkersDescriptors(object_.name()), 0);
  EXPECT_EQ(server_.Metric("ithaca_memory_regions{kind=\"shared\"}"), 0);
  EXPECT_EQ(server_.Metric("ithaca_memory_region_bytes{kind=\"shared\"}"), 0);
  EXPECT_TRUE(TestObject::Exists(object_.name()));
  EXPECT_THAT(GoodCall(client_.get(), "r", &object_), HasSubstr("region"));
  ASSERT_TRUE(client_->Register("r", object_).ok());
  EXPECT_EQ(GoodCall(client_.get(), "r", &object_), "");
}

TEST_P(MemoryPlaneTest, AnObjectThatShrankEndsTheCallAndNothingElse) {
  ASSERT_TRUE(client_->Register("r", object_).ok());
  const uint64_t generation = server_.Generation();
  v1::AttentionRequest request = GoodRequest("shrunk");
  MoveToRegion("r", kObjectBytes / 2, &object_, &request);
  object_.Truncate(kObjectBytes / 2);
  v1::AttentionResponse response;
  const grpc::Status status = client_->Attend(request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION)
      << status.error_message();
  object_.Truncate(kObjectBytes);
  EXPECT_EQ(GoodCall(client_.get(), "r", &object_), "");
  EXPECT_EQ(server_.Generation(), generation);
}

TEST_P(MemoryPlaneTest, AnObjectThatShrinksDuringCallsKillsNoWorker) {
  ASSERT_TRUE(client_->Register("r", object_).ok());
  const uint64_t generation = server_.Generation();
  AttentionShape shape;
  shape.image_tokens = 256;
  shape.valid_text_tokens = {0};
  shape.num_heads = 4;
  shape.num_kv_heads = 4;
  shape.head_dim = 32;
  v1::AttentionRequest request =
      MakeRequest("", shape, oracle::RandomInputs(shape, 1));
  MoveToRegion("r", 0, &object_, &request);
  std::atomic<bool> stop = false;
  std::thread shrink([&] {
    while (!stop) {
      object_.Truncate(4096);
      object_.Truncate(kObjectBytes);
      std::this_thread::yield();
    }
  });
  int failed = 0;
  for (int i = 0; i < 200; ++i) {
    v1::AttentionResponse response;
    const grpc::Status status = client_->Attend(request, &response);
    EXPECT_THAT(status.error_code(),
                AnyOf(Eq(grpc::StatusCode::OK),
                      Eq(grpc::StatusCode::FAILED_PRECONDITION)))
        << status.error_message();
    if (!status.ok()) ++failed;
  }
  stop = true;
  shrink.join();
  EXPECT_GT(failed, 0);
  EXPECT_EQ(server_.Generation(), generation) << server_.Log();
  object_.Truncate(kObjectBytes);
  EXPECT_EQ(GoodCall(client_.get(), "r", &object_), "");
}

TEST_P(MemoryPlaneTest, AWorkerThatCameLaterGetsTheRegionWithItsFirstCall) {
  ASSERT_TRUE(client_->Register("r", object_).ok());
  const uint64_t generation = server_.Generation();
  kill(server_.WorkerPids().back(), SIGKILL);
  ASSERT_TRUE(AwaitTrue([&] {
    return server_.Generation() > generation &&
           server_.Get("/readyz").code == 200;
  })) << server_.Log();
  ASSERT_TRUE(AwaitTrue([&] {
    return GoodCall(client_.get(), "r", &object_).empty();
  })) << server_.Log();
  EXPECT_EQ(WorkersDescriptors(object_.name()), GetParam());
  ASSERT_TRUE(client_->Unregister("r").ok());
  EXPECT_EQ(WorkersDescriptors(object_.name()), 0);
}

// Another process that registers, calls for ever, and is killed.
TEST(MemoryPlaneChild, DISABLED_CallsUntilItIsKilled) {
  const char* const address = getenv(kAddressVariable);
  const char* const object_name = getenv(kObjectVariable);
  ASSERT_TRUE(address != nullptr && object_name != nullptr);
  MemoryClient client(address);
  TestObject object(object_name, kObjectBytes);
  ASSERT_TRUE(client.Register("child", object).ok());
  v1::AttentionRequest request = GoodRequest("");
  MoveToRegion("child", 0, &object, &request);
  for (;;) {
    v1::AttentionResponse response;
    client.Attend(request, &response);
  }
}

pid_t StartChild(const std::string& address, const std::string& object_name) {
  setenv(kAddressVariable, address.c_str(), 1);
  setenv(kObjectVariable, object_name.c_str(), 1);
  const char* argv[] = {"/proc/self/exe", "--gtest_also_run_disabled_tests",
                        "--gtest_filter=MemoryPlaneChild.*", nullptr};
  pid_t pid = 0;
  EXPECT_EQ(posix_spawn(&pid, argv[0], nullptr, nullptr,
                        const_cast<char**>(argv), environ),
            0);
  return pid;
}

TEST_P(MemoryPlaneTest, AKilledClientLeavesNothingBehind) {
  ASSERT_TRUE(client_->Register("r", object_).ok());
  const uint64_t generation = server_.Generation();
  const std::string childs_object = FreshObjectName();
  const pid_t child = StartChild(server_.address(), childs_object);
  const double before =
      server_.Metric(R"(ithaca_requests_total{code="OK",method="Attention"})");
  ASSERT_TRUE(AwaitTrue([&] {
    return server_.Metric(
               R"(ithaca_requests_total{code="OK",method="Attention"})") >
           before + 10;
  }));
  EXPECT_TRUE(TestObject::Exists(childs_object));
  EXPECT_EQ(WorkersDescriptors(childs_object), GetParam());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(AwaitTrue([&] {
    return server_.Metric("ithaca_leases") == 1 &&
           server_.Metric("ithaca_memory_regions{kind=\"shared\"}") == 1;
  }));
  EXPECT_FALSE(TestObject::Exists(childs_object));
  EXPECT_EQ(WorkersDescriptors(childs_object), 0);
  EXPECT_EQ(server_.Metric("ithaca_leases_expired_total"), 1);
  EXPECT_EQ(server_.Generation(), generation);
  EXPECT_EQ(GoodCall(client_.get(), "r", &object_), "");
  client_.reset();
  EXPECT_TRUE(AwaitNoLeases());
}

TEST_P(MemoryPlaneTest, ADrainingServerEndsLeasesAndItself) {
  ASSERT_TRUE(client_->Register("r", object_).ok());
  server_.Signal(SIGTERM);
  EXPECT_EQ(server_.AwaitExit(), 0);
  EXPECT_TRUE(TestObject::Exists(object_.name()));
}

}  // namespace
}  // namespace ithaca
