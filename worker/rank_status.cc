#include "worker/rank_status.h"

#include <optional>

#include "ithaca/internal/v1/worker.pb.h"
#include "worker/call_refusal.h"
#include "worker/grpc_status.h"

namespace ithaca {

grpc::Status ToRankStatus(const absl::Status& status) {
  grpc::Status plain = ToGrpc(status);
  const std::optional<Refusal> refusal = RefusalOf(status);
  if (!refusal.has_value()) return plain;
  internal::v1::RankRefusal details;
  details.set_when(*refusal == Refusal::kAfterExchanges
                       ? internal::v1::RankRefusal::AFTER_EXCHANGES
                       : internal::v1::RankRefusal::BEFORE_EXCHANGES);
  details.set_own_reason(*refusal != Refusal::kAnotherRanksReason);
  return grpc::Status(plain.error_code(), plain.error_message(),
                      details.SerializeAsString());
}

}  // namespace ithaca
