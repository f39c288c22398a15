#ifndef ITHACA_WORKER_FAKE_RANK_DEVICE_H_
#define ITHACA_WORKER_FAKE_RANK_DEVICE_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/cpu_device.h"
#include "worker/in_process_communicator.h"
#include "worker/rank_device.h"
#include "worker/rendezvous_store.h"
#include "worker/torch_attention_kernels.h"

namespace ithaca {

// For tests: the CPU, in a group of ranks on threads that needs no store.
class FakeRankDevice : public RankDevice {
 public:
  explicit FakeRankDevice(std::shared_ptr<InProcessGroup> group)
      : group_(std::move(group)), kernels_(MakeTorchAttentionKernels({1})) {}

  Device* device() override { return &device_; }
  AttentionKernels* kernels() override { return kernels_.get(); }
  std::string uuid() const override { return ""; }

  absl::StatusOr<std::unique_ptr<Communicator>> FormGroup(
      RendezvousStore& /*store*/, int rank, int world_size,
      absl::Duration /*formation_timeout*/,
      absl::Duration /*collective_timeout*/) override {
    if (group_ == nullptr) return absl::DeadlineExceededError("nobody came");
    if (world_size != group_->world_size()) {
      return absl::InvalidArgumentError("another world size");
    }
    return group_->MakeCommunicator(rank);
  }

 private:
  const std::shared_ptr<InProcessGroup> group_;  // null: forming fails
  CpuDevice device_;
  const std::unique_ptr<AttentionKernels> kernels_;
};

// What such a device forms its groups through: nothing.
class NoRendezvousStore : public RendezvousStore {
 public:
  absl::Status Set(std::string_view, std::string_view) override {
    return absl::UnavailableError("no store");
  }
  absl::StatusOr<std::string> Get(std::string_view, absl::Duration) override {
    return absl::UnavailableError("no store");
  }
};

// What GroupSessionOptions::open_device takes.
inline std::function<absl::StatusOr<std::unique_ptr<RankDevice>>()>
OpenFakeRankDevice(std::shared_ptr<InProcessGroup> group) {
  return [group = std::move(
              group)]() -> absl::StatusOr<std::unique_ptr<RankDevice>> {
    return std::make_unique<FakeRankDevice>(group);
  };
}

}  // namespace ithaca

#endif  // ITHACA_WORKER_FAKE_RANK_DEVICE_H_
