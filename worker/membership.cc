#include "worker/membership.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/grpc_rendezvous_store.h"

namespace ithaca {
namespace {

using internal::v1::WorkerCommand;
using internal::v1::WorkerEvent;

// Answers that another attempt would get again.
bool IsFinal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) ||
         absl::IsInvalidArgument(status) || absl::IsUnauthenticated(status) ||
         absl::IsUnimplemented(status);
}

GroupMembership FromProto(const internal::v1::FormGroup& form) {
  GroupMembership membership;
  membership.group = form.group();
  membership.generation = form.generation();
  membership.rank = static_cast<int>(form.rank());
  membership.world_size = static_cast<int>(form.world_size());
  membership.rendezvous_id = form.rendezvous_id();
  membership.formation_timeout =
      absl::Seconds(form.formation_timeout_seconds());
  membership.collective_timeout =
      absl::Seconds(form.collective_timeout_seconds());
  return membership;
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeCoordinatorChannel(
    const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2'000);
  // A connection of its own, whoever else in this process dials there.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   arguments);
}

Membership::Membership(std::shared_ptr<grpc::Channel> channel,
                       MembershipOptions options, MembershipEvents events)
    : channel_(std::move(channel)),
      stub_(internal::v1::WorkerRegistry::NewStub(channel_)),
      options_(std::move(options)),
      events_(std::move(events)) {}

Membership::~Membership() { Stop(); }

void Membership::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Membership::Leave(absl::Time deadline) {
  WorkerEvent event;
  event.mutable_leaving();
  Post(std::move(event));
  absl::MutexLock lock(&mutex_);
  const auto detached = [this] { return !attached_; };
  mutex_.AwaitWithDeadline(absl::Condition(&detached), deadline);
}

void Membership::SetAttached(bool attached) {
  absl::MutexLock lock(&mutex_);
  attached_ = attached;
}

bool Membership::Stop(absl::Duration limit) {
  inbox_.Close();
  if (thread_.joinable()) thread_.join();
  return reaper_.AwaitAll(limit);
}

void Membership::Run() {
  absl::Duration delay = options_.first_redial_delay;
  while (!inbox_.closed()) {
    const StreamEnd end = Serve();
    SetAttached(false);
    Retire(absl::UnavailableError(inbox_.closed() ? "this worker is ending"
                                                  : "the coordinator is gone"));
    if (welcomed_ && events_.on_coordinator_lost) events_.on_coordinator_lost();
    if (end == StreamEnd::kFinal) return;
    if (welcomed_) delay = options_.first_redial_delay;
    if (inbox_.AwaitClosed(delay)) return;
    delay = std::min(delay * 2, options_.longest_redial_delay);
  }
}

Membership::StreamEnd Membership::Serve() {
  welcomed_ = false;
  heartbeat_interval_ = absl::InfiniteDuration();
  inbox_.DropAll();
  MembershipStream stream(stub_.get(), options_.authorization, &inbox_);
  WorkerEvent join;
  *join.mutable_join() = options_.join;
  stream.Send(std::move(join));

  absl::Time next_heartbeat = absl::InfiniteFuture();
  StreamEnd end = StreamEnd::kRedial;
  while (!inbox_.closed()) {
    std::optional<MembershipInbox::Letter> letter = inbox_.Take(next_heartbeat);
    if (!letter.has_value()) {
      WorkerEvent event;
      event.mutable_heartbeat();
      stream.Send(std::move(event));
    } else if (letter->event.has_value()) {
      stream.Send(*std::move(letter->event));
    } else if (letter->command.has_value()) {
      Handle(*letter->command);
    } else {
      const absl::Status& why = *letter->ended;
      if (dismissed_) {
        end = StreamEnd::kFinal;
      } else if (!welcomed_ && IsFinal(why)) {
        end = StreamEnd::kFinal;
        events_.on_refused(why);
      } else {
        spdlog::log(
            welcomed_ ? spdlog::level::warn : spdlog::level::debug,
            "no coordinator: {}; dialling again",
            why.ok() ? "it closed the stream" : std::string(why.message()));
      }
      break;
    }
    // Whatever was sent says that this worker lives, but for what it heard.
    const bool said_something =
        !letter.has_value() || letter->event.has_value();
    if (said_something || next_heartbeat == absl::InfiniteFuture()) {
      next_heartbeat = absl::Now() + heartbeat_interval_;
    }
  }
  stream.Cancel();
  stream.AwaitDone();
  return end;
}

void Membership::Handle(const WorkerCommand& command) {
  switch (command.command_case()) {
    case WorkerCommand::kWelcome:
      welcomed_ = true;
      SetAttached(true);
      heartbeat_interval_ =
          absl::Seconds(command.welcome().heartbeat_interval_seconds());
      spdlog::info("joined the coordinator as {}", options_.join.worker());
      break;
    case WorkerCommand::kFormGroup:
      Form(command.form_group());
      break;
    case WorkerCommand::kLeaveGroup: {
      const internal::v1::LeaveGroup& leave = command.leave_group();
      if (session_ != nullptr &&
          session_->membership().generation == leave.generation()) {
        Retire(absl::UnavailableError(
            absl::StrCat("the group was dissolved: ", leave.reason())));
      }
      break;
    }
    case WorkerCommand::kShutdown:
      dismissed_ = true;
      SetAttached(false);
      events_.on_shutdown(command.shutdown().reason());
      break;
    case WorkerCommand::COMMAND_NOT_SET:
      break;
  }
}

void Membership::Form(const internal::v1::FormGroup& form) {
  Retire(absl::UnavailableError("this rank was called to another group"));
  spdlog::info("forming group {} generation {} as rank {} of {}", form.group(),
               form.generation(), form.rank(), form.world_size());
  GroupSessionEvents events;
  events.on_formed = [this, group = form.group(),
                      generation =
                          form.generation()](const absl::Status& status) {
    if (!status.ok()) {
      spdlog::warn("group {} generation {} did not form: {}", group, generation,
                   std::string(status.message()));
    }
    WorkerEvent event;
    internal::v1::FormResult* result = event.mutable_form_result();
    result->set_group(group);
    result->set_generation(generation);
    result->set_formed(status.ok());
    result->set_error(std::string(status.message()));
    Post(std::move(event));
  };
  events.on_lost = [this, group = form.group(),
                    generation = form.generation()](const absl::Status& why) {
    spdlog::error("group {} generation {} is lost: {}", group, generation,
                  std::string(why.message()));
    WorkerEvent event;
    internal::v1::GroupFailure* failure = event.mutable_group_failure();
    failure->set_group(group);
    failure->set_generation(generation);
    failure->set_error(std::string(why.message()));
    Post(std::move(event));
  };
  session_ = std::make_shared<GroupSession>(
      options_.session, FromProto(form),
      std::make_shared<GrpcRendezvousStore>(channel_, form.rendezvous_id(),
                                            options_.authorization),
      std::move(events));
  events_.on_session(session_);
}

void Membership::Retire(const absl::Status& why) {
  if (session_ == nullptr) return;
  spdlog::info("leaving group {} generation {}: {}",
               session_->membership().group, session_->membership().generation,
               std::string(why.message()));
  events_.on_session(nullptr);
  const uint64_t generation = session_->membership().generation;
  reaper_.Bury(std::move(session_), why, [this, generation] {
    WorkerEvent event;
    event.mutable_left_group()->set_generation(generation);
    Post(std::move(event));
  });
  session_.reset();
}

void Membership::Post(WorkerEvent event) {
  inbox_.Put({.command = {}, .event = std::move(event), .ended = {}});
}

}  // namespace ithaca
