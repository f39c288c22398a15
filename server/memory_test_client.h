#ifndef ITHACA_SERVER_MEMORY_TEST_CLIENT_H_
#define ITHACA_SERVER_MEMORY_TEST_CLIENT_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>
#include <grpcpp/support/sync_stream.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "ithaca/v1/attention.grpc.pb.h"
#include "ithaca/v1/memory.grpc.pb.h"

// For tests: a client of MemoryService and what it shares with the server.

namespace ithaca::server {

// A client's object of four float32 tensors [1, 3, 2, 4], one after the other:
// query, key, value, output. Query and key are zeros, and the value of token t
// is t: the output is 1 everywhere.
class TensorObject {
 public:
  static constexpr int64_t kElements = 3 * 2 * 4;
  static constexpr uint64_t kTensorBytes = kElements * sizeof(float);
  static constexpr uint64_t kBytes = 4 * kTensorBytes;

  TensorObject();
  ~TensorObject();
  TensorObject(const TensorObject&) = delete;
  TensorObject& operator=(const TensorObject&) = delete;

  const std::string& name() const { return name_; }
  bool Exists() const;
  void Truncate(off_t size) const;
  void ExpectOutput() const;

 private:
  const std::string name_;
  float* floats_;
};

// A connection of its own, and one lease on it.
class MemoryTestClient {
 public:
  explicit MemoryTestClient(int port);
  ~MemoryTestClient();  // closes the lease

  void OpenLease();
  void CloseLease();
  // What the server ends the lease with.
  grpc::Status AwaitLeaseEnd();
  const std::string& lease() const { return lease_; }

  // For all of the object.
  v1::RegisterSharedMemoryRequest RegisterRequest(
      const std::string& region, const TensorObject& object) const;
  grpc::Status Register(const v1::RegisterSharedMemoryRequest& request);
  grpc::Status Register(const std::string& region, const TensorObject& object);
  grpc::Status Unregister(const std::string& region,
                          absl::Duration timeout = absl::Seconds(60));
  std::vector<v1::MemoryRegion> List();

  // A call on the four tensors of a TensorObject.
  static v1::AttentionRequest CallOn(const std::string& region);
  // lease: to name; empty: none.
  grpc::Status Attend(const v1::AttentionRequest& request,
                      v1::AttentionResponse* response = nullptr,
                      const std::string& lease = "",
                      absl::Duration timeout = absl::Seconds(60));

  v1::MemoryService::Stub* memory() { return memory_.get(); }
  v1::AttentionService::Stub* attention() { return attention_.get(); }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::MemoryService::Stub> memory_;
  std::unique_ptr<v1::AttentionService::Stub> attention_;
  grpc::ClientContext lease_context_;
  std::unique_ptr<grpc::ClientReader<v1::KeepLeaseResponse>> stream_;
  std::string lease_;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_MEMORY_TEST_CLIENT_H_
