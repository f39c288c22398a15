#include "worker/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <sched.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "spdlog/spdlog.h"
#include "worker/cuda_status.h"
#include "worker/library_version.h"

namespace ithaca {

namespace {

constexpr char kUniqueIdKey[] = "nccl/unique_id";
constexpr absl::Duration kAbortLimit = absl::Seconds(5);
// Polls without sleep for this long: a call in the steady state is taken at
// once, one that makes connections takes milliseconds.
constexpr absl::Duration kSpinTime = absl::Microseconds(200);
constexpr absl::Duration kPollInterval = absl::Microseconds(100);

std::string ErrorText(ncclResult_t result, ncclComm_t comm) {
  const char* last = ncclGetLastError(comm);
  return absl::StrCat(ncclGetErrorString(result),
                      last != nullptr && *last != '\0' ? ": " : "",
                      last != nullptr ? last : "");
}

absl::Status Aborted() {
  return absl::UnavailableError("the group was aborted");
}

int64_t TotalBytes(absl::Span<const SendSegment> sends,
                   absl::Span<const RecvSegment> recvs) {
  int64_t bytes = 0;
  for (const SendSegment& segment : sends) bytes += segment.bytes;
  for (const RecvSegment& segment : recvs) bytes += segment.bytes;
  return bytes;
}

ncclResult_t SendAndReceive(ncclComm_t comm, cudaStream_t stream,
                            absl::Span<const SendSegment> sends,
                            absl::Span<const RecvSegment> recvs) {
  ncclResult_t first_error = ncclGroupStart();
  const auto note = [&first_error](ncclResult_t result) {
    if (first_error == ncclSuccess && result != ncclInProgress) {
      first_error = result;
    }
  };
  for (const SendSegment& segment : sends) {
    if (segment.bytes == 0) continue;
    note(ncclSend(segment.data, static_cast<size_t>(segment.bytes), ncclInt8,
                  segment.peer, comm, stream));
  }
  for (const RecvSegment& segment : recvs) {
    if (segment.bytes == 0) continue;
    note(ncclRecv(segment.data, static_cast<size_t>(segment.bytes), ncclInt8,
                  segment.peer, comm, stream));
  }
  // The group is closed whatever happened in it: it is the thread's.
  const ncclResult_t end = ncclGroupEnd();
  return first_error != ncclSuccess ? first_error : end;
}

}  // namespace

absl::Status NcclCommunicator::CheckVersion() {
  int version = 0;
  if (const ncclResult_t result = ncclGetVersion(&version);
      result != ncclSuccess) {
    return absl::InternalError(absl::StrCat("asking for NCCL's version: ",
                                            ncclGetErrorString(result)));
  }
  return CheckNcclVersion(NCCL_VERSION_CODE, version);
}

NcclCommunicator::NcclCommunicator(CudaDevice* device,
                                   std::unique_ptr<Communicator> host_channel,
                                   absl::Duration exchange_timeout)
    : device_(device),
      host_channel_(std::move(host_channel)),
      exchange_timeout_(exchange_timeout) {
  device_->SetWaitCheck([this] { return CheckProgress(); });
}

NcclCommunicator::~NcclCommunicator() {
  device_->SetWaitCheck(nullptr);
  Abort();
  if (!device_->MakeCurrent().ok()) return;
  for (const Exchange& exchange : in_flight_) {
    if (exchange.ready != nullptr) cudaEventDestroy(exchange.ready);
    if (exchange.done != nullptr) cudaEventDestroy(exchange.done);
  }
  for (cudaEvent_t event : free_events_) cudaEventDestroy(event);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Connect(
    CudaDevice* device, RendezvousStore& store,
    std::unique_ptr<Communicator> host_channel, absl::Time deadline,
    absl::Duration exchange_timeout) {
  auto communicator = absl::WrapUnique(
      new NcclCommunicator(device, std::move(host_channel), exchange_timeout));
  if (auto status = communicator->Initialize(store, deadline); !status.ok()) {
    return status;
  }
  return communicator;
}

absl::Status NcclCommunicator::Initialize(RendezvousStore& store,
                                          absl::Time deadline) {
  if (auto status = device_->MakeCurrent(); !status.ok()) return status;
  // First in line for free multiprocessors: an exchange that waits for
  // attention's last blocks holds all peers up.
  int lowest_priority = 0;
  int highest_priority = 0;
  if (auto status = CudaStatus(
          cudaDeviceGetStreamPriorityRange(&lowest_priority, &highest_priority),
          "asking for stream priorities");
      !status.ok()) {
    return status;
  }
  if (auto status =
          CudaStatus(cudaStreamCreateWithPriority(
                         &stream_, cudaStreamNonBlocking, highest_priority),
                     "making the communication stream");
      !status.ok()) {
    return status;
  }
  if (world_size() == 1) return absl::OkStatus();

  ncclUniqueId unique_id;
  if (rank() == 0) {
    if (const ncclResult_t result = ncclGetUniqueId(&unique_id);
        result != ncclSuccess) {
      return absl::UnavailableError(absl::StrCat("making a unique id of NCCL: ",
                                                 ErrorText(result, nullptr)));
    }
    if (auto status = store.Set(
            kUniqueIdKey,
            std::string_view(unique_id.internal, sizeof(unique_id.internal)));
        !status.ok()) {
      return status;
    }
  } else {
    const auto value = store.Get(kUniqueIdKey, deadline - absl::Now());
    if (!value.ok()) return value.status();
    if (value->size() != sizeof(unique_id.internal)) {
      return absl::InternalError("rank 0 left a malformed NCCL unique id");
    }
    std::memcpy(unique_id.internal, value->data(), value->size());
  }

  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  {
    absl::MutexLock lock(&mutex_);
    const ncclResult_t result = ncclCommInitRankConfig(
        &comm_, world_size(), unique_id, rank(), &config);
    if (result != ncclSuccess && result != ncclInProgress) {
      return absl::UnavailableError(absl::StrCat(
          "starting an NCCL communicator: ", ErrorText(result, nullptr)));
    }
  }
  if (auto status = Call("setting up the NCCL communicator", deadline,
                         [](ncclComm_t comm) {
                           ncclResult_t state = ncclSuccess;
                           const ncclResult_t asked =
                               ncclCommGetAsyncError(comm, &state);
                           return asked != ncclSuccess ? asked : state;
                         });
      !status.ok()) {
    return status;
  }
  return ExchangeWithEveryPeer(deadline);
}

absl::Status NcclCommunicator::ExchangeWithEveryPeer(absl::Time deadline) {
  // A byte for each peer, apart from the one that is sent.
  constexpr int64_t kSentBytes = 256;
  const auto memory = device_->Allocate(kSentBytes + world_size());
  if (!memory.ok()) return memory.status();
  auto* const bytes = static_cast<char*>(*memory);
  std::vector<SendSegment> sends;
  std::vector<RecvSegment> recvs;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank()) continue;
    sends.push_back({peer, bytes, 1});
    recvs.push_back({peer, bytes + kSentBytes + peer, 1});
  }
  absl::Status status =
      Call("connecting to every peer", deadline, [&](ncclComm_t comm) {
        return SendAndReceive(comm, stream_, sends, recvs);
      });
  while (status.ok()) {
    const cudaError_t error = cudaStreamQuery(stream_);
    if (error == cudaSuccess) break;
    if (error != cudaErrorNotReady) {
      status = CudaStatus(error, "connecting to every peer");
    } else if (absl::Now() > deadline) {
      status = absl::DeadlineExceededError(
          "connecting to every peer: a peer does not answer");
    } else {
      status = CheckAsyncError();
      absl::SleepFor(kPollInterval);
    }
  }
  // The memory is free for others only when nothing more can write to it.
  if (!status.ok()) Abort();
  device_->Free(bytes);
  return status;
}

