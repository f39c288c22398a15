#include "server/group_manager.h"

namespace ithaca::server {

std::string_view Name(GroupState state) {
  switch (state) {
    case GroupState::kForming:
      return "forming";
    case GroupState::kReady:
      return "ready";
    case GroupState::kDraining:
      return "draining";
    case GroupState::kFailed:
      return "failed";
  }
  return "unknown";
}

std::string_view Name(GroupFailureReason reason) {
  switch (reason) {
    case GroupFailureReason::kWorkerLost:
      return "worker_lost";
    case GroupFailureReason::kCollectiveFailed:
      return "collective_failed";
    case GroupFailureReason::kCallTimeout:
      return "call_timeout";
    case GroupFailureReason::kProbeFailed:
      return "probe_failed";
    case GroupFailureReason::kFormationFailed:
      return "formation_failed";
  }
  return "unknown";
}

}  // namespace ithaca::server
