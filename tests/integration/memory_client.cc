#include "tests/integration/memory_client.h"

#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

namespace ithaca {

namespace {

std::shared_ptr<grpc::Channel> OwnConnection(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   arguments);
}

}  // namespace

std::string FreshObjectName() {
  // Not by the process's number: sandboxes that share /dev/shm each count
  // their own.
  std::random_device random;
  std::ostringstream name;
  name << "/ithaca-test-" << std::hex << random() << random() << random();
  return name.str();
}

TestObject::TestObject(std::string name, size_t size)
    : name_(std::move(name)), size_(size) {
  Truncate(size);
  const int fd = shm_open(name_.c_str(), O_RDWR, 0);
  data_ = static_cast<char*>(
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  close(fd);
}

TestObject::~TestObject() {
  munmap(data_, size_);
  shm_unlink(name_.c_str());
}

void TestObject::Write(size_t offset, const std::string& bytes) {
  std::memcpy(data_ + offset, bytes.data(), bytes.size());
}

std::string TestObject::Read(size_t offset, size_t size) const {
  return {data_ + offset, size};
}

void TestObject::Truncate(size_t size) const {
  const int fd = shm_open(name_.c_str(), O_CREAT | O_RDWR, 0600);
  if (ftruncate(fd, static_cast<off_t>(size)) != 0) std::abort();
  close(fd);
}

bool TestObject::Exists(const std::string& name) {
  const int fd = shm_open(name.c_str(), O_RDONLY, 0);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

MemoryClient::MemoryClient(const std::string& address)
    : channel_(OwnConnection(address)),
      memory_(ithaca::v1::MemoryService::NewStub(channel_)),
      attention_(ithaca::v1::AttentionService::NewStub(channel_)),
      stream_(memory_->KeepLease(&lease_context_, {})) {
  ithaca::v1::KeepLeaseResponse opened;
  stream_->Read(&opened);
  lease_ = opened.lease();
}

MemoryClient::~MemoryClient() {
  lease_context_.TryCancel();
  stream_->Finish();
}

grpc::Status MemoryClient::Register(const std::string& region,
                                    const TestObject& object) {
  grpc::ClientContext context;
  ithaca::v1::RegisterSharedMemoryRequest request;
  request.set_lease(lease_);
  request.set_region(region);
  request.set_object_name(object.name());
  request.set_byte_size(object.size());
  ithaca::v1::RegisterMemoryResponse response;
  return memory_->RegisterSharedMemory(&context, request, &response);
}

grpc::Status MemoryClient::Unregister(const std::string& region) {
  grpc::ClientContext context;
  ithaca::v1::UnregisterMemoryRequest request;
  request.set_lease(lease_);
  request.set_region(region);
  ithaca::v1::UnregisterMemoryResponse response;
  return memory_->UnregisterMemory(&context, request, &response);
}

grpc::Status MemoryClient::Attend(const ithaca::v1::AttentionRequest& request,
                                  ithaca::v1::AttentionResponse* response) {
  grpc::ClientContext context;
  return attention_->Attention(&context, request, response);
}

size_t MoveToRegion(const std::string& region, size_t offset,
                    TestObject* object, ithaca::v1::AttentionRequest* request) {
  const size_t output_size = request->query().data().size();
  for (ithaca::v1::Tensor* tensor :
       {request->mutable_query(), request->mutable_key(),
        request->mutable_value()}) {
    const std::string data = tensor->data();
    object->Write(offset, data);
    ithaca::v1::MemorySlice* const slice = tensor->mutable_memory();
    slice->set_region(region);
    slice->set_offset(offset);
    slice->set_byte_size(data.size());
    offset += data.size();
  }
  ithaca::v1::MemorySlice* const output = request->mutable_output();
  output->set_region(region);
  output->set_offset(offset);
  output->set_byte_size(output_size);
  return offset;
}

int Descriptors(pid_t pid, const std::string& object_name) {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(
           "/proc/" + std::to_string(pid) + "/fd", error)) {
    const auto target = std::filesystem::read_symlink(entry, error);
    if (target.string().starts_with("/dev/shm" + object_name)) ++count;
  }
  return count;
}

}  // namespace ithaca
