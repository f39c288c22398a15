#include "worker/call_conversion.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

internal::v1::AttentionCall SomeCall() {
  internal::v1::AttentionCall call;
  call.set_call_number(7);
  call.set_plan_fingerprint(99);
  call.set_dtype(ithaca::v1::DATA_TYPE_BFLOAT16);
  call.set_batch(2);
  call.set_image_tokens(10);
  call.set_text_tokens(4);
  call.add_valid_text_tokens(4);
  call.add_valid_text_tokens(1);
  call.set_order(ithaca::v1::TOKEN_ORDER_TEXT_FIRST);
  call.set_image_queries_only(true);
  call.set_num_heads(8);
  call.set_num_kv_heads(2);
  call.set_head_dim(64);
  call.set_softmax_scale(0.5);
  call.set_communication_precision(ithaca::v1::COMMUNICATION_PRECISION_INT8);
  call.set_head_schedule(ithaca::v1::HEAD_SCHEDULE_PER_HEAD);
  call.set_kernel(ithaca::v1::ATTENTION_KERNEL_FLASH);
  call.set_return_text_output(true);
  return call;
}

TEST(ToRankCallTest, EveryFieldArrives) {
  const absl::StatusOr<RankCall> call = ToRankCall(SomeCall());
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->number, 7u);
  EXPECT_EQ(call->plan_fingerprint, 99u);
  EXPECT_TRUE(call->return_text_output);
  EXPECT_EQ(call->shape.dtype, DataType::kBFloat16);
  EXPECT_EQ(call->shape.batch, 2);
  EXPECT_EQ(call->shape.image_tokens, 10);
  EXPECT_EQ(call->shape.text_tokens, 4);
  EXPECT_THAT(call->shape.valid_text_tokens, ElementsAre(4, 1));
  EXPECT_EQ(call->shape.order, TokenOrder::kTextFirst);
  EXPECT_TRUE(call->shape.image_queries_only);
  EXPECT_EQ(call->shape.num_heads, 8);
  EXPECT_EQ(call->shape.num_kv_heads, 2);
  EXPECT_EQ(call->shape.head_dim, 64);
  EXPECT_EQ(call->options.softmax_scale, 0.5);
  EXPECT_EQ(call->options.precision, CommunicationPrecision::kInt8);
  EXPECT_EQ(call->options.schedule, HeadSchedule::kPerHead);
  EXPECT_EQ(call->options.kernel, AttentionKernelKind::kFlash);
}

TEST(ToRankCallTest, TensorsInRegionsAreNamed) {
  internal::v1::AttentionCall message = SomeCall();
  internal::v1::RegionSlice* query = message.mutable_query_region();
  query->set_offset(64);
  query->set_byte_size(128);
  query->mutable_region()->set_id(5);
  query->mutable_region()->set_byte_size(1024);
  internal::v1::SharedMemory* shared =
      query->mutable_region()->mutable_shared();
  shared->set_object_name("/an-object");
  shared->set_offset(4096);
  shared->set_device_number(3);
  shared->set_inode(4);
  internal::v1::Region* output =
      message.mutable_output_region()->mutable_region();
  output->set_id(6);
  output->mutable_cuda()->set_ipc_handle("a handle");
  output->mutable_cuda()->set_device_uuid("GPU-1");
  output->mutable_cuda()->set_offset(512);

  absl::StatusOr<RankCall> call = ToRankCall(message);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->query->offset, 64u);
  EXPECT_EQ(call->query->byte_size, 128u);
  EXPECT_EQ(call->query->region,
            (Region{5, 1024, SharedMemoryObject{"/an-object", 4096, 3, 4}}));
  EXPECT_EQ(call->output->region,
            (Region{6, 0, CudaAllocation{"a handle", "GPU-1", 512}}));
  EXPECT_FALSE(call->key.has_value());
  EXPECT_FALSE(call->value.has_value());

  message.mutable_key_region();
  call = ToRankCall(message);
  EXPECT_EQ(call.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ToRankCallTest, UnspecifiedAndUnknownEnumsAreNamed) {
  internal::v1::AttentionCall call = SomeCall();
  call.clear_order();
  absl::Status status = ToRankCall(call).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("call.order"));

  call = SomeCall();
  call.set_dtype(static_cast<ithaca::v1::DataType>(99));
  status = ToRankCall(call).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("call.dtype"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("99"));
}

TEST(RankExecutionTest, EveryStageIsThereByName) {
  RankResult result;
  result.report.kernel = AttentionKernelKind::kMath;
  result.report.communication_bytes = 1234;
  result.report.stage_seconds[static_cast<size_t>(Stage::kUnpack)] = 0.25;
  result.total_seconds = 2;
  const internal::v1::RankExecution execution = ToProto(result);
  EXPECT_EQ(execution.kernel(), ithaca::v1::ATTENTION_KERNEL_MATH);
  EXPECT_EQ(execution.communication_bytes(), 1234u);
  EXPECT_EQ(execution.total_seconds(), 2);
  EXPECT_EQ(execution.stage_seconds_size(), 9);
  EXPECT_EQ(execution.stage_seconds().at("unpack"), 0.25);
  EXPECT_EQ(execution.stage_seconds().at("output_all_to_all"), 0);
}

}  // namespace
}  // namespace ithaca
