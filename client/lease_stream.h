#ifndef ITHACA_CLIENT_LEASE_STREAM_H_
#define ITHACA_CLIENT_LEASE_STREAM_H_

#include <grpcpp/alarm.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ithaca/v1/memory.grpc.pb.h"

namespace ithaca::client {

// One KeepLease call: the lease is held for as long as it runs. It holds itself
// alive until it has ended. Thread-safe.
class LeaseStream : public grpc::ClientReadReactor<v1::KeepLeaseResponse>,
                    public std::enable_shared_from_this<LeaseStream> {
 public:
  // Called exactly once after Start: the lease, or why there is none by
  // `deadline`.
  using Opened = std::function<void(absl::StatusOr<std::string>)>;

  static std::shared_ptr<LeaseStream> Create(
      std::shared_ptr<v1::MemoryService::Stub> stub, Opened opened);

  // Once. Not under a lock that `opened` takes.
  void Start(const std::string& token, absl::Time deadline);

  // Gives the lease up.
  void Close();
  // The server, or Close, has ended it.
  bool ended() const;

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  LeaseStream(std::shared_ptr<v1::MemoryService::Stub> stub, Opened opened);

  const std::shared_ptr<v1::MemoryService::Stub> stub_;
  grpc::ClientContext context_;
  grpc::Alarm deadline_;
  v1::KeepLeaseResponse message_;
  mutable absl::Mutex mutex_;
  Opened opened_ ABSL_GUARDED_BY(mutex_);  // null once called
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<LeaseStream> self_;  // until OnDone
};

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_LEASE_STREAM_H_
