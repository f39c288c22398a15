#ifndef ITHACA_CLIENT_FAKE_MEMORY_SERVICE_H_
#define ITHACA_CLIENT_FAKE_MEMORY_SERVICE_H_

#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/status.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "ithaca/v1/attention.pb.h"
#include "ithaca/v1/memory.grpc.pb.h"

namespace ithaca::client {

// Leases and regions as a coordinator keeps them; it opens shared memory by its
// name. GPU memory is taken, and never touched.
class FakeMemoryService : public v1::MemoryService::CallbackService {
 public:
  grpc::ServerWriteReactor<v1::KeepLeaseResponse>* KeepLease(
      grpc::CallbackServerContext* context,
      const v1::KeepLeaseRequest* request) override;
  grpc::ServerUnaryReactor* RegisterSharedMemory(
      grpc::CallbackServerContext* context,
      const v1::RegisterSharedMemoryRequest* request,
      v1::RegisterMemoryResponse* response) override;
  grpc::ServerUnaryReactor* RegisterCudaMemory(
      grpc::CallbackServerContext* context,
      const v1::RegisterCudaMemoryRequest* request,
      v1::RegisterMemoryResponse* response) override;
  grpc::ServerUnaryReactor* UnregisterMemory(
      grpc::CallbackServerContext* context,
      const v1::UnregisterMemoryRequest* request,
      v1::UnregisterMemoryResponse* response) override;

  // Every registration ends with this; OK takes them again.
  void RefuseWith(grpc::Status status);
  // Ends every lease, as a coordinator does that is started anew.
  void EndLeases();
  // The same without telling the clients.
  void LoseLeases();

  int leases() const;         // open now
  int regions() const;        // registered now
  int registrations() const;  // ever

  // The tensor's bytes, out of its region.
  grpc::Status Read(const grpc::CallbackServerContext& context,
                    const v1::MemorySlice& slice, std::string* bytes) const;
  grpc::Status Write(const grpc::CallbackServerContext& context,
                     const v1::MemorySlice& slice,
                     const std::string& bytes) const;

 private:
  class Lease;
  struct Region {
    std::string lease;
    std::string object_name;  // empty: GPU memory
    uint64_t byte_size = 0;
  };

  grpc::Status Add(const std::string& lease, const std::string& name,
                   Region region);
  grpc::Status Find(const grpc::CallbackServerContext& context,
                    const v1::MemorySlice& slice, Region* region) const;
  void End(Lease* lease);

  mutable absl::Mutex mutex_;
  std::map<std::string, Lease*> leases_ ABSL_GUARDED_BY(mutex_);
  std::set<Lease*> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Region> regions_ ABSL_GUARDED_BY(mutex_);
  int next_lease_ ABSL_GUARDED_BY(mutex_) = 0;
  int registrations_ ABSL_GUARDED_BY(mutex_) = 0;
  grpc::Status refusal_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_FAKE_MEMORY_SERVICE_H_
