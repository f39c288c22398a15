#include "client/planned_call.h"

#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/attention_rpc.h"
#include "client/attention_wire.h"
#include "client/plane_choice.h"
#include "client/run_soon.h"
#include "client/shared_staging.h"

namespace ithaca::client {
namespace {

// The server has judged the request before any rank saw it, or every rank
// declined it: nobody uses its regions any more.
bool IsRefusal(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return true;
    default:
      return false;
  }
}

std::vector<RegionView*> RegionsOf(AttentionArguments* arguments) {
  std::vector<RegionView*> views;
  for (RegionView* view :
       {&arguments->query.region, &arguments->key.region,
        &arguments->value.region, &arguments->output_region}) {
    if (view->region != nullptr) views.push_back(view);
  }
  return views;
}

absl::Status Validate(const AttentionArguments& arguments) {
  const uint64_t output_bytes = ByteSize(arguments.query);
  if (!arguments.output.empty() && arguments.output.size() != output_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "output: expected ", output_bytes, " bytes, as many as query has, got ",
        arguments.output.size()));
  }
  const std::tuple<const char*, const RegionView*, uint64_t> places[] = {
      {"query", &arguments.query.region, output_bytes},
      {"key", &arguments.key.region, ByteSize(arguments.key)},
      {"value", &arguments.value.region, ByteSize(arguments.value)},
      {"output_region", &arguments.output_region, output_bytes},
  };
  for (const auto& [name, view, bytes] : places) {
    if (view->region == nullptr) continue;
    const uint64_t size = view->region->byte_size();
    if (view->offset > size || bytes > size - view->offset) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": ", bytes, " bytes at offset ", view->offset,
                       " are not inside of its region of ", size));
    }
  }
  return absl::OkStatus();
}

