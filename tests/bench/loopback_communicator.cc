#include "tests/bench/loopback_communicator.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "worker/cuda_status.h"

namespace ithaca {

namespace {

absl::Status NcclStatus(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(what, ": ", ncclGetErrorString(result)));
}

// The segments of one peer, in order.
template <typename Segment>
std::vector<Segment> OfPeer(absl::Span<const Segment> segments, int peer) {
  std::vector<Segment> own;
  for (const Segment& segment : segments) {
    if (segment.peer == peer && segment.bytes > 0) own.push_back(segment);
  }
  return own;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LoopbackCommunicator>>
LoopbackCommunicator::Make(CudaDevice* device, int world_size,
                           Transfer transfer) {
  auto loopback =
      absl::WrapUnique(new LoopbackCommunicator(device, world_size, transfer));
  if (auto status = device->MakeCurrent(); !status.ok()) return status;
  const int ordinal = device->ordinal();
  if (auto status = NcclStatus(ncclCommInitAll(&loopback->comm_, 1, &ordinal),
                               "making a communicator");
      !status.ok()) {
    return status;
  }
  int lowest = 0;
  int highest = 0;
  cudaDeviceGetStreamPriorityRange(&lowest, &highest);
  if (auto status =
          CudaStatus(cudaStreamCreateWithPriority(
                         &loopback->stream_, cudaStreamNonBlocking, highest),
                     "making a stream");
      !status.ok()) {
    return status;
  }
  loopback->ready_.resize(kEvents);
  loopback->done_.resize(kEvents);
  for (auto* events : {&loopback->ready_, &loopback->done_}) {
    for (cudaEvent_t& event : *events) {
      if (auto status = CudaStatus(
              cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
              "making an event");
          !status.ok()) {
        return status;
      }
    }
  }
  return loopback;
}

LoopbackCommunicator::~LoopbackCommunicator() {
  for (auto* events : {&ready_, &done_}) {
    for (cudaEvent_t event : *events) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
  if (comm_ != nullptr) ncclCommDestroy(comm_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::Status LoopbackCommunicator::Agree(const CallVote& vote) {
  return vote.code == absl::StatusCode::kOk
             ? absl::OkStatus()
             : absl::Status(vote.code, "this rank cannot run the call");
}

absl::StatusOr<ExchangeId> LoopbackCommunicator::StartExchange(
    absl::Span<const SendSegment> sends, absl::Span<const RecvSegment> recvs) {
  const ExchangeId id = num_exchanges_++;
  const size_t slot = id % kEvents;
  cudaEventRecord(ready_[slot], device_->stream());
  cudaStreamWaitEvent(stream_, ready_[slot], 0);
  if (transfer_ == Transfer::kNccl) {
    if (auto status = Transmit(sends, recvs); !status.ok()) return status;
  }
  if (auto status = CudaStatus(cudaEventRecord(done_[slot], stream_),
                               "recording an event");
      !status.ok()) {
    return status;
  }
  return id;
}

absl::Status LoopbackCommunicator::Transmit(
    absl::Span<const SendSegment> sends, absl::Span<const RecvSegment> recvs) {
  ncclGroupStart();
  for (int peer = 1; peer < world_size_; ++peer) {
    const auto out = OfPeer(sends, peer);
    const auto in = OfPeer(recvs, peer);
    // Shares of different ranks differ by a token or a head at most.
    for (size_t k = 0; k < std::min(out.size(), in.size()); ++k) {
      const auto bytes =
          static_cast<size_t>(std::min(out[k].bytes, in[k].bytes));
      ncclSend(out[k].data, bytes, ncclInt8, 0, comm_, stream_);
      ncclRecv(in[k].data, bytes, ncclInt8, 0, comm_, stream_);
    }
  }
  return NcclStatus(ncclGroupEnd(), "exchanging");
}

absl::Status LoopbackCommunicator::WaitExchange(ExchangeId id) {
  return CudaStatus(
      cudaStreamWaitEvent(device_->stream(), done_[id % kEvents], 0),
      "ordering streams");
}

}  // namespace ithaca
