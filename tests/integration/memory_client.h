#ifndef ITHACA_TESTS_INTEGRATION_MEMORY_CLIENT_H_
#define ITHACA_TESTS_INTEGRATION_MEMORY_CLIENT_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>
#include <grpcpp/support/sync_stream.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "ithaca/v1/attention.grpc.pb.h"
#include "ithaca/v1/memory.grpc.pb.h"

namespace ithaca {

// A name that no other object has.
std::string FreshObjectName();

// A POSIX shared memory object of this process, mapped. Its name goes with it.
class TestObject {
 public:
  TestObject(std::string name, size_t size);
  ~TestObject();
  TestObject(const TestObject&) = delete;
  TestObject& operator=(const TestObject&) = delete;

  const std::string& name() const { return name_; }
  size_t size() const { return size_; }
  void Write(size_t offset, const std::string& bytes);
  std::string Read(size_t offset, size_t size) const;
  void Truncate(size_t size) const;
  static bool Exists(const std::string& name);

 private:
  const std::string name_;
  const size_t size_;
  char* data_;
};

// A client as the generated code makes one: a connection of its own and a
// lease that is kept on it.
class MemoryClient {
 public:
  explicit MemoryClient(const std::string& address);
  ~MemoryClient();  // closes the lease

  // Whole objects.
  grpc::Status Register(const std::string& region, const TestObject& object);
  grpc::Status Unregister(const std::string& region);
  grpc::Status Attend(const ithaca::v1::AttentionRequest& request,
                      ithaca::v1::AttentionResponse* response);
  ithaca::v1::AttentionService::Stub* attention() { return attention_.get(); }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<ithaca::v1::MemoryService::Stub> memory_;
  const std::unique_ptr<ithaca::v1::AttentionService::Stub> attention_;
  grpc::ClientContext lease_context_;
  std::unique_ptr<grpc::ClientReader<ithaca::v1::KeepLeaseResponse>> stream_;
  std::string lease_;
};

// The request with its tensors written to the object, one after the other from
// `offset` on, and named there instead of sent. The output's slice follows
// them; its offset is the result.
size_t MoveToRegion(const std::string& region, size_t offset,
                    TestObject* object, ithaca::v1::AttentionRequest* request);

// How many descriptors of the object the process has open.
int Descriptors(pid_t pid, const std::string& object_name);

}  // namespace ithaca

#endif  // ITHACA_TESTS_INTEGRATION_MEMORY_CLIENT_H_
