#include "worker/nccl_test_ranks.h"

#include <cuda_runtime_api.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "worker/gloo_communicator.h"

extern char** environ;

namespace ithaca {

namespace {

constexpr std::string_view kRoleFlag = "--rank-role=";

}  // namespace

absl::optional<RankRole> ParseRankRole(int argc, char** argv) {
  const std::string last = argc > 1 ? argv[argc - 1] : "";
  if (last.rfind(kRoleFlag, 0) != 0) return absl::nullopt;
  const std::vector<std::string> parts =
      absl::StrSplit(last.substr(kRoleFlag.size()), ',');
  RankRole role;
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[1], &role.rank) ||
      !absl::SimpleAtoi(parts[2], &role.world_size)) {
    std::fprintf(stderr, "malformed: %s\n", last.c_str());
    std::exit(2);
  }
  // A rank never outlives who started it.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  role.task = parts[0];
  role.folder = parts[3];
  return role;
}

int NumGpus() {
  int gpus = 0;
  return cudaGetDeviceCount(&gpus) == cudaSuccess ? gpus : 0;
}

absl::StatusOr<std::unique_ptr<CudaDevice>> OpenRankGpu(const RankRole& role) {
  const int gpus = NumGpus();
  if (gpus < role.world_size) {
    setenv("NCCL_HOSTID", absl::StrCat("rank-", role.rank).c_str(), 1);
  }
  return CudaDevice::Open(gpus > 0 ? role.rank % gpus : 0);
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> ConnectRank(
    CudaDevice* device, const std::string& folder, int rank, int world_size,
    absl::Duration exchange_timeout, absl::Duration patience) {
  FileRendezvousStore store(folder);
  GlooOptions options;
  options.formation_timeout = patience;
  auto host_channel = GlooCommunicator::Form(store, rank, world_size, options);
  if (!host_channel.ok()) return host_channel.status();
  return NcclCommunicator::Connect(device, store, *std::move(host_channel),
                                   absl::Now() + patience, exchange_timeout);
}

RankProcesses::RankProcesses(const std::string& task, int world_size,
                             const std::vector<int>& descriptors,
                             const std::vector<std::string>& arguments)
    : store_(FileRendezvousStore::Fresh()) {
  for (int rank = 0; rank < world_size; ++rank) {
    std::vector<std::string> words = {"/proc/self/exe"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    words.push_back(absl::StrCat(std::string(kRoleFlag), task, ",", rank, ",",
                                 world_size, ",", store_.folder()));
    std::vector<char*> argv;
    argv.reserve(words.size() + 1);
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (static_cast<size_t>(rank) < descriptors.size()) {
      posix_spawn_file_actions_adddup2(
          &actions, descriptors[static_cast<size_t>(rank)], kRankDescriptor);
    }
    pid_t pid = 0;
    const int error =
        posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
      std::fprintf(stderr, "cannot start rank %d: error %d\n", rank, error);
      std::abort();
    }
    pids_.push_back(pid);
  }
}

RankProcesses::~RankProcesses() {
  for (const pid_t pid : pids_) {
    if (pid == 0) continue;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}

int RankProcesses::Join(int rank, absl::Duration patience) {
  pid_t& pid = pids_[static_cast<size_t>(rank)];
  const absl::Time deadline = absl::Now() + patience;
  while (absl::Now() < deadline) {
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) != 0) {
      pid = 0;  // the number may be another's from here on
      return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  return -1;
}

}  // namespace ithaca
