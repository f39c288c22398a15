#include "worker/nccl_ulysses_test_group.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "worker/cuda_device.h"
#include "worker/socket_test_messages.h"
#include "worker/torch_cuda_attention_kernels.h"

namespace ithaca {

namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

}  // namespace

NcclUlyssesTestGroup::NcclUlyssesTestGroup(int world_size) {
  std::vector<int> theirs;
  for (int rank = 0; rank < world_size; ++rank) {
    int ends[2];
    // Only a rank's own end is to be found in its process.
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      std::perror("socketpair");
      std::abort();
    }
    const timeval limit = absl::ToTimeval(kPatience);
    setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    sockets_.push_back(ends[0]);
    theirs.push_back(ends[1]);
  }
  processes_ = std::make_unique<RankProcesses>(kTask, world_size, theirs);
  for (const int end : theirs) close(end);
}

NcclUlyssesTestGroup::~NcclUlyssesTestGroup() {
  for (const int socket : sockets_) close(socket);
  for (int rank = 0; rank < world_size(); ++rank) {
    processes_->Join(rank, absl::Seconds(10));
  }
}

std::vector<AttentionKernelKind> NcclUlyssesTestGroup::kernels() {
  return {AttentionKernelKind::kMath, AttentionKernelKind::kFlash,
          AttentionKernelKind::kCudnn};
}

absl::StatusOr<RankReport> NcclUlyssesTestGroup::RunRank(
    int rank, const SequenceParallelPlan& plan, RankTensors& tensors) {
  const int socket = sockets_[static_cast<size_t>(rank)];
  RankTestCall call = {call_number_, plan.shape, plan.options,
                       std::move(tensors)};
  RankTestAnswer answer;
  if (!SendCall(socket, call) || !ReceiveAnswer(socket, &answer)) {
    return absl::UnavailableError(absl::StrCat("rank ", rank, " is gone"));
  }
  tensors.image_output = std::move(answer.image_output);
  tensors.text_output = std::move(answer.text_output);
  return answer.report;
}

absl::StatusOr<std::string> NcclUlyssesTestGroup::Run(
    const AttentionShape& shape, const AttentionOptions& options,
    const oracle::CallInputs& inputs, std::vector<RankReport>* reports) {
  absl::StatusOr<SequenceParallelPlan> plan =
      MakeSequenceParallelPlan(shape, options, world_size());
  if (!plan.ok()) return plan.status();
  ++call_number_;
  std::vector<absl::StatusOr<RankReport>> results(
      sockets_.size(), absl::UnknownError("not run"));
  std::vector<RankTensors> tensors;
  for (int rank = 0; rank < world_size(); ++rank) {
    tensors.push_back(CutRankTensors(*plan, rank, inputs));
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size(); ++rank) {
    threads.emplace_back(
        [&, rank] { results[rank] = RunRank(rank, *plan, tensors[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  if (reports != nullptr) reports->clear();
  for (const absl::StatusOr<RankReport>& result : results) {
    if (!result.ok()) return result.status();
    if (reports != nullptr) reports->push_back(*result);
  }
  return JoinRankOutputs(*plan, tensors);
}

int ServeUlyssesTestRank(const RankRole& role) {
  const auto fail = [&role](const absl::Status& status) {
    std::fprintf(stderr, "rank %d of %d: %s\n", role.rank, role.world_size,
                 status.ToString().c_str());
    return 1;
  };
  auto device = OpenRankGpu(role);
  if (!device.ok()) return fail(device.status());
  auto tensors_device = CudaDevice::Open((*device)->ordinal());
  if (!tensors_device.ok()) return fail(tensors_device.status());
  CudaDevice* const gpu = device->get();
  UlyssesTestRank rank(*std::move(device), *std::move(tensors_device));
  auto communicator = ConnectRank(gpu, role.folder, role.rank, role.world_size,
                                  kPatience, kPatience);
  if (!communicator.ok()) return fail(communicator.status());
  rank.communicator = *std::move(communicator);
  rank.kernels = std::make_unique<TorchCudaAttentionKernels>(gpu);
  RankTestCall call;
  while (ReceiveCall(RankProcesses::kRankDescriptor, &call)) {
    RankTestAnswer answer;
    const auto plan =
        MakeSequenceParallelPlan(call.shape, call.options, role.world_size);
    answer.report = plan.status();
    if (plan.ok()) {
      answer.report = rank.Run(*plan, call.call_number, call.tensors);
    }
    answer.image_output = std::move(call.tensors.image_output);
    answer.text_output = std::move(call.tensors.text_output);
    if (!SendAnswer(RankProcesses::kRankDescriptor, answer)) break;
  }
  return 0;
}

}  // namespace ithaca
