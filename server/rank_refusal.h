#ifndef ITHACA_SERVER_RANK_REFUSAL_H_
#define ITHACA_SERVER_RANK_REFUSAL_H_

#include <grpcpp/support/status.h>

#include <string>
#include <vector>

#include "absl/status/status.h"

// What the ranks' errors come to, those that leave their group intact and
// others. Pure functions.

namespace ithaca::server {

// Whether a rank's answer leaves its group whole: OK, or an error that carries
// a RankRefusal.
bool LeavesGroupIntact(const grpc::Status& status);

// What all ranks' answers to one call come to.
struct RankVerdict {
  enum class Kind : uint8_t {
    kAnswered,  // all are OK
    kRefused,   // the call has failed, the group is intact
    kDisagree,  // some refused before the exchanges, others did not: it is lost
  };
  Kind kind = Kind::kAnswered;
  // Unless kAnswered: one rank's error, of one that knows why if there is any,
  // with its worker's name. kNotFound is kFailedPrecondition: what a rank
  // does not find is there for the client.
  absl::Status refusal;
};

// answers: by rank, each as LeavesGroupIntact takes it. workers: their names.
RankVerdict JudgeAnswers(const std::vector<grpc::Status>& answers,
                         const std::vector<std::string>& workers);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_RANK_REFUSAL_H_
