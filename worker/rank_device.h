#ifndef ITHACA_WORKER_RANK_DEVICE_H_
#define ITHACA_WORKER_RANK_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/attention_kernel.h"
#include "worker/communicator.h"
#include "worker/device.h"
#include "worker/gloo_mesh.h"
#include "worker/host_buffer_pool.h"
#include "worker/region.h"
#include "worker/rendezvous_store.h"

namespace ithaca {

struct RankDeviceOptions {
  // "cpu", or "cuda:N": GPU N of those CUDA shows to the process.
  std::string name = "cpu";
  // Threads of attention on the CPU; 0 = LibTorch's own choice.
  int num_threads = 0;
  // Where peers reach this rank.
  GlooAddress address;
  // For tests: what NCCL takes for this host's identity, so that several ranks
  // can share a GPU, as if on different hosts (slow). Empty = NCCL's own.
  std::string nccl_host_id;
};

// What a rank runs on: a processor, its attention kernels, and the way its
// ranks talk to each other (Gloo between CPUs, NCCL between GPUs).
//
// Thread-safety: one thread at a time, as for the objects it gives.
class RankDevice {
 public:
  virtual ~RankDevice() = default;

  // Valid as long as this.
  virtual Device* device() = 0;
  virtual AttentionKernels* kernels() = 0;

  // Names the GPU the same in every process; "" on CPU.
  virtual std::string uuid() const = 0;

  // This rank's end of a group; all its ranks form it through the same store.
  // One group at a time; it does not outlive this.
  // Errors: kDeadlineExceeded (a rank did not come within formation_timeout),
  // kUnavailable (a rank went away), the store's.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> FormGroup(
      RendezvousStore& store, int rank, int world_size,
      absl::Duration formation_timeout, absl::Duration collective_timeout) = 0;
};

// Errors: kInvalidArgument (no such device), kUnimplemented (a GPU, and this
// program was built without --config=cuda), kFailedPrecondition (a driver or
// NCCL older than built for), kInternal.
absl::StatusOr<std::unique_ptr<RankDevice>> OpenRankDevice(
    const RankDeviceOptions& options);

// Page-locked memory for copies to and from such a device; null where that
// means nothing. REQUIRES: OpenRankDevice(options) went well.
std::shared_ptr<PinnedMemory> MakePinnedMemory(
    const RankDeviceOptions& options);

// Opens clients' memory for such a device, for as long as the process lives,
// whatever sessions come and go. REQUIRES: OpenRankDevice(options) went well.
std::unique_ptr<RegionOpener> MakeRegionOpener(
    const RankDeviceOptions& options);

}  // namespace ithaca

#endif  // ITHACA_WORKER_RANK_DEVICE_H_
