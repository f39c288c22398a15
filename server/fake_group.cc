#include "server/fake_group.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "core/sequence_parallel_plan.h"
#include "ithaca/internal/v1/worker.grpc.pb.h"
#include "server/callback_queue.h"
#include "server/fake_rank_stream.h"
#include "server/fake_region.h"

namespace ithaca::server {

namespace {

using ithaca::internal::v1::AttentionCall;
using ithaca::internal::v1::RunAttentionRequest;
using ithaca::internal::v1::RunAttentionResponse;

// [B, tokens, heads, D] with the image tokens before the text tokens.
struct Rows {
  int64_t tokens, heads, dim;
  std::vector<float> values;

  Rows(int64_t batch, int64_t tokens, int64_t heads, int64_t dim)
      : tokens(tokens),
        heads(heads),
        dim(dim),
        values(static_cast<size_t>(batch * tokens * heads * dim)) {}
  float* At(int64_t b, int64_t token, int64_t head) {
    return &values[static_cast<size_t>(((b * tokens + token) * heads + head) *
                                       dim)];
  }
};

// Takes rows [first, first + count) of each batch element from `bytes`.
void Take(Rows* rows, int64_t batch, int64_t first, int64_t count,
          const char** bytes) {
  const auto size =
      static_cast<size_t>(count * rows->heads * rows->dim) * sizeof(float);
  if (size == 0) return;
  for (int64_t b = 0; b < batch; ++b) {
    std::memcpy(rows->At(b, first, 0), *bytes, size);
    *bytes += size;
  }
}

void Give(Rows* rows, int64_t batch, int64_t first, int64_t count,
          std::string* bytes) {
  const auto size =
      static_cast<size_t>(count * rows->heads * rows->dim) * sizeof(float);
  if (size == 0) return;
  for (int64_t b = 0; b < batch; ++b) {
    bytes->append(reinterpret_cast<const char*>(rows->At(b, first, 0)), size);
  }
}

// Takes the rows of a whole tensor of the caller's, from a region.
void TakeRegion(Rows* rows, const AttentionCall& call, int64_t text,
                const ithaca::internal::v1::RegionSlice& slice) {
  const std::string whole = ReadSlice(slice);
  if (whole.empty()) return;
  const bool text_first = call.order() == ithaca::v1::TOKEN_ORDER_TEXT_FIRST;
  const auto row = static_cast<size_t>(rows->heads * rows->dim) * sizeof(float);
  const char* bytes = whole.data();
  for (int64_t b = 0; b < call.batch(); ++b) {
    for (int64_t t = 0; t < rows->tokens; ++t, bytes += row) {
      const int64_t image = rows->tokens - text;
      const int64_t token = text_first ? (t < text ? image + t : t - text) : t;
      std::memcpy(rows->At(b, token, 0), bytes, row);
    }
  }
}

void GiveRegion(Rows* rows, const AttentionCall& call, int64_t text) {
  std::string whole;
  const int64_t image = rows->tokens - text;
  for (int64_t b = 0; b < call.batch(); ++b) {
    for (int64_t t = 0; t < rows->tokens; ++t) {
      const bool text_first =
          call.order() == ithaca::v1::TOKEN_ORDER_TEXT_FIRST;
      const int64_t token = text_first ? (t < text ? image + t : t - text) : t;
      whole.append(
          reinterpret_cast<const char*>(rows->At(b, token, 0)),
          static_cast<size_t>(rows->heads * rows->dim) * sizeof(float));
    }
  }
  WriteSlice(call.output_region(), whole);
}

void AttendRow(const AttentionCall& call, int64_t b, int64_t head,
               const float* query, Rows* key, Rows* value, float* out) {
  const int64_t kv_head = head * call.num_kv_heads() / call.num_heads();
  const int64_t kept =
      call.image_tokens() + call.valid_text_tokens(static_cast<int>(b));
  std::vector<double> weights;
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t t = 0; t < kept; ++t) {
    double logit = 0;
    for (int64_t d = 0; d < call.head_dim(); ++d) {
      logit += static_cast<double>(query[d]) *
               static_cast<double>(key->At(b, t, kv_head)[d]);
    }
    weights.push_back(logit * call.softmax_scale());
    largest = std::max(largest, weights.back());
  }
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  for (int64_t d = 0; d < call.head_dim(); ++d) {
    double mean = 0;
    for (int64_t t = 0; t < kept; ++t) {
      mean += weights[static_cast<size_t>(t)] / sum *
              static_cast<double>(value->At(b, t, kv_head)[d]);
    }
    out[d] = static_cast<float>(mean);
  }
}

}  // namespace

