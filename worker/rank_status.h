#ifndef ITHACA_WORKER_RANK_STATUS_H_
#define ITHACA_WORKER_RANK_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace ithaca {

// A call's end as RankService says it: where the group is intact after an
// error (call_refusal.h), with a RankRefusal in the details.
grpc::Status ToRankStatus(const absl::Status& status);

}  // namespace ithaca

#endif  // ITHACA_WORKER_RANK_STATUS_H_
