#include "server/fake_rank_stream.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "ithaca/internal/v1/worker.pb.h"

namespace ithaca::server {

namespace {

using ithaca::internal::v1::AttentionCall;
using ithaca::internal::v1::StreamRankRequest;

// Not a multiple of anything, so that chunks end anywhere.
constexpr size_t kChunkBytes = 99991;

}  // namespace

FakeRankStream::FakeRankStream(Callbacks callbacks, bool reads, bool writes)
    : callbacks_(std::move(callbacks)), reads_(reads), writes_(writes) {
  const absl::MutexLock lock(&mutex_);
  ReadOn();
}

void FakeRankStream::SetReads(bool reads) {
  const absl::MutexLock lock(&mutex_);
  reads_ = reads;
  ReadOn();
}

void FakeRankStream::SetWrites(bool writes) {
  const absl::MutexLock lock(&mutex_);
  writes_ = writes;
  WriteOn();
}

void FakeRankStream::Break(const grpc::Status& status) {
  const absl::MutexLock lock(&mutex_);
  End(status);
}

int64_t FakeRankStream::received() const {
  const absl::MutexLock lock(&mutex_);
  return received_;
}

void FakeRankStream::ReadOn() {
  if (!reads_ || reading_ || ran_ || ended_) return;
  reading_ = true;
  StartRead(&incoming_);
}

void FakeRankStream::OnReadDone(bool ok) {
  {
    const absl::MutexLock lock(&mutex_);
    reading_ = false;
    if (ended_) return;
    if (!ok) {
      End({grpc::StatusCode::CANCELLED, "the stream ended before `run`"});
      return;
    }
    if (const auto status = Take(); !status.ok()) {
      End(status);
      return;
    }
    ReadOn();
    if (!ran_) return;
    awaiting_ = true;
  }
  callbacks_.on_run(request_, &response_,
                    [this](const grpc::Status& status) { Answer(status); });
}

grpc::Status FakeRankStream::Take() {
  const auto wrong = [](const char* what) {
    return grpc::Status(grpc::StatusCode::INTERNAL, what);
  };
  const bool opened = request_.has_call();
  if (incoming_.has_open() != !opened) return wrong("`open` is not first");
  switch (incoming_.part_case()) {
    case StreamRankRequest::kOpen:
      *request_.mutable_call() = incoming_.open();
      break;
    case StreamRankRequest::kChunk: {
      std::string& tensors = *request_.mutable_tensors();
      const std::string& data = incoming_.chunk().data();
      const size_t begin = incoming_.chunk().offset();
      tensors.resize(std::max(tensors.size(), begin + data.size()));
      tensors.replace(begin, data.size(), data);
      received_ += static_cast<int64_t>(data.size());
      break;
    }
    case StreamRankRequest::kRun:
      if (received_ != static_cast<int64_t>(request_.tensors().size())) {
        return wrong("bytes are missing, or came twice");
      }
      request_.mutable_call()->set_call_number(incoming_.run().call_number());
      ran_ = true;
      break;
    case StreamRankRequest::PART_NOT_SET:
      return wrong("an empty part");
  }
  return grpc::Status::OK;
}

void FakeRankStream::Answer(const grpc::Status& status) {
  {
    const absl::MutexLock lock(&mutex_);
    awaiting_ = false;
    TakeAnswer(status);
    if (!done_) return;
  }
  delete this;
}

void FakeRankStream::TakeAnswer(const grpc::Status& status) {
  if (!status.ok()) {
    End(status);
    return;
  }
  output_ = OutputInOrder();
  answered_ = true;
  if (ended_) return;
  *outgoing_.mutable_execution() = response_.execution();
  writing_ = true;
  StartWrite(&outgoing_);
}

std::string FakeRankStream::OutputInOrder() const {
  const AttentionCall& call = request_.call();
  const auto batch = static_cast<size_t>(call.batch());
  const size_t row =
      static_cast<size_t>(call.num_heads() * call.head_dim()) * sizeof(float);
  const size_t text = call.return_text_output() && !call.image_queries_only()
                          ? static_cast<size_t>(call.text_tokens()) * row
                          : 0;
  const std::string& dense = response_.output();
  if (dense.empty()) return "";  // it is in a region
  const size_t image = (dense.size() - batch * text) / batch;
  std::string output;
  for (size_t b = 0; b < batch; ++b) {
    const std::string image_rows = dense.substr(b * image, image);
    const std::string text_rows = dense.substr(batch * image + b * text, text);
    output += call.order() == ithaca::v1::TOKEN_ORDER_TEXT_FIRST
                  ? text_rows + image_rows
                  : image_rows + text_rows;
  }
  return output;
}

void FakeRankStream::OnWriteDone(bool ok) {
  const absl::MutexLock lock(&mutex_);
  writing_ = false;
  if (ok) {
    WriteOn();
  } else {
    End({grpc::StatusCode::CANCELLED, "nobody reads the output"});
  }
}

void FakeRankStream::WriteOn() {
  if (!answered_ || writing_ || ended_ || !writes_) return;
  if (sent_ == output_.size()) {
    End(grpc::Status::OK);
    return;
  }
  auto* const chunk = outgoing_.mutable_chunk();
  chunk->set_offset(sent_);
  chunk->set_data(output_.substr(sent_, kChunkBytes));
  sent_ += chunk->data().size();
  writing_ = true;
  StartWrite(&outgoing_);
}

void FakeRankStream::OnCancel() {
  const absl::MutexLock lock(&mutex_);
  // A call that has begun is finished.
  if (!ran_ || answered_) End({grpc::StatusCode::CANCELLED, "cancelled"});
}

void FakeRankStream::End(const grpc::Status& status) {
  if (ended_) return;
  ended_ = true;
  Finish(status);
}

void FakeRankStream::OnDone() {
  callbacks_.on_done(this);
  {
    const absl::MutexLock lock(&mutex_);
    done_ = true;
    if (awaiting_) return;
  }
  delete this;
}

}  // namespace ithaca::server