class FakeGroup::Rank
    : public ithaca::internal::v1::RankService::CallbackService {
 public:
  Rank(FakeGroup* group, int rank) : group_(group), rank_(rank) {}

  grpc::ServerUnaryReactor* RunAttention(
      grpc::CallbackServerContext* context, const RunAttentionRequest* request,
      RunAttentionResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    group_->OnRequest(
        rank_, *request, response,
        [reactor](const grpc::Status& status) { reactor->Finish(status); });
    return reactor;
  }

  grpc::ServerUnaryReactor* AttachRegion(
      grpc::CallbackServerContext* context,
      const ithaca::internal::v1::AttachRegionRequest* request,
      ithaca::internal::v1::AttachRegionResponse*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    group_->OnRegion(rank_, request, 0, reactor);
    return reactor;
  }

  grpc::ServerUnaryReactor* DetachRegion(
      grpc::CallbackServerContext* context,
      const ithaca::internal::v1::DetachRegionRequest* request,
      ithaca::internal::v1::DetachRegionResponse*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    group_->OnRegion(rank_, nullptr, request->region_id(), reactor);
    return reactor;
  }

  grpc::ServerBidiReactor<ithaca::internal::v1::StreamRankRequest,
                          ithaca::internal::v1::StreamRankResponse>*
  StreamAttention(grpc::CallbackServerContext*) override {
    return group_->OpenStream(rank_);
  }

 private:
  FakeGroup* const group_;
  const int rank_;
};

FakeGroup::FakeGroup(int world_size)
    : world_size_(world_size),
      stream_reads_(static_cast<size_t>(world_size), true),
      stream_writes_(static_cast<size_t>(world_size), true),
      attached_(static_cast<size_t>(world_size)) {
  KeepCallbackQueue();
  for (int rank = 0; rank < world_size; ++rank) {
    ranks_.push_back(std::make_unique<Rank>(this, rank));
    ports_.push_back(0);
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &ports_.back());
    builder.RegisterService(ranks_.back().get());
    servers_.push_back(builder.BuildAndStart());
  }
}

FakeGroup::~FakeGroup() {
  std::vector<FinishFunction> unanswered;
  {
    const absl::MutexLock lock(&mutex_);
    closing_ = true;
    for (auto& [number, call] : calls_) {
      for (auto& finish : call.finishes) {
        if (finish != nullptr) unanswered.push_back(std::move(finish));
      }
    }
    calls_.clear();
    for (auto* reactor : held_regions_) {
      unanswered.push_back(
          [reactor](const grpc::Status& status) { reactor->Finish(status); });
    }
    held_regions_.clear();
  }
  for (const auto& finish : unanswered) {
    finish({grpc::StatusCode::UNAVAILABLE, "the fake group is gone"});
  }
  for (auto& server : servers_) {
    server->Shutdown(std::chrono::system_clock::now());
  }
  // A server has shut down once its calls are finished, which a handler does
  // with the lock held: wait until the last one has let go of it.
  const absl::MutexLock lock(&mutex_);
}

Group FakeGroup::Describe(const std::string& name, uint64_t generation) const {
  Group group;
  group.name = name;
  group.generation = generation;
  for (int rank = 0; rank < world_size_; ++rank) {
    group.members.push_back(
        {name + "/" + std::to_string(rank),
         "127.0.0.1:" + std::to_string(ports_[static_cast<size_t>(rank)]),
         "cpu",
         {ithaca::v1::ATTENTION_KERNEL_MATH,
          ithaca::v1::ATTENTION_KERNEL_FLASH}});
  }
  return group;
}

void FakeGroup::Hold() {
  const absl::MutexLock lock(&mutex_);
  held_ = true;
}

void FakeGroup::Release() {
  const absl::MutexLock lock(&mutex_);
  held_ = false;
  AnswerReady();
}

void FakeGroup::AwaitHeld(size_t calls) {
  const absl::MutexLock lock(&mutex_);
  const auto held = [this, calls]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    const auto whole = std::count_if(
        calls_.begin(), calls_.end(),
        [this](const auto& call) { return call.second.ranks == world_size_; });
    return static_cast<size_t>(whole) >= calls;
  };
  mutex_.Await(absl::Condition(&held));
}

void FakeGroup::FailNext(int rank, grpc::Status status) {
  const absl::MutexLock lock(&mutex_);
  failures_[rank] = std::move(status);
}

void FakeGroup::RefuseNext(const grpc::Status& status) {
  const absl::MutexLock lock(&mutex_);
  ithaca::internal::v1::RankRefusal details;
  details.set_when(ithaca::internal::v1::RankRefusal::BEFORE_EXCHANGES);
  details.set_own_reason(true);
  refusal_ = grpc::Status(status.error_code(), status.error_message(),
                          details.SerializeAsString());
}

