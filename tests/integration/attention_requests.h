#ifndef ITHACA_TESTS_INTEGRATION_ATTENTION_REQUESTS_H_
#define ITHACA_TESTS_INTEGRATION_ATTENTION_REQUESTS_H_

#include <string>

#include "core/attention_call.h"
#include "ithaca/v1/attention.pb.h"
#include "tests/oracle/tensor_data.h"

namespace ithaca {

// The request that a client would send for these numbers.
ithaca::v1::AttentionRequest MakeRequest(const std::string& request_id,
                                         const AttentionShape& shape,
                                         const oracle::CallInputs& inputs);

// A call whose right output is known exactly: PICK with TAG plus `base`, of 7
// tokens, 4 heads and head dim 16, in float32.
ithaca::v1::AttentionRequest GoodRequest(const std::string& request_id,
                                         double base = 0);
// Nothing if the response is right; else what is wrong.
std::string WhatIsWrong(const ithaca::v1::AttentionResponse& response,
                        double base = 0);

}  // namespace ithaca

#endif  // ITHACA_TESTS_INTEGRATION_ATTENTION_REQUESTS_H_
