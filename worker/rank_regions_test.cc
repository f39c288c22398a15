// Calls whose tensors lie in a client's shared memory, over real servers.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/sequence_parallel_plan.h"
#include "gtest/gtest.h"
#include "tests/oracle/attention_oracle.h"
#include "tests/oracle/tensor_data.h"
#include "worker/rank_test_server.h"
#include "worker/shared_memory_test_object.h"

namespace ithaca {
namespace {

using internal::v1::AttentionCall;
using internal::v1::RankRefusal;
using internal::v1::RegionSlice;
using internal::v1::RunAttentionRequest;
using internal::v1::RunAttentionResponse;
using internal::v1::StreamRankRequest;
using internal::v1::StreamRankResponse;

constexpr int kWorldSize = 2;
// Around each tensor: what no rank may write to.
constexpr size_t kGuard = 24;

SequenceParallelPlan Plan(int64_t batch, TokenOrder order) {
  AttentionShape shape;
  shape.batch = batch;
  shape.image_tokens = 7;
  shape.text_tokens = 3;
  shape.valid_text_tokens.assign(static_cast<size_t>(batch), 2);
  shape.order = order;
  shape.num_heads = 4;
  shape.num_kv_heads = 2;
  shape.head_dim = 8;
  AttentionOptions options;
  options.softmax_scale = oracle::DefaultScale(shape);
  return *MakeSequenceParallelPlan(shape, options, kWorldSize);
}

// A call's four tensors in one object, in one region.
class CallMemory {
 public:
  CallMemory(const SequenceParallelPlan& plan, uint64_t id)
      : plan_(plan),
        id_(id),
        inputs_(oracle::RandomInputs(plan.shape, id)),
        object_(Guard() + inputs_.query + Guard() + inputs_.key + Guard() +
                inputs_.value + Guard() +
                std::string(inputs_.query.size(), 'o') + Guard()) {}

  AttentionCall Call(int rank) const {
    AttentionCall call = MakeTestCall(plan_, rank);
    *call.mutable_query_region() = Slice(0, inputs_.query.size());
    *call.mutable_key_region() = Slice(1, inputs_.key.size());
    *call.mutable_value_region() = Slice(2, inputs_.value.size());
    *call.mutable_output_region() = Slice(3, inputs_.query.size());
    return call;
  }

  void ExpectRightOutput() {
    const std::string bytes = object_.Bytes();
    const size_t output = Offset(3);
    EXPECT_LE(oracle::RelativeL2Error(
                  oracle::Decode(DataType::kFloat32,
                                 bytes.substr(output, inputs_.query.size())),
                  oracle::Attention(
                      plan_.shape, oracle::DefaultScale(plan_.shape), inputs_)),
              oracle::AcceptedError(DataType::kFloat32));
    EXPECT_EQ(bytes.substr(0, output), Guard() + inputs_.query + Guard() +
                                           inputs_.key + Guard() +
                                           inputs_.value + Guard());
    EXPECT_EQ(bytes.substr(output + inputs_.query.size()), Guard());
  }

  const oracle::CallInputs& inputs() const { return inputs_; }
  SharedMemoryTestObject* object() { return &object_; }
  uint64_t id() const { return id_; }

  internal::v1::Region Region() const {
    internal::v1::Region region;
    region.set_id(id_);
    region.set_byte_size(Offset(3) + inputs_.query.size());
    const SharedMemoryObject object = object_.Object();
    region.mutable_shared()->set_object_name(object.name);
    region.mutable_shared()->set_device_number(object.device_number);
    region.mutable_shared()->set_inode(object.inode);
    return region;
  }

 private:
  static std::string Guard() { return std::string(kGuard, 'g'); }

  size_t Offset(int tensor) const {
    return kGuard + static_cast<size_t>(tensor) * kGuard +
           (tensor > 0 ? inputs_.query.size() : 0) +
           (tensor > 1 ? inputs_.key.size() : 0) +
           (tensor > 2 ? inputs_.value.size() : 0);
  }

  RegionSlice Slice(int tensor, size_t size) const {
    RegionSlice slice;
    *slice.mutable_region() = Region();
    slice.set_offset(Offset(tensor));
    slice.set_byte_size(size);
    return slice;
  }