class PlannedCall : public PendingCall,
                    public std::enable_shared_from_this<PlannedCall> {
 public:
  PlannedCall(std::shared_ptr<ClientCore> core,
              const AttentionArguments& arguments, AttentionCallback done)
      : core_(std::move(core)), arguments_(arguments), done_(std::move(done)) {}

  void Start() {
    const absl::Status status = Validate(arguments_);
    if (!status.ok()) {
      End(status);
      return;
    }
    Begin();
  }

  void Cancel() override {
    std::shared_ptr<PendingCall> rpc;
    {
      const absl::MutexLock lock(&mutex_);
      cancelled_ = true;
      rpc = rpc_;
      // What is busy looks itself when it is done.
      if (rpc == nullptr && phase_ != Phase::kPreparing) return;
      if (rpc == nullptr) phase_ = Phase::kEnded;
    }
    if (rpc != nullptr) {
      rpc->Cancel();
      return;
    }
    RunSoon([self = shared_from_this()] {
      std::exchange(self->done_, nullptr)(CancelledByCaller());
    });
  }

 private:
  // kPreparing: between two steps; Cancel may end it. kBusy: copying, or the
  // RPC runs.
  enum class Phase { kPreparing, kBusy, kEnded };

  static absl::Status CancelledByCaller() {
    return absl::CancelledError("cancelled by the caller");
  }

  // Enters the next step; false if the call is over.
  bool Enter(Phase phase) {
    {
      const absl::MutexLock lock(&mutex_);
      if (phase_ == Phase::kEnded) return false;
      phase_ = cancelled_ ? Phase::kEnded : phase;
      if (!cancelled_) return true;
    }
    std::exchange(done_, nullptr)(CancelledByCaller());
    return false;
  }

  void End(absl::StatusOr<AttentionResult> result) {
    {
      const absl::MutexLock lock(&mutex_);
      if (std::exchange(phase_, Phase::kEnded) == Phase::kEnded) return;
    }
    std::exchange(done_, nullptr)(std::move(result));
  }

  void Begin() {
    call_ = arguments_;
    RegisterRegions(0);
  }

  // The call's own regions, from the n-th on.
  void RegisterRegions(size_t n) {
    const std::vector<RegionView*> views = RegionsOf(&call_);
    if (n == views.size()) {
      Choose();
      return;
    }
    core_->lease->Register(
        views[n]->region, arguments_.deadline,
        [self = shared_from_this(), n](const absl::Status& status) {
          if (!self->Enter(Phase::kPreparing)) return;
          RegionView* view = RegionsOf(&self->call_)[n];
          if (status.ok()) {
            self->RegisterRegions(n + 1);
          } else if (view->region->plane() == Plane::kCudaMemory ||
                     view == &self->call_.output_region) {
            self->End(status);
          } else {
            // It is memory of this process all the same.
            self->note_ = std::string(status.message());
            *view = {};
            self->RegisterRegions(n);
          }
        });
  }

  void Choose() {
    const Plane asked = core_->options.plane;
    if (asked == Plane::kUnary || asked == Plane::kStream) {
      Send(asked);
      return;
    }
    core_->server->Get(arguments_.deadline, [self = shared_from_this(),
                                             asked](const PlaneLimits& limits) {
      if (!self->Enter(Phase::kPreparing)) return;
      PlaneChoice choice =
          ChoosePlane(asked, CountInlineBytes(self->call_), limits);
      if (!choice.note.empty()) self->note_ = std::move(choice.note);
      if (choice.plane == Plane::kSharedMemory) {
        self->Stage(limits);
      } else {
        self->Send(choice.plane);
      }
    });
  }

  void Stage(const PlaneLimits& limits) {
    const uint64_t bytes = StagedBytes(call_);
    if (bytes == 0) {
      Send(Plane::kUnary);
      return;
    }
    core_->pool->Acquire(
        bytes, arguments_.deadline,
        [self = shared_from_this(),
         limits](absl::StatusOr<std::shared_ptr<MemoryRegion>> region) {
          if (region.ok()) {
            if (!self->Enter(Phase::kBusy)) return;
            self->call_ = StageInputs(self->call_, *std::move(region));
            self->staged_ = true;
            self->Send(Plane::kUnary);
            return;
          }
          if (!self->Enter(Phase::kPreparing)) return;
          self->note_ = std::string(region.status().message());
          self->Send(ChooseConnectionPlane(Plane::kAuto,
                                           CountInlineBytes(self->call_),
                                           limits.max_message_bytes));
        });
  }

  void Send(Plane plane) {
    if (!Enter(Phase::kBusy)) return;
    if (plane == Plane::kUnary) {
      const absl::Status status = CheckMessageSizes();
      if (!status.ok()) {
        End(status);
        return;
      }
    }
    if (!note_.empty()) core_->Tell(note_);
    auto start = plane == Plane::kStream ? StartStreamRpc : StartUnaryRpc;
    int answers_before = 0;
    {
      const absl::MutexLock lock(&mutex_);
      answers_before = answers_;
    }
    auto rpc = start(
        core_->NextStub(), core_->options.token, call_,
        [self = shared_from_this()](absl::StatusOr<AttentionResult> result) {
          self->OnAnswer(std::move(result));
        });
    bool cancelled = false;
    {
      const absl::MutexLock lock(&mutex_);
      // It may have been answered by now.
      if (answers_ == answers_before) rpc_ = rpc;
      cancelled = cancelled_;
    }
    if (cancelled) rpc->Cancel();
  }

  absl::Status CheckMessageSizes() const {
    const InlineBytes bytes = CountInlineBytes(call_);
    const auto limit = static_cast<uint64_t>(core_->options.max_message_bytes);
    if (bytes.request <= limit && bytes.response <= limit) {
      return absl::OkStatus();
    }
    return absl::ResourceExhaustedError(absl::StrCat(
        "query, key and value are ", bytes.request, " bytes and the output ",
        bytes.response, ", and one message holds at most ", limit,
        ": take the stream plane"));
  }

  void OnAnswer(absl::StatusOr<AttentionResult> result) {
    {
      const absl::MutexLock lock(&mutex_);
      rpc_ = nullptr;
      ++answers_;
    }
    const absl::StatusCode code = result.status().code();
    const MemoryRegion* region = AnyRegionOf(call_);
    if (code == absl::StatusCode::kUnavailable) {
      core_->server->Forget();
      core_->pool->Forgive();
    }
    if (region != nullptr && code == absl::StatusCode::kNotFound &&
        !std::exchange(again_, true)) {
      core_->lease->Forget(region->registration().lease);
      staged_ = false;
      if (Enter(Phase::kPreparing)) Begin();
      return;
    }
    if (!result.ok() && !IsRefusal(code)) {
      for (RegionView* view : RegionsOf(&call_)) {
        view->region->MarkUncertain();
      }
    }
    if (staged_ && code == absl::StatusCode::kFailedPrecondition) {
      // Registered, and yet some worker can't reach it.
      unreachable_ = true;
      staged_ = false;
      note_ = std::string(result.status().message());
      core_->pool->Refuse(0, result.status());
      if (Enter(Phase::kPreparing)) Begin();
      return;
    }
    if (result.ok()) {
      if (staged_) UnstageOutput(arguments_, &*result);
      result->plane_note = std::move(note_);
    }
    // Whoever holds on to the PendingCall need not hold on to the tensors.
    call_ = {};
    arguments_ = {};
    End(std::move(result));
  }

  const std::shared_ptr<ClientCore> core_;
  AttentionArguments arguments_;
  AttentionCallback done_;
  // Of the step that runs.
  AttentionArguments call_;  // as it is sent
  bool staged_ = false;
  bool again_ = false;
  bool unreachable_ = false;
  std::string note_;

  absl::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kPreparing;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  int answers_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<PendingCall> rpc_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

grpc::GenericStub* ClientCore::NextStub() {
  const size_t turn = next_stub.fetch_add(1, std::memory_order_relaxed);
  return stubs[turn % stubs.size()].get();
}

void ClientCore::Tell(const std::string& note) {
  if (!told.exchange(true) && options.on_fallback) options.on_fallback(note);
}

std::shared_ptr<PendingCall> StartPlannedCall(
    const std::shared_ptr<ClientCore>& core,
    const AttentionArguments& arguments, AttentionCallback done) {
  auto call = std::make_shared<PlannedCall>(core, arguments, std::move(done));
  call->Start();
  return call;
}

}  // namespace ithaca::client
