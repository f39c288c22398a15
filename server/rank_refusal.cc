#include "server/rank_refusal.h"

#include <grpcpp/support/status.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "server/status_mapping.h"

namespace ithaca::server {

namespace {

using ithaca::internal::v1::RankRefusal;

std::optional<RankRefusal> RefusalOf(const grpc::Status& status) {
  RankRefusal refusal;
  if (status.ok() || !refusal.ParseFromString(status.error_details()) ||
      refusal.when() == RankRefusal::WHEN_UNSPECIFIED) {
    return std::nullopt;
  }
  return refusal;
}

absl::Status ToClient(const grpc::Status& status, const std::string& worker) {
  const absl::Status plain = FromGrpc(status);
  return absl::Status(absl::IsNotFound(plain)
                          ? absl::StatusCode::kFailedPrecondition
                          : plain.code(),
                      absl::StrCat("worker ", worker, ": ", plain.message()));
}

}  // namespace

bool LeavesGroupIntact(const grpc::Status& status) {
  return status.ok() || RefusalOf(status).has_value();
}

RankVerdict JudgeAnswers(const std::vector<grpc::Status>& answers,
                         const std::vector<std::string>& workers) {
  RankVerdict verdict;
  size_t before = 0;
  size_t after = 0;
  bool own_reason = false;
  for (size_t rank = 0; rank < answers.size(); ++rank) {
    const auto refusal = RefusalOf(answers[rank]);
    if (!refusal.has_value()) continue;
    ++(refusal->when() == RankRefusal::BEFORE_EXCHANGES ? before : after);
    if (verdict.refusal.ok() || (refusal->own_reason() && !own_reason)) {
      own_reason = refusal->own_reason();
      verdict.refusal = ToClient(answers[rank], workers[rank]);
    }
  }
  if (before == 0 && after == 0) return verdict;
  verdict.kind = before == 0 || before == answers.size()
                     ? RankVerdict::Kind::kRefused
                     : RankVerdict::Kind::kDisagree;
  return verdict;
}

}  // namespace ithaca::server
