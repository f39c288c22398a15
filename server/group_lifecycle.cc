#include "server/group_lifecycle.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ithaca::server {
namespace {

using internal::v1::WorkerCommand;
using internal::v1::WorkerEvent;

constexpr absl::Duration kFirstFormationPause = absl::Milliseconds(200);
constexpr absl::Duration kLongestFormationPause = absl::Seconds(5);
// A group that is gone is shown as failed for this long when no new one takes
// its name: long enough to be seen, not for ever after a scale-down.
constexpr absl::Duration kFailedSeatMemory = absl::Minutes(1);

// Unlike any other, of this coordinator or an earlier one.
std::string FreshRendezvousId(std::string_view name, uint64_t generation) {
  std::random_device random;
  return absl::StrFormat("%s/%d/%08x%08x", std::string(name), generation,
                         random(), random());
}

// Whether the silent one among the members is still to be found.
bool MembersAreSuspect(GroupFailureReason reason) {
  return reason == GroupFailureReason::kCallTimeout ||
         reason == GroupFailureReason::kProbeFailed;
}

}  // namespace

GroupLifecycle::GroupLifecycle(const GroupManagerOptions& options,
                               GroupEffects* effects, absl::Time now)
    : options_(options),
      effects_(effects),
      registry_(options.version),
      next_generation_(options.first_generation),
      last_tick_(now) {}

absl::StatusOr<WorkerId> GroupLifecycle::Join(const internal::v1::Join& join,
                                              std::string_view peer_host,
                                              absl::Time now) {
  if (Worker* old = registry_.FindPredecessor(join, peer_host)) {
    const WorkerId id = old->id;
    effects_->Disconnect(id, absl::UnavailableError("the worker joined anew"));
    RemoveWorker(id, "joined anew", now);
  }
  absl::StatusOr<Worker*> worker = registry_.Admit(join, peer_host, now);
  if (!worker.ok()) return worker.status();
  (*worker)->member.authorization = options_.token.Authorization();
  return (*worker)->id;
}

void GroupLifecycle::Welcome(WorkerId worker, absl::Time now) {
  WorkerCommand welcome;
  welcome.mutable_welcome()->set_heartbeat_interval_seconds(
      absl::ToDoubleSeconds(options_.heartbeat_interval));
  effects_->Send(worker, std::move(welcome));
  FormGroups(now);
}

void GroupLifecycle::OnEvent(WorkerId id, const WorkerEvent& event,
                             absl::Time now) {
  Worker* worker = registry_.Find(id);
  if (worker == nullptr) return;  // removed, its stream not yet ended
  worker->last_heard = now;
  if (std::exchange(worker->suspected, false)) FormGroups(now);
  if (event.has_form_result()) {
    OnFormResult(id, event.form_result(), now);
  } else if (event.has_group_failure()) {
    const internal::v1::GroupFailure& failure = event.group_failure();
    if (worker->group != failure.group()) return;
    ReportFailure(failure.group(), failure.generation(),
                  GroupFailureReason::kCollectiveFailed,
                  absl::StrCat(worker->member.worker, ": ", failure.error()),
                  now);
  } else if (event.has_left_group()) {
    worker->to_leave.erase(event.left_group().generation());
  } else if (event.has_leaving()) {
    OnLeaving(worker, now);
  }
}

void GroupLifecycle::OnFormResult(WorkerId id,
                                  const internal::v1::FormResult& result,
                                  absl::Time now) {
  Seat* seat = FindSeat(result.group(), result.generation());
  if (seat == nullptr || seat->formed) return;
  if (std::find(seat->workers.begin(), seat->workers.end(), id) ==
      seat->workers.end()) {
    return;
  }
  if (!result.formed()) {
    End(seat, GroupFailureReason::kFormationFailed,
        absl::StrCat(registry_.Find(id)->member.worker, ": ", result.error()),
        now);
    return;
  }
  seat->connected.insert(id);
  if (seat->connected.size() < seat->workers.size()) return;
  seat->formed = true;
  formation_pause_ = absl::ZeroDuration();
  for (WorkerId member : seat->workers) {
    registry_.Find(member)->failed_formations = 0;
  }
  effects_->GroupFormed(seat->group);
}

void GroupLifecycle::OnStreamEnd(WorkerId worker, absl::Time now) {
  RemoveWorker(worker, "its stream ended", now);
}