  const SequenceParallelPlan plan_;
  const uint64_t id_;
  const oracle::CallInputs inputs_;
  SharedMemoryTestObject object_;
};

class RankRegionsTest : public ::testing::Test {
 protected:
  RankRegionsTest() {
    for (int rank = 0; rank < kWorldSize; ++rank) {
      servers_[rank].StartSession(group_, rank);
    }
  }

  // A call without inline tensors on all ranks.
  std::vector<grpc::Status> Run(const CallMemory& memory) {
    ++number_;
    std::vector<grpc::Status> statuses(kWorldSize);
    std::vector<std::thread> callers;
    for (int rank = 0; rank < kWorldSize; ++rank) {
      callers.emplace_back([&, rank] {
        RunAttentionRequest request;
        *request.mutable_call() = memory.Call(rank);
        request.mutable_call()->set_call_number(number_);
        RunAttentionResponse response;
        statuses[static_cast<size_t>(rank)] =
            servers_[rank].Run(request, &response);
        EXPECT_EQ(response.output(), "");
      });
    }
    for (std::thread& caller : callers) caller.join();
    return statuses;
  }

  void ExpectCallRuns() {
    CallMemory memory(Plan(1, TokenOrder::kImageFirst), 1'000'000 + number_);
    for (const grpc::Status& status : Run(memory)) {
      EXPECT_TRUE(status.ok()) << status.error_message();
    }
    memory.ExpectRightOutput();
  }

  uint64_t number_ = 0;
  const std::shared_ptr<InProcessGroup> group_ =
      std::make_shared<InProcessGroup>(kWorldSize);
  RankTestServer servers_[kWorldSize];
};

TEST_F(RankRegionsTest, EachRankReadsAndWritesItsOwnRows) {
  uint64_t id = 0;
  for (const int64_t batch : {1, 2}) {
    for (const TokenOrder order :
         {TokenOrder::kImageFirst, TokenOrder::kTextFirst}) {
      CallMemory memory(Plan(batch, order), ++id);
      for (const grpc::Status& status : Run(memory)) {
        ASSERT_TRUE(status.ok()) << status.error_message();
      }
      memory.ExpectRightOutput();
    }
  }
}

TEST_F(RankRegionsTest, AStreamMayBringWhatIsInNoRegion) {
  const SequenceParallelPlan plan = Plan(1, TokenOrder::kImageFirst);
  CallMemory memory(plan, 1);
  std::vector<std::thread> callers;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    callers.emplace_back([&, rank] {
      grpc::ClientContext context;
      auto stream = servers_[rank].stub()->StreamAttention(&context);
      StreamRankRequest request;
      *request.mutable_open() = memory.Call(rank);
      request.mutable_open()->clear_query_region();
      stream->Write(request);
      const Range share = plan.ranks[static_cast<size_t>(rank)].image_tokens;
      const size_t row = 4 * 8 * 4;
      const std::string& query = memory.inputs().query;
      request.mutable_chunk()->set_data(
          query.substr(static_cast<size_t>(share.begin) * row,
                       static_cast<size_t>(share.size) * row) +
          query.substr(7 * row));
      stream->Write(request);
      request.mutable_run()->set_call_number(1);
      stream->Write(request);
      StreamRankResponse response;
      EXPECT_TRUE(stream->Read(&response));
      EXPECT_TRUE(response.has_execution());
      EXPECT_FALSE(stream->Read(&response));  // no output
      const grpc::Status status = stream->Finish();
      EXPECT_TRUE(status.ok()) << status.error_message();
    });
  }
  for (std::thread& caller : callers) caller.join();
  memory.ExpectRightOutput();
}

void ExpectRefusal(const std::vector<grpc::Status>& statuses,
                   grpc::StatusCode code) {
  for (const grpc::Status& status : statuses) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    RankRefusal refusal;
    ASSERT_TRUE(refusal.ParseFromString(status.error_details()));
    EXPECT_EQ(refusal.when(), RankRefusal::BEFORE_EXCHANGES);
    EXPECT_TRUE(refusal.own_reason());
  }
}

