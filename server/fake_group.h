#ifndef ITHACA_SERVER_FAKE_GROUP_H_
#define ITHACA_SERVER_FAKE_GROUP_H_

#include <grpcpp/server.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "ithaca/internal/v1/worker.grpc.pb.h"
#include "server/group_manager.h"

namespace ithaca::server {

class FakeRankStream;

// For tests: a group's ranks as RankService servers in this process. They
// answer a call when all have got it, in the order of numbers, with attention
// computed straight from the definition (float32 only). Tensors may lie in
// shared memory, regions of any kind be attached. Thread-safe.
class FakeGroup {
 public:
  explicit FakeGroup(int world_size);
  ~FakeGroup();

  // As the group manager would present it; its kernels are MATH and FLASH.
  Group Describe(const std::string& name, uint64_t generation) const;

  // From here on calls that all ranks have got stay unanswered ...
  void Hold();
  // ... until now.
  void Release();
  // Waits until so many calls have come whole and stay unanswered.
  void AwaitHeld(size_t calls);

  // The rank answers its next call with this, before the others are asked.
  void FailNext(int rank, grpc::Status status);
  // Every rank refuses its next call with this, as after a vote.
  void RefuseNext(const grpc::Status& status);
  // Streams: whether a rank (-1: every one) takes input, and whether it gives
  // output after its execution. Both are on at first.
  void SetStreamReads(int rank, bool reads);
  void SetStreamWrites(int rank, bool writes);
  // The rank ends its streams with this.
  void BreakStreams(int rank, const grpc::Status& status);
  // Streams that are open, of all ranks.
  size_t open_streams() const;
  // Input bytes that open streams have got, of all ranks.
  int64_t streamed_bytes() const;

  // Every output from here on is off by one.
  void AnswerWrongly();

  // The rank answers its next AttachRegion with this.
  void FailNextAttach(int rank, grpc::Status status);
  // AttachRegion and DetachRegion stay unanswered until ReleaseRegions.
  void HoldRegions();
  void ReleaseRegions();
  void AwaitHeldRegions(size_t calls);
  // Ids of the regions that this rank has now, by AttachRegion or by a call.
  std::set<uint64_t> attached(int rank) const;

  // Numbers of the calls that all ranks have got, probes too, in order.
  std::vector<uint64_t> call_numbers() const;
  // Ids of those calls, in the order of their numbers, probes left out.
  std::vector<std::string> request_ids() const;

 private:
  class Rank;
  using FinishFunction = std::function<void(const grpc::Status& status)>;
  // One call as far as it has come.
  struct Arrived {
    std::vector<ithaca::internal::v1::RunAttentionRequest> requests;
    std::vector<ithaca::internal::v1::RunAttentionResponse*> responses;
    std::vector<FinishFunction> finishes;
    int ranks = 0;
  };

  void OnRequest(int rank,
                 const ithaca::internal::v1::RunAttentionRequest& request,
                 ithaca::internal::v1::RunAttentionResponse* response,
                 FinishFunction finish);
  FakeRankStream* OpenStream(int rank);
  void OnRegion(int rank,
                const ithaca::internal::v1::AttachRegionRequest* attach,
                uint64_t detached_id, grpc::ServerUnaryReactor* reactor);
  void AnswerReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Answer(Arrived* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int world_size_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::unique_ptr<grpc::Server>> servers_;
  std::vector<int> ports_;

  mutable absl::Mutex mutex_;
  std::map<FakeRankStream*, int> streams_ ABSL_GUARDED_BY(mutex_);  // to rank
  std::vector<bool> stream_reads_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> stream_writes_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Arrived> calls_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, std::string> ids_ ABSL_GUARDED_BY(mutex_);
  std::map<int, grpc::Status> failures_ ABSL_GUARDED_BY(mutex_);
  std::map<int, grpc::Status> attach_failures_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::set<uint64_t>> attached_ ABSL_GUARDED_BY(mutex_);
  std::vector<grpc::ServerUnaryReactor*> held_regions_ ABSL_GUARDED_BY(mutex_);
  bool regions_held_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> refusal_ ABSL_GUARDED_BY(mutex_);
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  bool wrong_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_FAKE_GROUP_H_