void GroupLifecycle::RemoveWorker(WorkerId id, const std::string& why,
                                  absl::Time now) {
  Worker* worker = registry_.Find(id);
  if (worker == nullptr) return;
  const std::string group = worker->group;
  const std::string message =
      absl::StrCat("worker ", worker->member.worker, " is lost: ", why);
  if (worker->leaving && group.empty()) {
    effects_->WorkerLeft(worker->member.worker);
  } else {
    effects_->WorkerLost(worker->member.worker, why);
  }
  registry_.Remove(id);
  for (Seat& seat : seats_) {
    if (!group.empty() && seat.name == group) {
      End(&seat, GroupFailureReason::kWorkerLost, message, now);
      return;
    }
  }
}

void GroupLifecycle::MarkReady(std::string_view name, uint64_t generation) {
  Seat* seat = FindSeat(name, generation);
  if (seat != nullptr && seat->formed &&
      seat->group.state == GroupState::kForming && !draining_) {
    seat->group.state = GroupState::kReady;
  }
}

void GroupLifecycle::ReportFailure(std::string_view name, uint64_t generation,
                                   GroupFailureReason reason,
                                   std::string_view message, absl::Time now) {
  Seat* seat = FindSeat(name, generation);
  if (seat != nullptr) End(seat, reason, std::string(message), now);
}

void GroupLifecycle::Drain() {
  draining_ = true;
  for (Seat& seat : seats_) {
    if (seat.formed) seat.group.state = GroupState::kDraining;
  }
}

void GroupLifecycle::End(Seat* seat, std::optional<GroupFailureReason> reason,
                         const std::string& message, absl::Time now) {
  WorkerCommand leave;
  leave.mutable_leave_group()->set_group(seat->name);
  leave.mutable_leave_group()->set_generation(seat->group.generation);
  leave.mutable_leave_group()->set_reason(message);
  // With a dead member the cause of a failed formation is known and gone; else
  // it may well be there still.
  const bool pause = reason.has_value() && !seat->formed &&
                     *reason != GroupFailureReason::kWorkerLost;
  // An attempt to form ends by its own time limit.
  const absl::Time gone_by =
      (seat->formed ? now : std::max(now, seat->formation_deadline)) +
      options_.abort_limit;
  for (WorkerId id : seat->workers) {
    Worker* worker = registry_.Find(id);
    if (worker == nullptr) continue;
    worker->group.clear();
    worker->suspected = reason.has_value() && MembersAreSuspect(*reason);
    worker->to_leave[seat->group.generation] = gone_by;
    if (pause) ++worker->failed_formations;
    effects_->Send(id, leave);
    if (worker->leaving) Dismiss(*worker, message);
  }
  effects_->CloseRendezvous(seat->rendezvous_id);
  if (!reason.has_value()) {
    // Whoever released it knows.
  } else if (seat->formed) {
    effects_->GroupLost(seat->name, seat->group.generation, *reason, message);
  } else {
    effects_->FormationFailed(seat->name, seat->group.generation, message);
  }
  if (pause) {
    formation_pause_ = std::clamp(formation_pause_ * 2, kFirstFormationPause,
                                  kLongestFormationPause);
    no_formation_before_ = now + formation_pause_;
  }
  seat->formed = false;
  seat->rendezvous_id.clear();
  seat->workers.clear();
  seat->connected.clear();
  seat->group.members.clear();
  seat->group.state = GroupState::kFailed;
  seat->failed_at = now;
  FormGroups(now);
}

GroupLifecycle::Seat* GroupLifecycle::FindSeat(std::string_view name,
                                               uint64_t generation) {
  for (Seat& seat : seats_) {
    if (seat.name == name && seat.group.generation == generation &&
        seat.group.state != GroupState::kFailed) {
      return &seat;
    }
  }
  return nullptr;
}

GroupLifecycle::Seat* GroupLifecycle::FreeSeat() {
  for (Seat& seat : seats_) {
    if (seat.group.state == GroupState::kFailed) return &seat;
  }
  // The lowest number that no seat has: seats forgotten leave gaps.
  size_t number = 0;
  while (number < seats_.size() &&
         seats_[number].name == absl::StrCat("g", number)) {
    ++number;
  }
  Seat seat;
  seat.name = absl::StrCat("g", number);
  return &*seats_.insert(seats_.begin() + static_cast<ptrdiff_t>(number),
                         std::move(seat));
}

void GroupLifecycle::FormGroups(absl::Time now) {
  reconsider_at_ = absl::InfiniteFuture();
  if (draining_) return;
  if (now < no_formation_before_) {
    reconsider_at_ = no_formation_before_;
    return;
  }
  while (true) {
    std::vector<FormationCandidate> candidates;
    for (const auto& [id, worker] : registry_.workers()) {
      if (!worker.group.empty() || worker.suspected || worker.leaving) continue;
      candidates.push_back({id, worker.host, worker.local_slot,
                            worker.joined_at, worker.failed_formations});
    }
    FormationDecision decision = ChooseMembers(candidates, options_.group_size,
                                               now, options_.same_host_wait);
    if (decision.members.empty()) {
      reconsider_at_ = decision.wait_until;
      return;
    }
    BeginFormation(decision.members, now);
  }
}