TEST_F(RankRegionsTest, WhatIsWrongWithARegionRefusesTheCallAndNoMore) {
  const SequenceParallelPlan plan = Plan(1, TokenOrder::kImageFirst);
  CallMemory shrunk(plan, 1);
  EXPECT_TRUE(Run(shrunk)[0].ok());
  shrunk.object()->Truncate(shrunk.object()->size() / 2);
  ExpectRefusal(Run(shrunk), grpc::StatusCode::FAILED_PRECONDITION);
  ExpectCallRuns();

  // Not attached while it was whole.
  CallMemory small(plan, 2);
  small.object()->Truncate(100);
  ExpectRefusal(Run(small), grpc::StatusCode::INVALID_ARGUMENT);
  ExpectCallRuns();
}

TEST_F(RankRegionsTest, OneRanksTroubleIsEveryRanksRefusal) {
  CallMemory memory(Plan(1, TokenOrder::kImageFirst), 1);
  std::vector<grpc::Status> statuses(kWorldSize);
  std::vector<std::thread> callers;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    callers.emplace_back([&, rank] {
      RunAttentionRequest request;
      *request.mutable_call() = memory.Call(rank);
      request.mutable_call()->set_call_number(1);
      if (rank == 1) {
        internal::v1::Region* region =
            request.mutable_call()->mutable_key_region()->mutable_region();
        region->set_id(2);
        region->mutable_shared()->set_inode(1);
      }
      RunAttentionResponse response;
      statuses[static_cast<size_t>(rank)] =
          servers_[rank].Run(request, &response);
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (int rank = 0; rank < kWorldSize; ++rank) {
    const grpc::Status& status = statuses[static_cast<size_t>(rank)];
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
    RankRefusal refusal;
    ASSERT_TRUE(refusal.ParseFromString(status.error_details()));
    EXPECT_EQ(refusal.own_reason(), rank == 1);
  }
  number_ = 1;
  ExpectCallRuns();
}

TEST_F(RankRegionsTest, AnObjectThatShrinksAndGrowsDuringCallsHarmsNoRank) {
  const SequenceParallelPlan plan = Plan(2, TokenOrder::kImageFirst);
  CallMemory memory(plan, 1);
  const int64_t size = memory.object()->size();
  std::atomic<bool> ended{false};
  std::thread client([&] {
    while (!ended) {
      memory.object()->Truncate(0);
      memory.object()->Truncate(size);
    }
  });
  for (int i = 0; i < 100; ++i) {
    for (const grpc::Status& status : Run(memory)) {
      RankRefusal refusal;
      EXPECT_TRUE(status.ok() ||
                  (refusal.ParseFromString(status.error_details()) &&
                   refusal.when() != RankRefusal::WHEN_UNSPECIFIED))
          << status.error_message();
    }
  }
  ended = true;
  client.join();
  ExpectCallRuns();
}

TEST_F(RankRegionsTest, RegionsAreAttachedAndDetachedOnRequest) {
  CallMemory memory(Plan(1, TokenOrder::kImageFirst), 1);
  grpc::ClientContext attach, detach, again, missing;
  internal::v1::AttachRegionRequest request;
  internal::v1::AttachRegionResponse response;
  *request.mutable_region() = memory.Region();
  EXPECT_TRUE(
      servers_[0].stub()->AttachRegion(&attach, request, &response).ok());
  for (const grpc::Status& status : Run(memory)) EXPECT_TRUE(status.ok());
  internal::v1::DetachRegionRequest detach_request;
  internal::v1::DetachRegionResponse detach_response;
  detach_request.set_region_id(memory.id());
  for (grpc::ClientContext* context : {&detach, &again}) {
    EXPECT_TRUE(servers_[0]
                    .stub()
                    ->DetachRegion(context, detach_request, &detach_response)
                    .ok());
  }
  request.mutable_region()->mutable_shared()->set_object_name("/ithaca-none");
  request.mutable_region()->set_id(2);
  EXPECT_EQ(servers_[0]
                .stub()
                ->AttachRegion(&missing, request, &response)
                .error_code(),
            grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace ithaca
