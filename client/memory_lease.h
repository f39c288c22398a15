#ifndef ITHACA_CLIENT_MEMORY_LEASE_H_
#define ITHACA_CLIENT_MEMORY_LEASE_H_

#include <grpcpp/channel.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/lease_stream.h"
#include "client/memory_region.h"
#include "ithaca/v1/memory.grpc.pb.h"

namespace ithaca::client {

// A client's lease, opened when it is first needed and opened again after it
// was lost (the coordinator was started anew, say), and the registration of
// regions under it. Regions hold it; it ends with its last holder. Thread-safe.
class MemoryLease : public std::enable_shared_from_this<MemoryLease> {
 public:
  // Called exactly once: in the call itself, or on a thread of gRPC's.
  using Registered = std::function<void(absl::Status)>;

  MemoryLease(const std::shared_ptr<grpc::Channel>& channel, std::string token);
  ~MemoryLease();

  // Registers the region, unless it is under the lease of now already.
  // Errors: the server's; kUnavailable (no lease to be had).
  void Register(std::shared_ptr<MemoryRegion> region, absl::Time deadline,
                Registered registered);

  // The server does not know this lease, or not its regions: the next Register
  // opens another.
  void Forget(const std::string& lease);

  // Whether the region is registered under the lease of now.
  bool Covers(const MemoryRegion& region) const;

 private:
  friend class MemoryRegion;
  using WithLease = std::function<void(absl::StatusOr<std::string>)>;

  void Get(absl::Time deadline, const WithLease& then);
  void OnOpened(const absl::StatusOr<std::string>& lease);
  void Send(const std::shared_ptr<MemoryRegion>& region,
            const std::string& lease, absl::Time deadline, bool may_retry,
            Registered registered);
  // Without waiting: the server answers once no call uses the region.
  void Unregister(const MemoryRegion::Registration& registration);

  const std::shared_ptr<v1::MemoryService::Stub> stub_;
  const std::string token_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<LeaseStream> stream_ ABSL_GUARDED_BY(mutex_);
  std::string lease_ ABSL_GUARDED_BY(mutex_);  // empty: none, or opening
  std::vector<WithLease> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_MEMORY_LEASE_H_
