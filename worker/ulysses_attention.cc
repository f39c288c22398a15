#include "worker/ulysses_attention.h"

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "worker/gather_heads.h"
#include "worker/scatter_heads.h"
#include "worker/ulysses_call.h"
#include "worker/ulysses_layout.h"

namespace ithaca {
namespace {

// Gives the time between marks to stages: each stage lasts until the next.
class StageClock {
 public:
  StageClock(Device* device, Stage first) : device_(device) { Enter(first); }

  void Enter(Stage stage) {
    if (!entries_.empty() && entries_.back().stage == stage) return;
    entries_.push_back({stage, device_->Mark()});
  }

  // REQUIRES: the device was synchronized after `end` was marked.
  std::array<double, kNumStages> Seconds(DeviceMark end) const {
    std::array<double, kNumStages> seconds = {};
    for (size_t i = 0; i < entries_.size(); ++i) {
      const DeviceMark until =
          i + 1 < entries_.size() ? entries_[i + 1].mark : end;
      seconds[static_cast<size_t>(entries_[i].stage)] +=
          device_->SecondsBetween(entries_[i].mark, until);
    }
    return seconds;
  }

 private:
  struct Entry {
    Stage stage;
    DeviceMark mark;
  };

  Device* const device_;
  std::vector<Entry> entries_;
};

// One run of a call that all ranks have agreed to.
class Execution {
 public:
  Execution(const UlyssesCall& call, Device* device, Communicator* communicator,
            AttentionKernels* kernels, AttentionKernelKind kernel,
            StageClock* clock)
      : call_(call),
        device_(device),
        communicator_(communicator),
        kernels_(kernels),
        kernel_(kernel),
        clock_(clock),
        params_{call.shape().dtype, call.shape().head_dim,
                call.plan.options.precision},
        outputs_(call.plan.num_lanes) {}

  // All ranks start the exchanges in this order: while a lane attends, the
  // next one is on its way in and the one before on its way back.
  absl::Status Run() {
    const int num_lanes = call_.plan.num_lanes;
    absl::Status status = ZeroPaddedText();
    if (status.ok()) status = SendIn(0);
    for (int lane = 0; status.ok() && lane < num_lanes; ++lane) {
      if (lane + 1 < num_lanes) status = SendIn(lane + 1);
      if (status.ok()) status = FinishUntilIn(lane);
      if (status.ok()) status = Attend(lane);
      if (status.ok()) status = SendBack(lane);
    }
    if (status.ok()) status = SendText();
    while (status.ok() && !pending_.empty()) {
      status = LastTwoAreSmall() ? FinishLastTwo() : FinishOldest();
    }
    return status;
  }

  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  enum class Way : uint8_t { kIn, kBack, kText };

  struct Pending {
    ExchangeId id = 0;
    Way way = Way::kIn;
    int lane = 0;
  };

