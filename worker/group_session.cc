#include "worker/group_session.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "worker/call_refusal.h"

namespace ithaca {

GroupSession::GroupSession(const GroupSessionOptions& options,
                           GroupMembership membership,
                           std::shared_ptr<RendezvousStore> store,
                           GroupSessionEvents events)
    : options_(options),
      membership_(std::move(membership)),
      store_(std::move(store)),
      events_(std::move(events)),
      thread_([this] { Run(); }) {}

GroupSession::~GroupSession() {
  Abort(absl::UnavailableError("this rank left its group"));
  thread_.join();
}

absl::Status GroupSession::Submit(RankCall call, Done done) {
  const uint64_t number = call.number;
  // std::function copies what it holds: a call moves in once and out once.
  auto held = std::make_shared<RankCall>(std::move(call));
  return sequencer_.Submit(
      number, [this, held = std::move(held),
               done = std::move(done)](const absl::Status& admission) {
        if (admission.ok()) {
          RunCall(std::move(*held), done);
        } else {
          done(admission);
        }
      });
}

void GroupSession::RunCall(RankCall call, const Done& done) {
  // Between an abort's word to the communicator and its word to the sequencer
  // a next call may still get its turn.
  if (const absl::Status aborted = Aborted(); !aborted.ok()) {
    done(aborted);
    return;
  }
  absl::StatusOr<RankResult> result = executor_->Run(std::move(call));
  const absl::Status status = result.status();
  if (GroupSurvives(status)) {
    done(std::move(result));
    return;
  }
  // The others are freed before anyone is told.
  const bool first = AbortOnce(status);
  done(std::move(result));
  if (first && events_.on_lost) events_.on_lost(status);
}

void GroupSession::Abort(const absl::Status& why) {
  static_cast<void>(AbortOnce(why));
}

bool GroupSession::AbortOnce(const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (!aborted_.ok()) return false;
    aborted_ = why;
    if (communicator_ != nullptr) communicator_->Abort();
  }
  sequencer_.Abort(why);
  return true;
}

absl::Status GroupSession::Aborted() {
  absl::MutexLock lock(&mutex_);
  return aborted_;
}

void GroupSession::FailToForm(const absl::Status& why) {
  Abort(why);
  if (events_.on_formed) events_.on_formed(why);
}

void GroupSession::WarmUp() {
  for (const WarmShape& warm : options_.warm_shapes) {
    {
      absl::MutexLock lock(&mutex_);
      if (!aborted_.ok()) return;
    }
    const absl::Status status = executor_->WarmUp(warm.shape, warm.options);
    if (status.ok()) continue;
    spdlog::warn("not prepared for calls of {} image and {} text tokens: {}",
                 warm.shape.image_tokens, warm.shape.text_tokens,
                 status.ToString());
  }
}

void GroupSession::Run() {
  absl::StatusOr<std::unique_ptr<RankDevice>> device = options_.open_device();
  if (!device.ok()) return FailToForm(device.status());
  absl::StatusOr<std::unique_ptr<Communicator>> communicator =
      (*device)->FormGroup(*store_, membership_.rank, membership_.world_size,
                           membership_.formation_timeout,
                           membership_.collective_timeout);
  if (!communicator.ok()) return FailToForm(communicator.status());
  RankExecutor executor((*device)->device(), communicator->get(),
                        (*device)->kernels(), options_.buffers,
                        options_.regions);
  executor.DelayVotes(options_.vote_delay);
  executor_ = &executor;

  absl::Status aborted;
  {
    absl::MutexLock lock(&mutex_);
    aborted = aborted_;
    if (aborted.ok()) communicator_ = communicator->get();
  }
  if (events_.on_formed) events_.on_formed(aborted);
  if (aborted.ok()) {
    WarmUp();
    sequencer_.Run();
    absl::MutexLock lock(&mutex_);
    communicator_ = nullptr;
  }
}

}  // namespace ithaca
