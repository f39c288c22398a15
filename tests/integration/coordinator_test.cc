// The service as its users meet it: the real coordinator, with real workers.

#include <gmock/gmock.h>
#include <grpcpp/support/status.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/attention_call.h"
#include "ithaca/v1/attention.grpc.pb.h"
#include "tests/integration/attention_requests.h"
#include "tests/integration/coordinator_process.h"
#include "tests/oracle/attention_oracle.h"
#include "tests/oracle/tensor_data.h"

namespace ithaca {
namespace {

using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;

// Coordinators that tests share, by their number of workers; they end with the
// tests.
class SharedCoordinators : public ::testing::Environment {
 public:
  CoordinatorProcess* Get(int workers) {
    auto& process = processes_[workers];
    if (process == nullptr) {
      process = std::make_unique<CoordinatorProcess>(
          std::vector<std::string>{"--local-workers=" + std::to_string(workers),
                                   "--max-message-bytes=32MiB"});
      if (!process->AwaitReady()) ADD_FAILURE() << process->Log();
    }
    return process.get();
  }
  void TearDown() override { processes_.clear(); }

 private:
  std::map<int, std::unique_ptr<CoordinatorProcess>> processes_;
};

auto* const kSharedCoordinators = static_cast<SharedCoordinators*>(
    ::testing::AddGlobalTestEnvironment(new SharedCoordinators));

void ExpectGood(CoordinatorProcess* server, double base = 0) {
  v1::AttentionResponse response;
  const grpc::Status status =
      server->Call(GoodRequest("good", base), &response);
  ASSERT_TRUE(status.ok()) << status.error_message() << server->Log();
  EXPECT_EQ(WhatIsWrong(response, base), "");
}

class CoordinatorTest : public ::testing::TestWithParam<int> {
 protected:
  CoordinatorProcess* server() { return kSharedCoordinators->Get(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Workers, CoordinatorTest, ::testing::Values(2, 4));

TEST_P(CoordinatorTest, NumbersAreTheOracles) {
  uint64_t seed = 0;
  for (const auto dtype :
       {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    for (const auto order : {TokenOrder::kImageFirst, TokenOrder::kTextFirst}) {
      for (const int64_t image : {1, 7, 64}) {
        for (const int64_t text : {0, 5}) {
          for (const int64_t batch : {1, 2}) {
            AttentionShape shape;
            shape.dtype = dtype;
            shape.batch = batch;
            shape.image_tokens = image;
            shape.text_tokens = text;
            shape.valid_text_tokens.assign(static_cast<size_t>(batch), text);
            shape.valid_text_tokens[0] = text / 2;
            shape.order = order;
            shape.image_queries_only = ++seed % 3 == 0;
            shape.num_heads = seed % 2 == 0 ? 6 : 8;
            shape.num_kv_heads = 2;
            shape.head_dim = 24;
            const auto inputs = oracle::RandomInputs(shape, seed);
            v1::AttentionRequest request = MakeRequest("", shape, inputs);
            request.mutable_options()->set_head_schedule(
                seed % 4 < 2 ? v1::HEAD_SCHEDULE_FUSED
                             : v1::HEAD_SCHEDULE_PER_HEAD);
            v1::AttentionResponse response;
            const grpc::Status status = server()->Call(request, &response);
            ASSERT_TRUE(status.ok()) << status.error_message();
            EXPECT_EQ(response.output().dtype(), request.query().dtype());
            EXPECT_EQ(std::vector<int64_t>(response.output().shape().begin(),
                                           response.output().shape().end()),
                      std::vector<int64_t>(request.query().shape().begin(),
                                           request.query().shape().end()));
            EXPECT_LE(oracle::RelativeL2Error(
                          oracle::Decode(dtype, response.output().data()),
                          oracle::Attention(shape, oracle::DefaultScale(shape),
                                            inputs)),
                      oracle::AcceptedError(dtype))
                << request.ShortDebugString().substr(0, 200);
          }
        }
      }
    }
  }
}

TEST_P(CoordinatorTest, Float32IsNeverCutToLess) {
  AttentionShape shape;
  shape.image_tokens = 2;
  shape.valid_text_tokens = {0};
  shape.num_heads = 2;
  shape.num_kv_heads = 2;
  shape.head_dim = 8;
  const auto inputs =
      oracle::ZeroInputs(shape, [](int64_t, int64_t t, int64_t, int64_t) {
        return t == 0 ? 1.0 : 1.0 + std::ldexp(1.0, -20);
      });
  v1::AttentionResponse response;
  ASSERT_TRUE(server()->Call(MakeRequest("", shape, inputs), &response).ok());
  for (const double value :
       oracle::Decode(shape.dtype, response.output().data())) {
    EXPECT_NEAR(value, 1.00000047684, 1.2e-7);
  }
}

TEST_P(CoordinatorTest, TheReportSaysWhatHappened) {
  v1::AttentionResponse response;
  ASSERT_TRUE(server()->Call(GoodRequest("reported"), &response).ok());
  EXPECT_EQ(response.request_id(), "reported");
  const v1::ExecutionReport& report = response.report();
  EXPECT_EQ(report.world_size(), static_cast<uint32_t>(GetParam()));
  EXPECT_EQ(report.group_generation(), server()->Generation());
  EXPECT_NE(report.kernel(), v1::ATTENTION_KERNEL_UNSPECIFIED);
  EXPECT_EQ(report.communication_precision(),
            v1::COMMUNICATION_PRECISION_NATIVE);
  EXPECT_GT(report.communication_bytes(), 0u);
  EXPECT_GT(report.total_seconds(), report.queue_seconds());
  for (const char* stage :
       {"scatter", "pack", "all_to_all", "unpack", "attention", "output_pack",
        "output_all_to_all", "output_unpack", "gather"}) {
    EXPECT_TRUE(report.stage_seconds().contains(stage)) << stage;
  }
}

TEST_P(CoordinatorTest, BadInputIsRefusedByNameAndTheNextGoodCallIsRight) {
  struct BadInput {
    const char* name;
    std::function<void(v1::AttentionRequest*)> spoil;
    grpc::StatusCode code;
    const char* part;
  };
  const auto invalid = grpc::StatusCode::INVALID_ARGUMENT;
  const std::vector<BadInput> inputs = {
      {"a byte less",
       [](auto* r) { r->mutable_query()->mutable_data()->pop_back(); }, invalid,
       "query.data"},
      {"no bytes", [](auto* r) { r->mutable_value()->set_data(""); }, invalid,
       "value.data"},
      {"2^70 bytes",
       [](auto* r) {
         for (auto* t :
              {r->mutable_query(), r->mutable_key(), r->mutable_value()}) {
           t->set_shape(1, int64_t{1} << 31);
           t->set_shape(2, int64_t{1} << 31);
           t->set_shape(3, 256);
           t->set_data("");
         }
       },
       invalid, "query"},
      {"mixed types",
       [](auto* r) { r->mutable_key()->set_dtype(v1::DATA_TYPE_BFLOAT16); },
       invalid, "key.dtype"},
      {"no type",
       [](auto* r) {
         r->mutable_query()->set_dtype(v1::DATA_TYPE_UNSPECIFIED);
       },
       invalid, "query.dtype"},
      {"rank 2",
       [](auto* r) { r->mutable_query()->mutable_shape()->Truncate(2); },
       invalid, "rank 2"},
      {"rank 5", [](auto* r) { r->mutable_key()->add_shape(1); }, invalid,
       "rank 5"},
      {"a negative dim", [](auto* r) { r->mutable_query()->set_shape(1, -1); },
       invalid, "query.shape[1]"},
      {"a zero dim", [](auto* r) { r->mutable_value()->set_shape(2, 0); },
       invalid, "value.shape[2]"},
      {"valid text over text",
       [](auto* r) { r->mutable_layout()->set_valid_text_tokens(0, 3); },
       invalid, "valid_text_tokens"},
      {"text over the sequence",
       [](auto* r) { r->mutable_layout()->set_text_tokens(8); }, invalid,
       "layout.text_tokens"},
      {"an unknown order",
       [](auto* r) {
         r->mutable_layout()->set_order(static_cast<v1::TokenOrder>(9));
       },
       invalid, "layout.order"},
      {"an unknown precision",
       [](auto* r) {
         r->mutable_options()->set_communication_precision(
             static_cast<v1::CommunicationPrecision>(9));
       },
       invalid, "communication_precision"},
      {"an infinite scale",
       [](auto* r) { r->mutable_options()->set_softmax_scale(INFINITY); },
       invalid, "softmax_scale"},
      {"a long id", [](auto* r) { r->set_request_id(std::string(257, 'x')); },
       invalid, "request_id"},
      {"a kernel of GPUs",
       [](auto* r) {
         r->mutable_options()->set_kernel(v1::ATTENTION_KERNEL_CUDNN);
       },
       grpc::StatusCode::UNIMPLEMENTED, "cudnn"},
      {"a memory slice",
       [](auto* r) { r->mutable_query()->mutable_memory()->set_region("r"); },
       grpc::StatusCode::UNIMPLEMENTED, "memory"},
      {"a message over the limit",
       [](auto* r) {
         r->mutable_query()->set_data(std::string(33 << 20, 'x'));
       },
       grpc::StatusCode::RESOURCE_EXHAUSTED, ""},
  };
  for (const BadInput& bad : inputs) {
    v1::AttentionRequest request = GoodRequest("bad");
    bad.spoil(&request);
    v1::AttentionResponse response;
    const grpc::Status status = server()->Call(request, &response);
    EXPECT_EQ(status.error_code(), bad.code)
        << bad.name << ": " << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(bad.part)) << bad.name;
    ExpectGood(server());
  }
}

TEST_P(CoordinatorTest, TensorsPastGrpcsDefaultLimitAreOrdinary) {
  // Nearly all of it is padding, so that it is large and quickly computed.
  AttentionShape shape;
  shape.dtype = DataType::kBFloat16;
  shape.image_tokens = 16;
  shape.text_tokens = 20464;
  shape.valid_text_tokens = {0};
  shape.num_heads = 1;
  shape.num_kv_heads = 1;
  shape.head_dim = 128;
  const auto inputs = oracle::ZeroInputs(
      shape, [](int64_t, int64_t t, int64_t, int64_t) { return t % 2; });
  ASSERT_EQ(inputs.key.size(), 5242880u);
  v1::AttentionResponse response;
  const grpc::Status status =
      server()->Call(MakeRequest("", shape, inputs), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const auto output = oracle::Decode(shape.dtype, response.output().data());
  ASSERT_EQ(output.size(), size_t{20480} * 128);
  for (size_t i = 0; i < output.size(); ++i) {
    ASSERT_EQ(output[i], i < size_t{16} * 128 ? 0.5 : 0.0) << i;
  }
}

TEST_P(CoordinatorTest, HealthServesAndMetricsAreParsable) {
  EXPECT_EQ(server()->Health(""), 1);
  EXPECT_EQ(server()->Health("ithaca.v1.AttentionService"), 1);
  EXPECT_EQ(server()->Get("/livez").code, 200);
  EXPECT_EQ(server()->Get("/readyz").code, 200);
  EXPECT_EQ(server()->Metric("ithaca_groups{state=\"ready\"}"), 1);
  EXPECT_EQ(server()->Metric("ithaca_workers{state=\"in_group\"}"), GetParam());
  const double before = server()->Metric(
      R"(ithaca_requests_total{code="OK",method="Attention"})");
  ExpectGood(server());
  EXPECT_EQ(server()->Metric(
                R"(ithaca_requests_total{code="OK",method="Attention"})"),
            before + 1);
  EXPECT_EQ(server()->Metric("ithaca_in_flight_requests"), 0);
}

TEST_P(CoordinatorTest, AKilledWorkerIsReplacedAndTheGroupServesAgain) {
  CoordinatorProcess* const process = server();
  ExpectGood(process);
  const uint64_t generation = process->Generation();
  const std::vector<pid_t> workers = process->WorkerPids();
  ASSERT_EQ(workers.size(), static_cast<size_t>(GetParam()));
  kill(workers[1], SIGKILL);
  // Until the group is back each call ends at once, one way or the other.
  ASSERT_TRUE(AwaitTrue([&] { return process->Generation() > generation; }))
      << process->Log();
  ASSERT_TRUE(AwaitTrue([&] {
    v1::AttentionResponse response;
    const grpc::Status status = process->Call(GoodRequest("again"), &response);
    EXPECT_THAT(status.error_code(), AnyOf(Eq(grpc::StatusCode::OK),
                                           Eq(grpc::StatusCode::UNAVAILABLE)))
        << status.error_message();
    return status.ok();
  })) << process->Log();
  ExpectGood(process, 50);
  EXPECT_EQ(process->Health(""), 1);
  EXPECT_GE(
      process->Metric("ithaca_group_failures_total{reason=\"worker_lost\"}"),
      1);
}

}  // namespace
}  // namespace ithaca