  absl::Status ZeroPaddedText() {
    const AttentionShape& shape = call_.shape();
    if (shape.text_query_tokens() == 0 ||
        TotalValidText(shape) == shape.batch * shape.text_tokens) {
      return absl::OkStatus();
    }
    clock_->Enter(Stage::kOutputUnpack);
    const int64_t token_bytes = call_.TokenBytes(shape.num_heads);
    for (int64_t b = 0; b < shape.batch; ++b) {
      const int64_t valid = shape.valid_text_tokens[b];
      char* padding = static_cast<char*>(call_.outputs.text) +
                      (b * shape.text_tokens + valid) * token_bytes;
      absl::Status status =
          device_->Zero(padding, (shape.text_tokens - valid) * token_bytes);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Start(const ExchangeSegments& segments, Way way, int lane) {
    absl::StatusOr<ExchangeId> id =
        communicator_->StartExchange(segments.sends, segments.recvs);
    if (!id.ok()) return id.status();
    for (const SendSegment& send : segments.sends) bytes_sent_ += send.bytes;
    pending_.push_back({*id, way, lane});
    return absl::OkStatus();
  }

  absl::Status SendIn(int lane) {
    clock_->Enter(Stage::kPack);
    absl::Status status =
        device_->CopyHeads(params_, PackCopyJobs(call_, lane));
    if (status.ok() && call_.quantized()) {
      status = device_->QuantizeHeads(params_, PackQuantizeJobs(call_, lane));
    }
    if (!status.ok()) return status;
    clock_->Enter(Stage::kAllToAll);
    return Start(InputSegments(call_, lane), Way::kIn, lane);
  }

  absl::Status Attend(int lane) {
    clock_->Enter(Stage::kAttention);
    LaneOutput& output = outputs_[lane];
    output.pieces = SplitIntoAttentionPieces(call_.plan, call_.rank, lane);
    for (const AttentionPiece& piece : output.pieces) {
      for (int64_t b = 0; b < call_.shape().batch; ++b) {
        const AttentionArguments arguments =
            MakeAttentionArguments(call_, lane, piece, b, kernel_);
        AttentionResult& result = output.results.emplace_back();
        if (arguments.query.tokens == 0) continue;
        absl::StatusOr<AttentionResult> attended = kernels_->Attend(arguments);
        if (!attended.ok()) return attended.status();
        result = *std::move(attended);
      }
    }
    return absl::OkStatus();
  }

  absl::Status SendBack(int lane) {
    clock_->Enter(Stage::kOutputPack);
    const LaneOutput& output = outputs_[lane];
    absl::Status status =
        device_->CopyHeads(params_, OutputPackCopyJobs(call_, lane, output));
    if (status.ok() && call_.quantized()) {
      status = device_->QuantizeHeads(
          params_, OutputPackQuantizeJobs(call_, lane, output));
    }
    if (!status.ok()) return status;
    clock_->Enter(Stage::kOutputAllToAll);
    return Start(OutputSegments(call_, lane, output), Way::kBack, lane);
  }

  absl::Status SendText() {
    if (call_.shape().text_query_tokens() == 0) return absl::OkStatus();
    clock_->Enter(Stage::kOutputAllToAll);
    return Start(TextSegments(call_, outputs_), Way::kText, 0);
  }

  absl::Status FinishUntilIn(int lane) {
    for (;;) {
      const Pending oldest = pending_.front();
      absl::Status status = FinishOldest();
      if (!status.ok()) return status;
      if (oldest.way == Way::kIn && oldest.lane == lane) return status;
    }
  }

  // The last lane's rows and the text's are all that is missing, and unpacking
  // the rows is no more work than a launch: it is not worth one of its own
  // while the text is on its way.
  bool LastTwoAreSmall() const {
    constexpr int64_t kBytesOfALaunch = int64_t{8} << 20;
    return pending_.size() == 2 && pending_[0].way == Way::kBack &&
           pending_[1].way == Way::kText && !call_.quantized() &&
           call_.shape().batch * call_.share().image_tokens.size *
                   call_.TokenBytes(call_.shape().num_heads) <=
               kBytesOfALaunch;
  }

  absl::Status FinishLastTwo() {
    clock_->Enter(Stage::kOutputAllToAll);
    const int lane = pending_.front().lane;
    for (const Pending& pending : pending_) {
      absl::Status status = communicator_->WaitExchange(pending.id);
      if (!status.ok()) return status;
    }
    pending_.clear();
    clock_->Enter(Stage::kOutputUnpack);
    std::vector<kernels::CopyJob> jobs =
        OutputUnpackCopyJobs(call_, lane, outputs_[lane]);
    const std::vector<kernels::CopyJob> text = TextUnpackJobs(call_, outputs_);
    jobs.insert(jobs.end(), text.begin(), text.end());
    return device_->CopyHeads(params_, jobs);
  }

  absl::Status FinishOldest() {
    const Pending oldest = pending_.front();
    pending_.pop_front();
    clock_->Enter(oldest.way == Way::kIn ? Stage::kAllToAll
                                         : Stage::kOutputAllToAll);
    absl::Status status = communicator_->WaitExchange(oldest.id);
    if (!status.ok()) return status;
    // What arrived is where it is wanted: a mark would cost more than the
    // stage.
    if (oldest.way == Way::kIn && !call_.quantized()) return status;
    clock_->Enter(oldest.way == Way::kIn ? Stage::kUnpack
                                         : Stage::kOutputUnpack);
    switch (oldest.way) {
      case Way::kIn:
        return device_->DequantizeHeads(params_,
                                        UnpackJobs(call_, oldest.lane));
      case Way::kBack:
        status = UnpackOutput(oldest.lane);
        // Its text, if it has any, is still to be sent and kept.
        if (call_.shape().text_query_tokens() == 0) outputs_[oldest.lane] = {};
        return status;
      case Way::kText:
        return device_->CopyHeads(params_, TextUnpackJobs(call_, outputs_));
    }
    return absl::InternalError("unknown exchange");
  }

  absl::Status UnpackOutput(int lane) {
    if (call_.quantized()) {
      return device_->DequantizeHeads(params_,
                                      OutputUnpackDequantizeJobs(call_, lane));
    }
    return device_->CopyHeads(
        params_, OutputUnpackCopyJobs(call_, lane, outputs_[lane]));
  }

  const UlyssesCall& call_;
  Device* const device_;
  Communicator* const communicator_;
  AttentionKernels* const kernels_;
  const AttentionKernelKind kernel_;
  StageClock* const clock_;
  const kernels::LayoutParams params_;
  // By lane, while in use: the device may still have to read them.
  std::vector<LaneOutput> outputs_;
  std::deque<Pending> pending_;  // in the order of start
  int64_t bytes_sent_ = 0;
};

// Once an exchange has begun no rank may call the group intact.
absl::Status AsGroupLoss(const absl::Status& status) {
  if (status.ok() || absl::IsUnavailable(status) || absl::IsInternal(status)) {
    return status;
  }
  return absl::InternalError(absl::StrCat(
      "after the first exchange: ", absl::StatusCodeToString(status.code()),
      ": ", status.message()));
}

}  // namespace

std::string_view Name(Stage stage) {
  switch (stage) {
    case Stage::kScatter:
      return "scatter";
    case Stage::kPack:
      return "pack";
    case Stage::kAllToAll:
      return "all_to_all";
    case Stage::kUnpack:
      return "unpack";
    case Stage::kAttention:
      return "attention";
    case Stage::kOutputPack:
      return "output_pack";
    case Stage::kOutputAllToAll:
      return "output_all_to_all";
    case Stage::kOutputUnpack:
      return "output_unpack";
    case Stage::kGather:
      return "gather";
  }
  return "unknown";
}

UlyssesAttention::UlyssesAttention(Device* device, Communicator* communicator,
                                   AttentionKernels* kernels, Arena* arena)
    : device_(device),
      communicator_(communicator),
      kernels_(kernels),
      arena_(arena) {}

absl::StatusOr<RankReport> UlyssesAttention::Run(
    const SequenceParallelPlan& plan, uint64_t call_number,
    const RankInputs& inputs, const RankOutputs& outputs) {
  if (plan.world_size != communicator_->world_size()) {
    return absl::InternalError(absl::StrCat("a plan for ", plan.world_size,
                                            " ranks in a group of ",
                                            communicator_->world_size()));
  }
  StageClock clock(device_, Stage::kScatter);
  const int rank = communicator_->rank();
  const UlyssesLayout layout =
      MakeUlyssesLayout(plan, rank, InputsLieJoined(plan, inputs));

  absl::StatusOr<AttentionKernelKind> kernel =
      kernels_->Choose(plan.options.kernel, plan.shape);
  absl::Status own = kernel.status();
  if (own.ok()) own = kernels_->Reserve(plan, rank, *kernel);
  if (own.ok()) own = arena_->Reset(layout.bytes);

  const absl::Status agreed =
      communicator_->Agree({call_number, plan.Fingerprint(), own.code()});
  if (!agreed.ok()) {
    // This rank knows more about its own trouble than the votes tell.
    return agreed.code() == own.code() ? own : agreed;
  }

  const UlyssesCall call = {
      plan,   layout, rank, static_cast<char*>(arena_->Take(layout.bytes)),
      inputs, outputs};
  Execution execution(call, device_, communicator_, kernels_, *kernel, &clock);
  absl::Status status = execution.Run();
  const DeviceMark end = device_->Mark();
  if (status.ok()) status = device_->Synchronize();
  if (!status.ok()) {
    // Exchanges in flight read and write memory that is about to be reused.
    communicator_->Abort();
    return AsGroupLoss(status);
  }

  RankReport report;
  report.stage_seconds = clock.Seconds(end);
  report.communication_bytes = execution.bytes_sent();
  report.kernel = *kernel;
  return report;
}

}  // namespace ithaca
