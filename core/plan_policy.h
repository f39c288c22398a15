#ifndef ITHACA_CORE_PLAN_POLICY_H_
#define ITHACA_CORE_PLAN_POLICY_H_

#include <string_view>

#include "core/attention_call.h"
#include "core/sequence_parallel_plan.h"

namespace ithaca {

// The policy for calls on a group of such devices ("cpu", "cuda:0"). Pure: the
// coordinator and every rank ask here, and so make the same plan.
//
// On GPUs, lanes hide exchanges behind attention and cost whole waves of it: a
// head's rows are cut into tiles, a tile runs on one multiprocessor, and a lane
// whose tiles do not fill the last wave wastes the rest of it. One head a lane
// has been seen to cost 8 to 24 % of attention. So the number of lanes is the
// one with the shortest total in a small model of a call (the exchanges in
// order on one stream, attention on another), which also says whether AUTO is
// better off fused. Its rates are an H200's; on other GPUs the choice may be a
// little off, never wrong.
//
// For example, at 8 ranks: Wan 2.1 720p (75600 tokens, 5 heads a rank) takes
// lanes of 2, 2 and 1 heads; FLUX (4608 tokens, 3 heads a rank) is fused.
PlanPolicy PlanPolicyFor(std::string_view device, const AttentionShape& shape,
                         int world_size);

}  // namespace ithaca

#endif  // ITHACA_CORE_PLAN_POLICY_H_
