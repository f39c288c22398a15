#include "worker/rank_message.h"

#include <google/protobuf/wire_format_lite.h>

#include <string>
#include <utility>

#include "worker/grpc_slice_cursor.h"

namespace ithaca {
namespace {

using google::protobuf::internal::WireFormatLite;
using internal::v1::RunAttentionRequest;
using internal::v1::RunAttentionResponse;

constexpr uint32_t kCallTag =
    WireFormatLite::MakeTag(RunAttentionRequest::kCallFieldNumber,
                            WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kTensorsTag =
    WireFormatLite::MakeTag(RunAttentionRequest::kTensorsFieldNumber,
                            WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kExecutionTag =
    WireFormatLite::MakeTag(RunAttentionResponse::kExecutionFieldNumber,
                            WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kOutputTag =
    WireFormatLite::MakeTag(RunAttentionResponse::kOutputFieldNumber,
                            WireFormatLite::WIRETYPE_LENGTH_DELIMITED);

// A field of `call`: small, so that a copy is cheaper than care.
bool ReadCall(SliceCursor* cursor, internal::v1::AttentionCall* call) {
  std::string joined;
  return cursor->ReadMessage(&joined) && call->MergeFromString(joined);
}

bool ReadTensors(SliceCursor* cursor, std::vector<std::string_view>* tensors) {
  uint64_t size = 0;
  tensors->clear();
  return cursor->ReadVarint(&size) && cursor->Read(size, tensors);
}

void ReleaseOutput(void* holder) {
  delete static_cast<std::shared_ptr<const HostBuffer>*>(holder);
}

}  // namespace

absl::Status ParseRankRequest(const grpc::ByteBuffer& message,
                              RankRequest* request) {
  absl::Status malformed =
      absl::InvalidArgumentError("malformed RunAttentionRequest");
  if (!message.Dump(&request->slices).ok()) return malformed;
  SliceCursor cursor(request->slices);
  while (!cursor.AtEnd()) {
    uint32_t tag = 0;
    if (!cursor.ReadTag(&tag)) return malformed;
    bool read = false;
    if (tag == kCallTag) {
      read = ReadCall(&cursor, &request->call);
    } else if (tag == kTensorsTag) {
      read = ReadTensors(&cursor, &request->tensors);
    } else {
      read = cursor.SkipField(tag);
    }
    if (!read) return malformed;
  }
  return absl::OkStatus();
}

grpc::ByteBuffer FrameRankResponse(const internal::v1::RankExecution& execution,
                                   std::shared_ptr<const HostBuffer> output,
                                   int64_t bytes) {
  std::string head;
  AppendVarint(kExecutionTag, &head);
  AppendVarint(execution.ByteSizeLong(), &head);
  execution.AppendToString(&head);
  if (bytes == 0) {
    grpc::Slice slice(head);
    return grpc::ByteBuffer(&slice, 1);
  }
  AppendVarint(kOutputTag, &head);
  AppendVarint(static_cast<uint64_t>(bytes), &head);
  void* const data = const_cast<char*>(output->data());
  grpc::Slice slices[] = {
      grpc::Slice(head),
      grpc::Slice(data, static_cast<size_t>(bytes), &ReleaseOutput,
                  new std::shared_ptr<const HostBuffer>(std::move(output)))};
  return grpc::ByteBuffer(slices, 2);
}

}  // namespace ithaca
