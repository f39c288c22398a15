// StreamedCall's other half: the output, from the ranks to the client.

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "ithaca/v1/attention.pb.h"
#include "server/protocol_enums.h"
#include "server/stream_message.h"
#include "server/streamed_call.h"

namespace ithaca::server {

void StreamedCall::Answer(CallOutcome outcome) {
  phase_ = Phase::kAnswering;
  reservation_ = std::move(outcome.reservation);
  client_call_.RecordAnswer(&outcome);
  ithaca::v1::AttentionResponse response;
  response.set_request_id(client_call_.request_id());
  ithaca::v1::Tensor* const output = response.mutable_output();
  output->set_dtype(ToProto(client_call_.dtype()));
  output->mutable_shape()->Assign(client_call_.output_shape().begin(),
                                  client_call_.output_shape().end());
  if (const auto& slice = client_call_.output_slice()) {
    *output->mutable_memory() = *slice;
  }
  *response.mutable_report() = std::move(outcome.report);
  Write(MakeClientResponse(response));
  PassOutput();
}

void StreamedCall::PassOutput() {
  if (!writing_) {
    const int64_t offset = merge_->taken();
    const TensorBytes bytes = merge_->Take(kChunkBytes);
    if (!bytes.empty()) {
      writing_bytes_ = bytes.size();
      Write(MakeClientChunk(offset, bytes));
    } else if (offset == merge_->total_bytes()) {
      End(absl::OkStatus());
      return;
    }
  }
  if (!reading_rank_ && merge_->buffered() + writing_bytes_ < kMaxReadAhead) {
    if (const auto rank = merge_->WantedRank()) {
      reading_rank_ = true;
      streams_->ReadOutput(*rank);
    }
  }
  ArmTimer();
}

void StreamedCall::Write(grpc::ByteBuffer message) {
  outgoing_.Swap(&message);
  writing_ = true;
  Progress();
  reactor_->StartWrite(&outgoing_);
}

void StreamedCall::OnClientWritten(bool ok) {
  const absl::MutexLock lock(&mutex_);
  writing_ = false;
  writing_bytes_ = 0;
  outgoing_.Clear();
  if (phase_ != Phase::kAnswering) return;
  Progress();
  if (ok) {
    PassOutput();
  } else {
    End(client_call_.Cancelled());
  }
}

void StreamedCall::OnOutput(int rank, uint64_t offset,
                            const TensorBytes& bytes) {
  const absl::MutexLock lock(&mutex_);
  if (phase_ != Phase::kAnswering) return;
  reading_rank_ = false;
  if (!writing_) Progress();
  if (auto status = merge_->Append(rank, offset, bytes); !status.ok()) {
    End(status);
    return;
  }
  PassOutput();
}

}  // namespace ithaca::server
