// GroupLifecycle's other half: workers that are to end, and those that must.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/group_lifecycle.h"

namespace ithaca::server {

using internal::v1::WorkerCommand;

void GroupLifecycle::OnLeaving(Worker* worker, absl::Time now) {
  worker->leaving = true;
  const std::string why = absl::StrCat(worker->member.worker, " is leaving");
  for (Seat& seat : seats_) {
    if (worker->group.empty() || seat.name != worker->group) continue;
    if (seat.formed) {
      seat.group.state = GroupState::kDraining;
      effects_->GroupDraining(seat.name, seat.group.generation);
    } else {
      End(&seat, std::nullopt, why, now);
    }
    return;
  }
  Dismiss(*worker, why);
}

void GroupLifecycle::Dismiss(const Worker& worker, const std::string& reason) {
  WorkerCommand shutdown;
  shutdown.mutable_shutdown()->set_reason(reason);
  effects_->Send(worker.id, std::move(shutdown));
}

void GroupLifecycle::Release(std::string_view name, uint64_t generation,
                             absl::Time now) {
  Seat* seat = FindSeat(name, generation);
  if (seat != nullptr) End(seat, std::nullopt, "a member is leaving", now);
}

void GroupLifecycle::DismissLocalWorkers(const std::string& reason) {
  for (const auto& [id, worker] : registry_.workers()) {
    if (worker.local_slot.has_value()) Dismiss(worker, reason);
  }
}

void GroupLifecycle::EndThoseThatCannotAbort(absl::Time now) {
  std::vector<WorkerId> late;
  for (const auto& [id, worker] : registry_.workers()) {
    for (const auto& [generation, limit] : worker.to_leave) {
      if (limit > now) continue;
      late.push_back(id);
      break;
    }
  }
  const std::string why =
      absl::StrCat("it did not abort its group within ",
                   absl::FormatDuration(options_.abort_limit));
  for (WorkerId id : late) {
    Worker* worker = registry_.Find(id);
    if (worker->local_slot.has_value()) {
      effects_->Disconnect(id, absl::UnavailableError(why));
      effects_->KillLocalSlot(*worker->local_slot);
      RemoveWorker(id, why, now);
    } else {
      worker->to_leave.clear();
      Dismiss(*worker, why);
      OnLeaving(worker, now);
    }
  }
}

}  // namespace ithaca::server
