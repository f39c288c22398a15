#ifndef ITHACA_SERVER_FAN_OUT_H_
#define ITHACA_SERVER_FAN_OUT_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "server/group_manager.h"

namespace ithaca::server {

// Connections to the RankService of each member of one generation of a group,
// made for it alone: nothing of a dead worker's address is carried over.
// Thread-safe.
class RankChannels {
 public:
  explicit RankChannels(const std::vector<GroupMember>& members);
  RankChannels(const RankChannels&) = delete;
  RankChannels& operator=(const RankChannels&) = delete;

  int world_size() const { return static_cast<int>(stubs_.size()); }
  grpc::GenericStub& stub(int rank) {
    return *stubs_[static_cast<size_t>(rank)];
  }

 private:
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
};

// One call's RunAttention on every rank at once. It holds the requests, by
// reference, until all ranks have answered.
//
// Thread-safe. Callbacks come from gRPC's threads, with no lock held.
class FanOut : public std::enable_shared_from_this<FanOut> {
 public:
  struct Callbacks {
    // A rank answered with what does not leave the group intact; for each such
    // rank, at once, while others may still run.
    std::function<void(int rank, const grpc::Status& status)> on_failure;
    // Every rank has answered; the last callback.
    std::function<void()> on_done;
  };

  // requests: one for each rank. channels are kept alive as needed.
  FanOut(std::shared_ptr<RankChannels> channels,
         std::vector<grpc::ByteBuffer> requests, absl::Time deadline,
         Callbacks callbacks);

  // Sends to all ranks. Call it once; callbacks may run before it returns.
  void Start();

  // Gives up the ranks' answers: each that is missing becomes CANCELLED.
  void Cancel();

  // By rank; REQUIRES: on_done was called.
  const grpc::Status& status(int rank) const {
    return legs_[static_cast<size_t>(rank)].status;
  }
  const grpc::ByteBuffer& response(int rank) const {
    return legs_[static_cast<size_t>(rank)].response;
  }

 private:
  struct Leg {
    grpc::ClientContext context;
    grpc::ByteBuffer request;
    grpc::ByteBuffer response;
    grpc::Status status;
  };

  void OnAnswer(int rank, grpc::Status status);

  const std::shared_ptr<RankChannels> channels_;
  std::vector<Leg> legs_;
  std::atomic<int> missing_;
  Callbacks callbacks_;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_FAN_OUT_H_
