#include "server/rank_message.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/sequence_parallel_plan.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "server/protocol_enums.h"
#include "server/tensor_bytes.h"
#include "server/wire_reader.h"

namespace ithaca::server {

namespace {

using ithaca::internal::v1::AttentionCall;
using ithaca::internal::v1::RegionSlice;
using ithaca::internal::v1::RunAttentionRequest;
using ithaca::internal::v1::RunAttentionResponse;

// Where image and text lie in a [B, tokens, heads, D] tensor of the caller.
struct TokenAxis {
  int64_t row_bytes = 0;  // one token of one batch element
  int64_t image_tokens = 0;
  int64_t text_tokens = 0;
  bool text_first = false;

  int64_t tokens() const { return image_tokens + text_tokens; }
  int64_t ImageOffset(int64_t b, int64_t image_token) const {
    return (b * tokens() + (text_first ? text_tokens : 0) + image_token) *
           row_bytes;
  }
  int64_t TextOffset(int64_t b) const {
    return (b * tokens() + (text_first ? 0 : image_tokens)) * row_bytes;
  }
};

TokenAxis QueryAxis(const AttentionShape& shape) {
  return {shape.num_heads * shape.head_dim * ByteSize(shape.dtype),
          shape.image_tokens, shape.text_query_tokens(),
          shape.order == TokenOrder::kTextFirst};
}

TokenAxis KeyAxis(const AttentionShape& shape) {
  return {shape.num_kv_heads * shape.head_dim * ByteSize(shape.dtype),
          shape.image_tokens, shape.text_tokens,
          shape.order == TokenOrder::kTextFirst};
}

void AppendImage(const TensorBytes& tensor, const TokenAxis& axis,
                 int64_t batch, const Range& tokens,
                 std::vector<grpc::Slice>* pieces) {
  for (int64_t b = 0; b < batch; ++b) {
    tensor.AppendRange(axis.ImageOffset(b, tokens.begin),
                       tokens.size * axis.row_bytes, pieces);
  }
}

void AppendText(const TensorBytes& tensor, const TokenAxis& axis, int64_t batch,
                std::vector<grpc::Slice>* pieces) {
  for (int64_t b = 0; b < batch; ++b) {
    tensor.AppendRange(axis.TextOffset(b), axis.text_tokens * axis.row_bytes,
                       pieces);
  }
}

int64_t OutputBytes(const SequenceParallelPlan& plan, int rank) {
  const TokenAxis axis = QueryAxis(plan.shape);
  int64_t tokens = plan.ranks[static_cast<size_t>(rank)].image_tokens.size;
  if (rank == TextOutputRank(plan)) tokens += axis.text_tokens;
  return plan.shape.batch * tokens * axis.row_bytes;
}

void Describe(const RegionPart& part, RegionSlice* slice) {
  *slice->mutable_region() = part.region->memory;
  slice->set_offset(part.offset);
  slice->set_byte_size(part.byte_size);
}

}  // namespace

AttentionCall DescribeCall(const SequenceParallelPlan& plan,
                           const CallRegions& regions,
                           const std::string& request_id, uint64_t generation,
                           uint64_t call_number) {
  const AttentionShape& shape = plan.shape;
  AttentionCall call;
  call.set_request_id(request_id);
  call.set_generation(generation);
  call.set_call_number(call_number);
  call.set_plan_fingerprint(plan.Fingerprint());
  call.set_dtype(ToProto(shape.dtype));
  call.set_batch(shape.batch);
  call.set_image_tokens(shape.image_tokens);
  call.set_text_tokens(shape.text_tokens);
  call.mutable_valid_text_tokens()->Assign(shape.valid_text_tokens.begin(),
                                           shape.valid_text_tokens.end());
  call.set_order(ToProto(shape.order));
  call.set_image_queries_only(shape.image_queries_only);
  call.set_num_heads(shape.num_heads);
  call.set_num_kv_heads(shape.num_kv_heads);
  call.set_head_dim(shape.head_dim);
  call.set_softmax_scale(plan.options.softmax_scale);
  call.set_communication_precision(ToProto(plan.options.precision));
  call.set_head_schedule(ToProto(plan.options.schedule));
  call.set_kernel(ToProto(plan.options.kernel));
  const auto describe = [](const RegionPart& part, auto slice) {
    if (part.region != nullptr) Describe(part, slice());
  };
  describe(regions.query, [&] { return call.mutable_query_region(); });
  describe(regions.key, [&] { return call.mutable_key_region(); });
  describe(regions.value, [&] { return call.mutable_value_region(); });
  describe(regions.output, [&] { return call.mutable_output_region(); });
  return call;
}

std::vector<grpc::ByteBuffer> MakeRankRequests(const SequenceParallelPlan& plan,
                                               const AttentionCall& call,
                                               const CallTensors& tensors) {
  const int64_t batch = plan.shape.batch;
  const TokenAxis query_axis = QueryAxis(plan.shape);
  const TokenAxis key_axis = KeyAxis(plan.shape);
  struct Source {
    const TensorBytes& tensor;
    const TokenAxis& axis;
  };
  std::vector<Source> sources;  // what ranks do not read by themselves
  if (!call.has_query_region()) sources.push_back({tensors.query, query_axis});
  if (!call.has_key_region()) sources.push_back({tensors.key, key_axis});
  if (!call.has_value_region()) sources.push_back({tensors.value, key_axis});
  const std::string common = call.SerializeAsString();

  std::vector<grpc::ByteBuffer> requests;
  requests.reserve(plan.ranks.size());
  for (int rank = 0; rank < plan.world_size; ++rank) {
    const Range image = plan.ranks[static_cast<size_t>(rank)].image_tokens;
    std::string described = common;
    if (query_axis.text_tokens > 0 && rank == TextOutputRank(plan)) {
      AppendTag(AttentionCall::kReturnTextOutputFieldNumber, WireType::kVarint,
                &described);
      AppendVarint(1, &described);
    }
    int64_t tensor_bytes = 0;
    for (const auto& [tensor, axis] : sources) {
      tensor_bytes += batch * (image.size + axis.text_tokens) * axis.row_bytes;
    }
    std::string header;
    AppendLengthDelimited(RunAttentionRequest::kCallFieldNumber, described,
                          &header);
    AppendTag(RunAttentionRequest::kTensorsFieldNumber,
              WireType::kLengthDelimited, &header);
    AppendVarint(static_cast<uint64_t>(tensor_bytes), &header);

    std::vector<grpc::Slice> pieces;
    pieces.emplace_back(header);
    for (const auto& [tensor, axis] : sources) {
      AppendImage(tensor, axis, batch, image, &pieces);
    }
    for (const auto& [tensor, axis] : sources) {
      AppendText(tensor, axis, batch, &pieces);
    }
    requests.push_back(ToByteBuffer(pieces));
  }
  return requests;
}

absl::Status ParseRankResponse(const SequenceParallelPlan& plan,
                               OutputPlace place, int rank,
                               const grpc::ByteBuffer& message,
                               RankResponse* response) {
  const auto malformed = [rank] {
    return absl::InternalError(
        absl::StrCat("rank ", rank,
                     " answered with something that is no valid "
                     "RunAttentionResponse"));
  };
  TensorBytes bytes;
  if (!FromByteBuffer(message, &bytes)) return malformed();
  WireReader reader(bytes);
  while (!reader.AtLimit()) {
    uint32_t tag = 0;
    int64_t length = 0;
    if (!reader.ReadTag(&tag)) return malformed();
    if (tag == MakeTag(RunAttentionResponse::kExecutionFieldNumber,
                       WireType::kLengthDelimited)) {
      std::string execution;
      if (!reader.ReadLength(&length)) return malformed();
      reader.ReadBytes(length, &execution);
      if (!response->execution.ParseFromString(execution)) return malformed();
    } else if (tag == MakeTag(RunAttentionResponse::kOutputFieldNumber,
                              WireType::kLengthDelimited)) {
      if (!reader.ReadLength(&length)) return malformed();
      response->output = TensorBytes();
      reader.ReadPieces(length, &response->output);
    } else if (!reader.SkipField(tag, WireReader::kMaxDepth)) {
      return malformed();
    }
  }
  if (const int64_t expected =
          place == OutputPlace::kRegion ? 0 : OutputBytes(plan, rank);
      response->output.size() != expected) {
    return absl::InternalError(
        absl::StrCat("rank ", rank, "'s output: expected ", expected,
                     " bytes, got ", response->output.size()));
  }
  return absl::OkStatus();
}

TensorBytes GatherOutput(const SequenceParallelPlan& plan,
                         absl::Span<const RankResponse> responses) {
  const TokenAxis axis = QueryAxis(plan.shape);
  const int64_t text_bytes = axis.text_tokens * axis.row_bytes;
  const RankResponse& text_response =
      responses[static_cast<size_t>(TextOutputRank(plan))];
  // The text output lies behind the image output of the same rank.
  const int64_t text_begin =
      text_response.output.size() - plan.shape.batch * text_bytes;

  std::vector<grpc::Slice> pieces;
  for (int64_t b = 0; b < plan.shape.batch; ++b) {
    const auto append_text = [&] {
      text_response.output.AppendRange(text_begin + b * text_bytes, text_bytes,
                                       &pieces);
    };
    if (axis.text_first) append_text();
    for (size_t rank = 0; rank < responses.size(); ++rank) {
      const int64_t share_bytes =
          plan.ranks[rank].image_tokens.size * axis.row_bytes;
      responses[rank].output.AppendRange(b * share_bytes, share_bytes, &pieces);
    }
    if (!axis.text_first) append_text();
  }
  TensorBytes output;
  for (grpc::Slice& piece : pieces) output.Append(std::move(piece));
  return output;
}

}  // namespace ithaca::server
