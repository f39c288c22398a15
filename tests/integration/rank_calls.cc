#include "tests/integration/rank_calls.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstring>
#include <thread>

namespace ithaca::testing {
namespace {

using internal::v1::RunAttentionRequest;
using internal::v1::RunAttentionResponse;

// Rows [begin, begin + count) of the token axis of [B, tokens, row bytes].
std::string Tokens(const std::string& tensor, int64_t batch, int64_t tokens,
                   int64_t row_bytes, int64_t begin, int64_t count) {
  std::string rows;
  for (int64_t b = 0; b < batch; ++b) {
    rows += tensor.substr(static_cast<size_t>((b * tokens + begin) * row_bytes),
                          static_cast<size_t>(count * row_bytes));
  }
  return rows;
}

// Where image and text begin on the caller's token axis.
struct Origin {
  int64_t image = 0;
  int64_t text = 0;
};

Origin OriginOf(const AttentionShape& shape, int64_t text_tokens) {
  if (shape.order == TokenOrder::kTextFirst) return {text_tokens, 0};
  return {0, shape.image_tokens};
}

ithaca::v1::DataType ToProto(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
      return ithaca::v1::DATA_TYPE_FLOAT32;
    case DataType::kFloat16:
      return ithaca::v1::DATA_TYPE_FLOAT16;
    case DataType::kBFloat16:
      return ithaca::v1::DATA_TYPE_BFLOAT16;
  }
  return ithaca::v1::DATA_TYPE_UNSPECIFIED;
}

}  // namespace

RunAttentionRequest MakeRankRequest(const SequenceParallelPlan& plan,
                                    uint64_t generation, uint64_t call_number,
                                    const oracle::CallInputs& inputs,
                                    int rank) {
  const AttentionShape& shape = plan.shape;
  RunAttentionRequest request;
  internal::v1::AttentionCall* call = request.mutable_call();
  call->set_request_id("test");
  call->set_generation(generation);
  call->set_call_number(call_number);
  call->set_plan_fingerprint(plan.Fingerprint());
  call->set_dtype(ToProto(shape.dtype));
  call->set_batch(shape.batch);
  call->set_image_tokens(shape.image_tokens);
  call->set_text_tokens(shape.text_tokens);
  for (int64_t valid : shape.valid_text_tokens) {
    call->add_valid_text_tokens(valid);
  }
  call->set_order(shape.order == TokenOrder::kTextFirst
                      ? ithaca::v1::TOKEN_ORDER_TEXT_FIRST
                      : ithaca::v1::TOKEN_ORDER_IMAGE_FIRST);
  call->set_image_queries_only(shape.image_queries_only);
  call->set_num_heads(shape.num_heads);
  call->set_num_kv_heads(shape.num_kv_heads);
  call->set_head_dim(shape.head_dim);
  call->set_softmax_scale(plan.options.softmax_scale);
  call->set_communication_precision(ithaca::v1::COMMUNICATION_PRECISION_NATIVE);
  call->set_head_schedule(plan.options.schedule == HeadSchedule::kPerHead
                              ? ithaca::v1::HEAD_SCHEDULE_PER_HEAD
                              : ithaca::v1::HEAD_SCHEDULE_FUSED);
  call->set_kernel(ithaca::v1::ATTENTION_KERNEL_AUTO);
  call->set_return_text_output(rank == plan.world_size - 1);

  const Range image = plan.ranks[static_cast<size_t>(rank)].image_tokens;
  const int64_t element = ByteSize(shape.dtype) * shape.head_dim;
  const int64_t query_row = element * shape.num_heads;
  const int64_t key_row = element * shape.num_kv_heads;
  const Origin query = OriginOf(shape, shape.text_query_tokens());
  const Origin key = OriginOf(shape, shape.text_tokens);
  std::string* tensors = request.mutable_tensors();
  *tensors += Tokens(inputs.query, shape.batch, shape.query_tokens(), query_row,
                     query.image + image.begin, image.size);
  for (const std::string* tensor : {&inputs.key, &inputs.value}) {
    *tensors += Tokens(*tensor, shape.batch, shape.key_tokens(), key_row,
                       key.image + image.begin, image.size);
  }
  *tensors += Tokens(inputs.query, shape.batch, shape.query_tokens(), query_row,
                     query.text, shape.text_query_tokens());
  for (const std::string* tensor : {&inputs.key, &inputs.value}) {
    *tensors += Tokens(*tensor, shape.batch, shape.key_tokens(), key_row,
                       key.text, shape.text_tokens);
  }
  return request;
}

std::string JoinOutputs(const SequenceParallelPlan& plan,
                        const std::vector<RunAttentionResponse>& responses) {
  const AttentionShape& shape = plan.shape;
  const int64_t row = ByteSize(shape.dtype) * shape.head_dim * shape.num_heads;
  const Origin origin = OriginOf(shape, shape.text_query_tokens());
  std::string output(
      static_cast<size_t>(shape.batch * shape.query_tokens() * row), '\0');
  auto put = [&](const std::string& from, int64_t from_row, int64_t b,
                 int64_t to_token, int64_t count) {
    std::memcpy(&output[static_cast<size_t>(
                    (b * shape.query_tokens() + to_token) * row)],
                from.data() + from_row * row, static_cast<size_t>(count * row));
  };
  for (size_t rank = 0; rank < responses.size(); ++rank) {
    const Range image = plan.ranks[rank].image_tokens;
    for (int64_t b = 0; b < shape.batch; ++b) {
      put(responses[rank].output(), b * image.size, b,
          origin.image + image.begin, image.size);
    }
  }
  const int64_t text = shape.text_query_tokens();
  const int64_t image_rows = shape.batch * plan.ranks.back().image_tokens.size;
  for (int64_t b = 0; text > 0 && b < shape.batch; ++b) {
    put(responses.back().output(), image_rows + b * text, b, origin.text, text);
  }
  return output;
}

CallResult CallRanks(const std::vector<std::string>& addresses,
                     const std::vector<RunAttentionRequest>& requests) {
  CallResult result;
  result.statuses.resize(requests.size());
  result.responses.resize(requests.size());
  std::vector<std::thread> callers;
  for (size_t rank = 0; rank < requests.size(); ++rank) {
    callers.emplace_back([&, rank] {
      auto stub = internal::v1::RankService::NewStub(grpc::CreateChannel(
          addresses[rank], grpc::InsecureChannelCredentials()));
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() +
                           std::chrono::minutes(1));
      result.statuses[rank] =
          stub->RunAttention(&context, requests[rank], &result.responses[rank]);
    });
  }
  for (std::thread& caller : callers) caller.join();
  return result;
}

}  // namespace ithaca::testing
