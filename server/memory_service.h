#ifndef ITHACA_SERVER_MEMORY_SERVICE_H_
#define ITHACA_SERVER_MEMORY_SERVICE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "core/bearer_token.h"
#include "ithaca/v1/memory.grpc.pb.h"
#include "server/memory_call.h"
#include "server/memory_region.h"
#include "server/metrics.h"
#include "server/region_attacher.h"
#include "server/region_table.h"
#include "server/shared_memory_object.h"

namespace ithaca::server {

// ithaca.v1.MemoryService: leases and the regions they hold. Thread-safe; calls
// run on gRPC's threads and none is blocked by a wait for workers or calls.
class MemoryService
    : public v1::MemoryService::WithCallbackMethod_KeepLease<
          v1::MemoryService::WithRawCallbackMethod_RegisterSharedMemory<
              v1::MemoryService::WithRawCallbackMethod_RegisterCudaMemory<
                  v1::MemoryService::WithRawCallbackMethod_UnregisterMemory<
                      v1::MemoryService::WithRawCallbackMethod_ListMemory<
                          v1::MemoryService::Service>>>>> {
 public:
  struct Options {
    bool shared_memory = false;  // the plane is enabled
    bool cuda_memory = false;
    BearerToken token;  // asked of every call
  };

  // All outlive this.
  MemoryService(RegionTable* table, RegionAttacher* attacher, Metrics* metrics,
                Options options);

  grpc::ServerWriteReactor<v1::KeepLeaseResponse>* KeepLease(
      grpc::CallbackServerContext* context,
      const v1::KeepLeaseRequest* request) override;
  grpc::ServerUnaryReactor* RegisterSharedMemory(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
      grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* RegisterCudaMemory(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
      grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* UnregisterMemory(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
      grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListMemory(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;

  // Ends every lease, and each that is asked for later, with kUnavailable.
  // Idempotent.
  void EndLeases();

 private:
  class LeaseStream;
  using CallPtr = std::shared_ptr<MemoryCall>;
  // Begins a call whose token is right: it ends later, or is refused now with
  // what this returns. peer: of its connection.
  using Begin = absl::Status (MemoryService::*)(const CallPtr& call,
                                                const std::string& peer,
                                                const grpc::ByteBuffer& bytes);

  absl::Status CheckToken(const grpc::CallbackServerContext& context) const;
  absl::Status CheckAnyPlane() const;
  grpc::ServerUnaryReactor* Run(Begin begin,
                                grpc::CallbackServerContext* context,
                                const grpc::ByteBuffer& request,
                                grpc::ByteBuffer* response, Method method);
  absl::Status BeginRegisterShared(const CallPtr& call, const std::string& peer,
                                   const grpc::ByteBuffer& bytes);
  absl::Status BeginRegisterCuda(const CallPtr& call, const std::string& peer,
                                 const grpc::ByteBuffer& bytes);
  absl::Status Register(const CallPtr& call, const RegionAccess& access,
                        const std::string& name, internal::v1::Region memory,
                        std::optional<SharedMemoryObject> object);
  absl::Status BeginUnregister(const CallPtr& call, const std::string& peer,
                               const grpc::ByteBuffer& bytes);
  absl::Status List(const CallPtr& call, const std::string& peer,
                    const grpc::ByteBuffer& bytes);

  RegionTable* const table_;
  RegionAttacher* const attacher_;
  Metrics* const metrics_;
  const Options options_;

  absl::Mutex mutex_;
  absl::flat_hash_set<std::shared_ptr<LeaseStream>> streams_
      ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_MEMORY_SERVICE_H_
