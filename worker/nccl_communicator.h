#ifndef ITHACA_WORKER_NCCL_COMMUNICATOR_H_
#define ITHACA_WORKER_NCCL_COMMUNICATOR_H_

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "worker/communicator.h"
#include "worker/cuda_device.h"
#include "worker/rendezvous_store.h"

namespace ithaca {

// A rank's end of a group of GPUs. An exchange is one NCCL group of sends and
// receives on a communication stream of its own, ordered with the device's
// compute stream by events, so that neither starting nor waiting for an
// exchange holds the host up. Votes go over a host channel.
//
// A peer's death shows as an error of NCCL, or as nothing at all: the
// communicator sets itself as the device's wait check, and ends a wait of the
// host with kUnavailable when NCCL reports an error, the group was aborted, or
// an exchange takes longer than the limit, counted from when this rank's own
// part could start.
class NcclCommunicator final : public Communicator {
 public:
  // kFailedPrecondition if NCCL is older than built for.
  static absl::Status CheckVersion();

  // Meets the peers: every rank of `host_channel`'s group calls this, with the
  // same store. Every pair of ranks has exchanged data when it returns, so no
  // later call pays for connections. `device` outlives the communicator and
  // has no other one.
  // Errors: kDeadlineExceeded (a rank did not come), kUnavailable (NCCL
  // failed, what it said is in the message), the store's and the device's.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Connect(
      CudaDevice* device, RendezvousStore& store,
      std::unique_ptr<Communicator> host_channel, absl::Time deadline,
      absl::Duration exchange_timeout);

  // Aborts.
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const override { return host_channel_->rank(); }
  int world_size() const override { return host_channel_->world_size(); }
  absl::Status Agree(const CallVote& vote) override;
  absl::StatusOr<ExchangeId> StartExchange(
      absl::Span<const SendSegment> sends,
      absl::Span<const RecvSegment> recvs) override;
  absl::Status WaitExchange(ExchangeId id) override;
  // Ends the process if NCCL itself hangs in its abort: nothing else frees the
  // GPU then.
  void Abort() override;
  uint64_t num_exchanges() const override { return num_exchanges_.load(); }

 private:
  // The events are nullptr in an exchange of nothing.
  struct Exchange {
    ExchangeId id = 0;
    cudaEvent_t ready = nullptr;  // on the compute stream: may start
    cudaEvent_t done = nullptr;   // on the communication stream
    bool waited = false;
    absl::optional<absl::Time> running_since;
  };

  NcclCommunicator(CudaDevice* device,
                   std::unique_ptr<Communicator> host_channel,
                   absl::Duration exchange_timeout);
  absl::Status Initialize(RendezvousStore& store, absl::Time deadline);
  absl::Status ExchangeWithEveryPeer(absl::Time deadline);
  // Makes an NCCL call, unless aborted, and waits until NCCL has taken it.
  absl::Status Call(const char* what, absl::Time deadline,
                    const std::function<ncclResult_t(ncclComm_t)>& call);
  absl::Status CheckAsyncError();
  absl::Status CheckProgress();
  absl::StatusOr<cudaEvent_t> TakeEvent();
  void Recycle();

  CudaDevice* const device_;
  const std::unique_ptr<Communicator> host_channel_;
  const absl::Duration exchange_timeout_;
  cudaStream_t stream_ = nullptr;
  std::deque<Exchange> in_flight_;
  std::vector<cudaEvent_t> free_events_;
  std::atomic<uint64_t> num_exchanges_{0};

  // Held during calls into NCCL, which are short: the communicator is
  // non-blocking.
  absl::Mutex mutex_;
  ncclComm_t comm_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_NCCL_COMMUNICATOR_H_