FakeRankStream* FakeGroup::OpenStream(int rank) {
  const absl::MutexLock lock(&mutex_);
  const auto index = static_cast<size_t>(rank);
  auto* const stream = new FakeRankStream(
      {[this, rank](const RunAttentionRequest& request,
                    RunAttentionResponse* response, FinishFunction finish) {
         OnRequest(rank, request, response, std::move(finish));
       },
       [this](FakeRankStream* done) {
         const absl::MutexLock lock(&mutex_);
         streams_.erase(done);
       }},
      stream_reads_[index], stream_writes_[index]);
  streams_[stream] = rank;
  return stream;
}

void FakeGroup::SetStreamReads(int rank, bool reads) {
  const absl::MutexLock lock(&mutex_);
  for (size_t index = 0; index < stream_reads_.size(); ++index) {
    if (rank < 0 || static_cast<int>(index) == rank) {
      stream_reads_[index] = reads;
    }
  }
  for (const auto& [stream, of] : streams_) {
    if (rank < 0 || of == rank) stream->SetReads(reads);
  }
}

void FakeGroup::SetStreamWrites(int rank, bool writes) {
  const absl::MutexLock lock(&mutex_);
  for (size_t index = 0; index < stream_writes_.size(); ++index) {
    if (rank < 0 || static_cast<int>(index) == rank) {
      stream_writes_[index] = writes;
    }
  }
  for (const auto& [stream, of] : streams_) {
    if (rank < 0 || of == rank) stream->SetWrites(writes);
  }
}

void FakeGroup::BreakStreams(int rank, const grpc::Status& status) {
  const absl::MutexLock lock(&mutex_);
  for (const auto& [stream, of] : streams_) {
    if (of == rank) stream->Break(status);
  }
}

size_t FakeGroup::open_streams() const {
  const absl::MutexLock lock(&mutex_);
  return streams_.size();
}

int64_t FakeGroup::streamed_bytes() const {
  const absl::MutexLock lock(&mutex_);
  int64_t bytes = 0;
  for (const auto& [stream, of] : streams_) bytes += stream->received();
  return bytes;
}

void FakeGroup::AnswerWrongly() {
  const absl::MutexLock lock(&mutex_);
  wrong_ = true;
}

void FakeGroup::FailNextAttach(int rank, grpc::Status status) {
  const absl::MutexLock lock(&mutex_);
  attach_failures_[rank] = std::move(status);
}

void FakeGroup::HoldRegions() {
  const absl::MutexLock lock(&mutex_);
  regions_held_ = true;
}

void FakeGroup::ReleaseRegions() {
  const absl::MutexLock lock(&mutex_);
  regions_held_ = false;
  for (auto* reactor : held_regions_) reactor->Finish(grpc::Status::OK);
  held_regions_.clear();
}

void FakeGroup::AwaitHeldRegions(size_t calls) {
  const absl::MutexLock lock(&mutex_);
  const auto held = [this, calls]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return held_regions_.size() >= calls;
  };
  mutex_.Await(absl::Condition(&held));
}

std::set<uint64_t> FakeGroup::attached(int rank) const {
  const absl::MutexLock lock(&mutex_);
  return attached_[static_cast<size_t>(rank)];
}

void FakeGroup::OnRegion(
    int rank, const ithaca::internal::v1::AttachRegionRequest* attach,
    uint64_t detached_id, grpc::ServerUnaryReactor* reactor) {
  const absl::MutexLock lock(&mutex_);
  auto& attached = attached_[static_cast<size_t>(rank)];
  if (attach == nullptr) {
    attached.erase(detached_id);
  } else if (const auto failure = attach_failures_.find(rank);
             failure != attach_failures_.end()) {
    reactor->Finish(failure->second);
    attach_failures_.erase(failure);
    return;
  } else {
    attached.insert(attach->region().id());
  }
  if (regions_held_ && !closing_) {
    held_regions_.push_back(reactor);
  } else {
    reactor->Finish(grpc::Status::OK);
  }
}

std::vector<uint64_t> FakeGroup::call_numbers() const {
  const absl::MutexLock lock(&mutex_);
  std::vector<uint64_t> numbers;
  for (const auto& [number, id] : ids_) numbers.push_back(number);
  return numbers;
}

std::vector<std::string> FakeGroup::request_ids() const {
  const absl::MutexLock lock(&mutex_);
  std::vector<std::string> ids;
  for (const auto& [number, id] : ids_) {
    if (id != "readiness-probe") ids.push_back(id);
  }
  return ids;
}