absl::Status NcclCommunicator::Call(
    const char* what, absl::Time deadline,
    const std::function<ncclResult_t(ncclComm_t)>& call) {
  ncclResult_t result = ncclSuccess;
  {
    absl::MutexLock lock(&mutex_);
    if (aborted_) return Aborted();
    result = call(comm_);
  }
  const absl::Time start = absl::Now();
  while (result == ncclInProgress) {
    const absl::Time now = absl::Now();
    if (now > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(what, ": a peer does not answer"));
    }
    if (now - start < kSpinTime) {
      sched_yield();
    } else {
      absl::SleepFor(kPollInterval);
    }
    absl::MutexLock lock(&mutex_);
    if (aborted_) return Aborted();
    ncclResult_t state = ncclSuccess;
    result = ncclCommGetAsyncError(comm_, &state);
    if (result == ncclSuccess) result = state;
  }
  if (result == ncclSuccess) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  if (aborted_) return Aborted();
  return absl::UnavailableError(
      absl::StrCat(what, ": ", ErrorText(result, comm_)));
}

absl::Status NcclCommunicator::Agree(const CallVote& vote) {
  return host_channel_->Agree(vote);
}

absl::StatusOr<ExchangeId> NcclCommunicator::StartExchange(
    absl::Span<const SendSegment> sends, absl::Span<const RecvSegment> recvs) {
  Exchange exchange;
  exchange.id = num_exchanges_.fetch_add(1);
  Recycle();
  if (TotalBytes(sends, recvs) == 0) {
    in_flight_.push_back(exchange);
    return exchange.id;
  }
  if (auto status = device_->MakeCurrent(); !status.ok()) return status;
  for (cudaEvent_t* event : {&exchange.ready, &exchange.done}) {
    auto taken = TakeEvent();
    if (!taken.ok()) return taken.status();
    *event = *taken;
  }
  // Kept before anything can fail, so that the events are not lost.
  in_flight_.push_back(exchange);
  if (auto status =
          CudaStatus(cudaEventRecord(exchange.ready, device_->stream()),
                     "recording an event");
      !status.ok()) {
    return status;
  }
  if (auto status = CudaStatus(cudaStreamWaitEvent(stream_, exchange.ready, 0),
                               "ordering streams");
      !status.ok()) {
    return status;
  }
  auto status = Call("starting an exchange", absl::Now() + exchange_timeout_,
                     [&](ncclComm_t comm) {
                       return SendAndReceive(comm, stream_, sends, recvs);
                     });
  if (!status.ok()) {
    return absl::UnavailableError(status.message());
  }
  if (auto recorded = CudaStatus(cudaEventRecord(exchange.done, stream_),
                                 "recording an event");
      !recorded.ok()) {
    return recorded;
  }
  return exchange.id;
}

