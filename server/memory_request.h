#ifndef ITHACA_SERVER_MEMORY_REQUEST_H_
#define ITHACA_SERVER_MEMORY_REQUEST_H_

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/status/status.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "ithaca/v1/memory.pb.h"
#include "server/shared_memory_object.h"

// What clients ask of ithaca.v1.MemoryService, from bytes to checked numbers.
// Each refusal is kInvalidArgument and names the field, what was expected and
// what came. Pure functions.

namespace ithaca::server {

inline constexpr int64_t kMaxRegionNameBytes = 256;
inline constexpr int64_t kMaxObjectNameBytes = 255;
// Only such objects can be registered: no client reaches what another program
// keeps in shared memory.
inline constexpr char kObjectNamePrefix[] = "/ithaca-";

// gRPC's own parsing would end a call that is no valid message without a word.
absl::Status ParseMemoryRequest(const grpc::ByteBuffer& bytes,
                                google::protobuf::Message* request);

// All that can be wrong with a request by itself.
absl::Status CheckRequest(const v1::RegisterSharedMemoryRequest& request);
absl::Status CheckRequest(const v1::RegisterCudaMemoryRequest& request);

// Whether the part that is asked for lies in the object, as large as it is now.
// REQUIRES: CheckRequest was OK.
absl::Status CheckObject(const v1::RegisterSharedMemoryRequest& request,
                         const SharedMemoryObject& object);

// For the workers; its id is left unset. REQUIRES: the checks above were OK.
internal::v1::Region DescribeRegion(
    const v1::RegisterSharedMemoryRequest& request,
    const SharedMemoryObject& object);
internal::v1::Region DescribeRegion(
    const v1::RegisterCudaMemoryRequest& request);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_MEMORY_REQUEST_H_
