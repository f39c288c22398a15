#ifndef ITHACA_CLIENT_SHARED_STAGING_H_
#define ITHACA_CLIENT_SHARED_STAGING_H_

#include <cstdint>
#include <memory>

#include "client/attention_call.h"
#include "client/memory_region.h"

// A call's tensors in one region of shared memory, those aside that are in a
// region of their own.

namespace ithaca::client {

// Bytes of the region that the call needs.
uint64_t StagedBytes(const AttentionArguments& arguments);

// The call with its tensors copied into the region, and its output there.
// REQUIRES: the region has StagedBytes, and nobody else uses it.
// Cost: copies query, key and value once.
AttentionArguments StageInputs(const AttentionArguments& arguments,
                               std::shared_ptr<MemoryRegion> region);

// Moves the output of the staged call, `result`, to where the caller wants it.
// Cost: copies the output once.
void UnstageOutput(const AttentionArguments& arguments,
                   AttentionResult* result);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_SHARED_STAGING_H_