absl::Status NcclCommunicator::WaitExchange(ExchangeId id) {
  {
    absl::MutexLock lock(&mutex_);
    if (aborted_) return Aborted();
  }
  for (Exchange& exchange : in_flight_) {
    if (exchange.id != id) continue;
    exchange.waited = true;
    if (exchange.done == nullptr) return absl::OkStatus();
    if (auto status = device_->MakeCurrent(); !status.ok()) return status;
    return CudaStatus(cudaStreamWaitEvent(device_->stream(), exchange.done, 0),
                      "ordering streams");
  }
  return absl::UnavailableError(
      absl::StrCat("no exchange ", id, " to wait for"));
}

absl::Status NcclCommunicator::CheckAsyncError() {
  absl::MutexLock lock(&mutex_);
  if (aborted_) return Aborted();
  if (comm_ == nullptr) return absl::OkStatus();
  ncclResult_t state = ncclSuccess;
  ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
  if (result == ncclSuccess) result = state;
  if (result == ncclSuccess || result == ncclInProgress) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("a peer is gone: ", ErrorText(result, comm_)));
}

absl::Status NcclCommunicator::CheckProgress() {
  if (auto status = CheckAsyncError(); !status.ok()) return status;
  for (Exchange& exchange : in_flight_) {
    if (exchange.done == nullptr ||
        cudaEventQuery(exchange.done) != cudaErrorNotReady) {
      continue;
    }
    // Exchanges run in order: the first that is not done is the one to judge.
    if (cudaEventQuery(exchange.ready) == cudaErrorNotReady) break;
    const absl::Time now = absl::Now();
    if (!exchange.running_since.has_value()) exchange.running_since = now;
    if (now - *exchange.running_since > exchange_timeout_) {
      return absl::UnavailableError(
          absl::StrCat("an exchange did not end within ",
                       absl::FormatDuration(exchange_timeout_)));
    }
    break;
  }
  return absl::OkStatus();
}

absl::StatusOr<cudaEvent_t> NcclCommunicator::TakeEvent() {
  if (!free_events_.empty()) {
    cudaEvent_t event = free_events_.back();
    free_events_.pop_back();
    return event;
  }
  cudaEvent_t event = nullptr;
  if (auto status =
          CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                     "making an event");
      !status.ok()) {
    return status;
  }
  return event;
}

void NcclCommunicator::Recycle() {
  while (!in_flight_.empty() && in_flight_.front().waited) {
    const Exchange& exchange = in_flight_.front();
    if (exchange.done != nullptr) {
      if (cudaEventQuery(exchange.done) != cudaSuccess) return;
      free_events_.push_back(exchange.ready);
      free_events_.push_back(exchange.done);
    }
    in_flight_.pop_front();
  }
}

void NcclCommunicator::Abort() {
  host_channel_->Abort();
  ncclComm_t comm = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    aborted_ = true;
    comm = std::exchange(comm_, nullptr);
  }
  if (comm == nullptr) return;
  const auto aborted = std::make_shared<absl::Notification>();
  std::thread([comm, aborted, ordinal = device_->ordinal()] {
    cudaSetDevice(ordinal);
    ncclCommAbort(comm);
    aborted->Notify();
  }).detach();
  if (!aborted->WaitForNotificationWithTimeout(kAbortLimit)) {
    spdlog::critical("ncclCommAbort hangs: this process ends to free its GPU");
    spdlog::shutdown();
    std::_Exit(EXIT_FAILURE);
  }
}

}  // namespace ithaca
