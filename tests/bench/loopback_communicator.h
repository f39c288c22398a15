#ifndef ITHACA_TESTS_BENCH_LOOPBACK_COMMUNICATOR_H_
#define ITHACA_TESTS_BENCH_LOOPBACK_COMMUNICATOR_H_

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/communicator.h"
#include "worker/cuda_device.h"

namespace ithaca {

// Rank 0 of a group of which it is the only one there: what it sends to a peer
// comes back as what the peer sends, through NCCL within the GPU. A call over
// it costs a rank what it costs in a group, but for the links. Numbers are
// those of no call.
//
// Exchanges are ordered as NcclCommunicator orders them. kOrderOnly leaves
// NCCL out and keeps the order: what the host spends on NCCL, whose share here
// grows with the bytes since one peer gets what seven would, is then missing.
class LoopbackCommunicator : public Communicator {
 public:
  enum class Transfer : uint8_t { kNccl, kOrderOnly };

  static absl::StatusOr<std::unique_ptr<LoopbackCommunicator>> Make(
      CudaDevice* device, int world_size, Transfer transfer);
  ~LoopbackCommunicator() override;

  int rank() const override { return 0; }
  int world_size() const override { return world_size_; }
  absl::Status Agree(const CallVote& vote) override;
  absl::StatusOr<ExchangeId> StartExchange(
      absl::Span<const SendSegment> sends,
      absl::Span<const RecvSegment> recvs) override;
  absl::Status WaitExchange(ExchangeId id) override;
  void Abort() override {}
  uint64_t num_exchanges() const override { return num_exchanges_; }

 private:
  absl::Status Transmit(absl::Span<const SendSegment> sends,
                        absl::Span<const RecvSegment> recvs);

  // More than any call here has in flight.
  static constexpr size_t kEvents = 64;

  LoopbackCommunicator(CudaDevice* device, int world_size, Transfer transfer)
      : device_(device), world_size_(world_size), transfer_(transfer) {}

  CudaDevice* const device_;
  const int world_size_;
  const Transfer transfer_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::vector<cudaEvent_t> ready_;
  std::vector<cudaEvent_t> done_;
  uint64_t num_exchanges_ = 0;
};

}  // namespace ithaca

#endif  // ITHACA_TESTS_BENCH_LOOPBACK_COMMUNICATOR_H_
