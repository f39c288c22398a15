#ifndef ITHACA_SERVER_FAKE_RANK_STREAM_H_
#define ITHACA_SERVER_FAKE_RANK_STREAM_H_

#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "ithaca/internal/v1/worker.pb.h"

namespace ithaca::server {

// For tests: a rank's StreamAttention. It stages what comes and hands it on as
// the request that RunAttention would have got. Thread-safe; deletes itself.
class FakeRankStream
    : public grpc::ServerBidiReactor<internal::v1::StreamRankRequest,
                                     internal::v1::StreamRankResponse> {
 public:
  struct Callbacks {
    // `run` has come. finish is called once, at any time, after *response was
    // filled if its status is OK.
    std::function<void(const internal::v1::RunAttentionRequest& request,
                       internal::v1::RunAttentionResponse* response,
                       std::function<void(const grpc::Status& status)> finish)>
        on_run;
    // Before it deletes itself.
    std::function<void(FakeRankStream* stream)> on_done;
  };

  FakeRankStream(Callbacks callbacks, bool reads, bool writes);

  // Whether it reads its inputs, and whether it sends output after execution.
  void SetReads(bool reads);
  void SetWrites(bool writes);
  // Ends it now, whatever it does.
  void Break(const grpc::Status& status);

  // Bytes that have come.
  int64_t received() const;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  grpc::Status Take() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Answer(const grpc::Status& status);
  void TakeAnswer(const grpc::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string OutputInOrder() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Callbacks callbacks_;
  mutable absl::Mutex mutex_;
  internal::v1::StreamRankRequest incoming_;
  internal::v1::StreamRankResponse outgoing_;
  bool reads_ ABSL_GUARDED_BY(mutex_);
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writes_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ran_ ABSL_GUARDED_BY(mutex_) = false;
  bool answered_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  // Between on_run and finish it is kept, whatever gRPC does.
  bool awaiting_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  internal::v1::RunAttentionRequest request_;
  internal::v1::RunAttentionResponse response_;
  int64_t received_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string output_ ABSL_GUARDED_BY(mutex_);
  size_t sent_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_FAKE_RANK_STREAM_H_