void FakeGroup::OnRequest(int rank, const RunAttentionRequest& request,
                          RunAttentionResponse* response,
                          FinishFunction finish) {
  const absl::MutexLock lock(&mutex_);
  if (closing_) {
    finish({grpc::StatusCode::UNAVAILABLE, "the fake group is gone"});
    return;
  }
  if (const auto failure = failures_.find(rank); failure != failures_.end()) {
    finish(failure->second);
    failures_.erase(failure);
    return;
  }
  Arrived& call = calls_[request.call().call_number()];
  const auto ranks = static_cast<size_t>(world_size_);
  call.requests.resize(ranks);
  call.responses.resize(ranks);
  call.finishes.resize(ranks);
  const auto index = static_cast<size_t>(rank);
  call.requests[index] = request;
  call.responses[index] = response;
  call.finishes[index] = std::move(finish);
  for (const auto* slice :
       {&request.call().query_region(), &request.call().key_region(),
        &request.call().value_region(), &request.call().output_region()}) {
    if (slice->has_region()) attached_[index].insert(slice->region().id());
  }
  if (++call.ranks < world_size_) return;
  ids_[request.call().call_number()] = request.call().request_id();
  AnswerReady();
}

void FakeGroup::AnswerReady() {
  while (!held_) {
    const auto next = calls_.find(next_number_);
    if (next == calls_.end() || next->second.ranks < world_size_) return;
    Answer(&next->second);
    calls_.erase(next);
    ++next_number_;
  }
}

void FakeGroup::Answer(Arrived* arrived) {
  if (refusal_) {
    for (const auto& finish : arrived->finishes) finish(*refusal_);
    refusal_.reset();
    return;
  }
  const AttentionCall& call = arrived->requests[0].call();
  const int64_t image = call.image_tokens();
  const int64_t text = call.text_tokens();
  const int64_t text_queries = call.image_queries_only() ? 0 : text;
  const int64_t batch = call.batch();
  Rows query(batch, image + text_queries, call.num_heads(), call.head_dim());
  Rows key(batch, image + text, call.num_kv_heads(), call.head_dim());
  Rows value = key;
  Rows out = query;
  for (int rank = 0; rank < world_size_; ++rank) {
    const Range share = EvenShare(image, world_size_, rank);
    const char* bytes =
        arrived->requests[static_cast<size_t>(rank)].tensors().data();
    // Those in regions are not in the message.
    const bool has[] = {!call.has_query_region(), !call.has_key_region(),
                        !call.has_value_region()};
    if (has[0]) Take(&query, batch, share.begin, share.size, &bytes);
    if (has[1]) Take(&key, batch, share.begin, share.size, &bytes);
    if (has[2]) Take(&value, batch, share.begin, share.size, &bytes);
    if (has[0]) Take(&query, batch, image, text_queries, &bytes);
    if (has[1]) Take(&key, batch, image, text, &bytes);
    if (has[2]) Take(&value, batch, image, text, &bytes);
  }
  if (call.has_query_region()) {
    TakeRegion(&query, call, text_queries, call.query_region());
  }
  if (call.has_key_region()) TakeRegion(&key, call, text, call.key_region());
  if (call.has_value_region()) {
    TakeRegion(&value, call, text, call.value_region());
  }
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t kept = image + call.valid_text_tokens(static_cast<int>(b));
    for (int64_t t = 0; t < std::min(kept, query.tokens); ++t) {
      for (int64_t h = 0; h < call.num_heads(); ++h) {
        AttendRow(call, b, h, query.At(b, t, h), &key, &value, out.At(b, t, h));
      }
    }
  }
  if (wrong_) {
    for (float& element : out.values) element += 1;
  }
  if (call.has_output_region()) GiveRegion(&out, call, text_queries);
  for (int rank = 0; rank < world_size_; ++rank) {
    const auto index = static_cast<size_t>(rank);
    const Range share = EvenShare(image, world_size_, rank);
    std::string* output = arrived->responses[index]->mutable_output();
    if (!call.has_output_region()) {
      Give(&out, batch, share.begin, share.size, output);
      if (arrived->requests[index].call().return_text_output()) {
        Give(&out, batch, image, text_queries, output);
      }
    }
    auto* execution = arrived->responses[index]->mutable_execution();
    execution->set_kernel(ithaca::v1::ATTENTION_KERNEL_MATH);
    (*execution->mutable_stage_seconds())["attention"] = 0.001 * (rank + 1);
    execution->set_communication_bytes(100 + static_cast<uint64_t>(rank));
    execution->set_total_seconds(0.002 * (rank + 1));
    arrived->finishes[index](grpc::Status::OK);
  }
}

}  // namespace ithaca::server