void GroupLifecycle::BeginFormation(const std::vector<WorkerId>& members,
                                    absl::Time now) {
  Seat* seat = FreeSeat();
  const uint64_t generation = next_generation_++;
  seat->group = Group{seat->name, generation, GroupState::kForming, {}};
  seat->rendezvous_id = FreshRendezvousId(seat->name, generation);
  seat->workers = members;
  seat->formation_deadline = now + options_.formation_timeout;
  effects_->OpenRendezvous(seat->rendezvous_id);

  WorkerCommand command;
  internal::v1::FormGroup* form = command.mutable_form_group();
  form->set_group(seat->name);
  form->set_generation(generation);
  form->set_world_size(static_cast<uint32_t>(members.size()));
  form->set_rendezvous_id(seat->rendezvous_id);
  form->set_formation_timeout_seconds(
      absl::ToDoubleSeconds(options_.formation_timeout));
  form->set_collective_timeout_seconds(
      absl::ToDoubleSeconds(options_.collective_timeout));
  for (size_t rank = 0; rank < members.size(); ++rank) {
    Worker* worker = registry_.Find(members[rank]);
    worker->group = seat->name;
    seat->group.members.push_back(worker->member);
    form->set_rank(static_cast<uint32_t>(rank));
    effects_->Send(members[rank], command);
  }
}

void GroupLifecycle::Tick(absl::Time now) {
  if (now - last_tick_ >= options_.heartbeat_limit) {
    registry_.ForgiveSilence(now);
  }
  last_tick_ = now;

  const absl::Duration limit = options_.heartbeat_limit;
  for (WorkerId id : registry_.SilentSince(now - limit)) {
    const std::optional<int> slot = registry_.Find(id)->local_slot;
    const std::string why =
        absl::StrCat("no heartbeat for ", absl::FormatDuration(limit));
    effects_->Disconnect(id, absl::UnavailableError(why));
    if (slot.has_value()) effects_->KillLocalSlot(*slot);
    RemoveWorker(id, why, now);
  }

  EndThoseThatCannotAbort(now);

  for (size_t i = 0; i < seats_.size(); ++i) {
    Seat& seat = seats_[i];
    if (seat.group.state == GroupState::kForming && !seat.formed &&
        seat.formation_deadline <= now) {
      End(&seat, GroupFailureReason::kFormationFailed,
          absl::StrCat("not connected within ",
                       absl::FormatDuration(options_.formation_timeout)),
          now);
    }
  }
  seats_.erase(
      std::remove_if(seats_.begin(), seats_.end(),
                     [now](const Seat& seat) {
                       return seat.group.state == GroupState::kFailed &&
                              seat.failed_at + kFailedSeatMemory <= now;
                     }),
      seats_.end());
  if (reconsider_at_ <= now) FormGroups(now);
}

absl::Time GroupLifecycle::NextDeadline() const {
  // Also a bound on how long Tick may stay away: see there.
  absl::Time next =
      std::min(last_tick_ + options_.heartbeat_limit / 3,
               registry_.LongestSilent() + options_.heartbeat_limit);
  next = std::min(next, reconsider_at_);
  for (const auto& [id, worker] : registry_.workers()) {
    for (const auto& [generation, limit] : worker.to_leave) {
      next = std::min(next, limit);
    }
  }
  for (const Seat& seat : seats_) {
    if (seat.group.state == GroupState::kForming && !seat.formed) {
      next = std::min(next, seat.formation_deadline);
    }
  }
  return next;
}

std::vector<Group> GroupLifecycle::Groups() const {
  std::vector<Group> groups;
  for (const Seat& seat : seats_) groups.push_back(seat.group);
  return groups;
}

std::vector<GroupMember> GroupLifecycle::JoinedWorkers() const {
  std::vector<GroupMember> joined;
  for (const auto& [id, worker] : registry_.workers()) {
    joined.push_back(worker.member);
  }
  return joined;
}

GroupManager::WorkerCounts GroupLifecycle::Workers() const {
  GroupManager::WorkerCounts counts;
  counts.joined = static_cast<int>(registry_.workers().size());
  for (const Seat& seat : seats_) {
    const int members = static_cast<int>(seat.workers.size());
    (seat.formed ? counts.in_group : counts.forming) += members;
    counts.joined -= members;
  }
  return counts;
}

}  // namespace ithaca::server
