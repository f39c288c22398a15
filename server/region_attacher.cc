#include "server/region_attacher.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>
#include <spdlog/common.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ithaca/internal/v1/worker.grpc.pb.h"
#include "server/group_manager.h"
#include "server/logging.h"
#include "server/rank_channel.h"

namespace ithaca::server {

namespace {

// What a member's answer to AttachRegion means to the client. OK too for one
// that is gone: it has nothing attached, and its group will fail.
absl::Status Refusal(const std::string& worker, const grpc::Status& status) {
  const std::string message =
      absl::StrCat("worker ", worker, ": ", status.error_message());
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
    case grpc::StatusCode::UNAVAILABLE:
      return absl::OkStatus();
    case grpc::StatusCode::NOT_FOUND:
      // The coordinator has seen it: to the client it is there, in vain.
      return absl::FailedPreconditionError(message);
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::CANCELLED:
      return absl::UnavailableError(
          absl::StrCat("worker ", worker, " has not attached it in time"));
    default:
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                          message);
  }
}

}  // namespace

// One question to several workers at once.
class RegionAttacher::Broadcast {
 public:
  enum class Question : uint8_t { kAttach, kDetach };

  Broadcast(Question question, const internal::v1::Region& region,
            std::vector<Member> members,
            std::function<void(absl::Status)> on_end)
      : on_end(std::move(on_end)),
        question_(question),
        missing_(members.size()) {
    *attach_.mutable_region() = region;
    detach_.set_region_id(region.id());
    for (Member& member : members) legs_.emplace_back(std::move(member));
  }

  // on_answered: once, when all have.
  void Start(absl::Time deadline, std::function<void()> on_answered) {
    on_answered_ = std::move(on_answered);
    for (Leg& leg : legs_) {
      leg.context.set_deadline(absl::ToChronoTime(deadline));
      auto on_status = [this, &leg](grpc::Status status) {
        leg.status = std::move(status);
        if (missing_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
        // What it holds holds this.
        const auto answered = std::move(on_answered_);
        answered();
      };
      if (question_ == Question::kAttach) {
        leg.member.stub->async()->AttachRegion(
            &leg.context, &attach_, &leg.attached, std::move(on_status));
      } else {
        leg.member.stub->async()->DetachRegion(
            &leg.context, &detach_, &leg.detached, std::move(on_status));
      }
    }
  }

  void Cancel() {
    for (Leg& leg : legs_) leg.context.TryCancel();
  }

  // REQUIRES: all have answered.
  absl::Status Outcome() const {
    if (question_ == Question::kDetach) return absl::OkStatus();
    for (const Leg& leg : legs_) {
      if (auto refusal = Refusal(leg.member.worker, leg.status);
          !refusal.ok()) {
        return refusal;
      }
    }
    return absl::OkStatus();
  }

  bool empty() const { return legs_.empty(); }
  const std::function<void(absl::Status)> on_end;

 private:
  struct Leg {
    explicit Leg(Member member) : member(std::move(member)) {}
    const Member member;
    grpc::ClientContext context;
    internal::v1::AttachRegionResponse attached;
    internal::v1::DetachRegionResponse detached;
    grpc::Status status;
  };

  const Question question_;
  internal::v1::AttachRegionRequest attach_;
  internal::v1::DetachRegionRequest detach_;
  std::deque<Leg> legs_;
  std::atomic<size_t> missing_;
  std::function<void()> on_answered_;
};

RegionAttacher::RegionAttacher(const GroupManager* manager, Options options)
    : manager_(manager), options_(options) {}

RegionAttacher::~RegionAttacher() { Stop(); }

std::vector<RegionAttacher::Member> RegionAttacher::Connected(
    const std::vector<GroupMember>& members) {
  std::vector<Member> connected;
  const absl::MutexLock lock(&mutex_);
  for (const GroupMember& member : members) {
    Member& known = members_[member.worker];
    if (known.address != member.address) {
      known = {member.worker, member.address,
               internal::v1::RankService::NewStub(MakeRankChannel(member))};
    }
    connected.push_back(known);
  }
  return connected;
}

void RegionAttacher::Attach(const internal::v1::Region& region,
                            std::function<void(absl::Status)> done) {
  std::vector<GroupMember> members;
  for (const Group& group : manager_->Groups()) {
    if (group.state != GroupState::kReady) continue;
    members.insert(members.end(), group.members.begin(), group.members.end());
  }
  Start(std::make_shared<Broadcast>(Broadcast::Question::kAttach, region,
                                    Connected(members), std::move(done)),
        options_.attach_timeout);
}

void RegionAttacher::Detach(const internal::v1::Region& region,
                            std::function<void()> done) {
  std::vector<Member> members = Connected(manager_->JoinedWorkers());
  {
    // Connections to workers that are gone end here.
    const absl::MutexLock lock(&mutex_);
    members_.clear();
    for (const Member& member : members) members_[member.worker] = member;
  }
  Start(std::make_shared<Broadcast>(
            Broadcast::Question::kDetach, region, std::move(members),
            [done = std::move(done)](const absl::Status&) { done(); }),
        options_.detach_timeout);
}

void RegionAttacher::Start(const std::shared_ptr<Broadcast>& broadcast,
                           absl::Duration timeout) {
  bool stopping = false;
  {
    const absl::MutexLock lock(&mutex_);
    stopping = stopping_;
    if (!stopping && !broadcast->empty()) running_.insert(broadcast);
  }
  if (stopping) {
    broadcast->on_end(absl::UnavailableError("the server is stopping"));
  } else if (broadcast->empty()) {
    broadcast->on_end(absl::OkStatus());
  } else {
    broadcast->Start(absl::Now() + timeout,
                     [this, broadcast] { OnAnswered(broadcast); });
  }
}

void RegionAttacher::OnAnswered(const std::shared_ptr<Broadcast>& broadcast) {
  const absl::Status outcome = broadcast->Outcome();
  if (!outcome.ok()) {
    Log(spdlog::level::info, "region refused",
        {{"error", std::string(outcome.message())}});
  }
  broadcast->on_end(outcome);
  const absl::MutexLock lock(&mutex_);
  running_.erase(broadcast);
}

void RegionAttacher::Stop() {
  std::vector<std::shared_ptr<Broadcast>> running;
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
    running.assign(running_.begin(), running_.end());
  }
  for (const auto& broadcast : running) broadcast->Cancel();
  running.clear();
  const absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return running_.empty();
  };
  mutex_.Await(absl::Condition(&idle));
}

}  // namespace ithaca::server
