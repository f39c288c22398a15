#include "server/memory_test_client.h"

#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/lease_token.h"
#include "server/region_access.h"

namespace ithaca::server {

TensorObject::TensorObject() : name_("/ithaca-test-" + NewLeaseToken()) {
  const int fd = shm_open(name_.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  EXPECT_EQ(ftruncate(fd, kBytes), 0);
  floats_ = static_cast<float*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  close(fd);
  for (int64_t i = 0; i < kElements; ++i) {
    floats_[2 * kElements + i] = static_cast<float>(i / 8);
  }
}

TensorObject::~TensorObject() {
  munmap(floats_, kBytes);
  shm_unlink(name_.c_str());
}

bool TensorObject::Exists() const {
  const int fd = shm_open(name_.c_str(), O_RDONLY, 0);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

void TensorObject::Truncate(off_t size) const {
  const int fd = shm_open(name_.c_str(), O_RDWR, 0);
  EXPECT_EQ(ftruncate(fd, size), 0);
  close(fd);
}

void TensorObject::ExpectOutput() const {
  for (int64_t i = 0; i < kElements; ++i) {
    ASSERT_FLOAT_EQ(floats_[3 * kElements + i], 1.0F) << i;
  }
}

MemoryTestClient::MemoryTestClient(int port) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  channel_ =
      grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port),
                                grpc::InsecureChannelCredentials(), arguments);
  memory_ = v1::MemoryService::NewStub(channel_);
  attention_ = v1::AttentionService::NewStub(channel_);
}

MemoryTestClient::~MemoryTestClient() {
  if (stream_ != nullptr) CloseLease();
}

void MemoryTestClient::OpenLease() {
  stream_ = memory_->KeepLease(&lease_context_, {});
  v1::KeepLeaseResponse response;
  ASSERT_TRUE(stream_->Read(&response));
  lease_ = response.lease();
}

void MemoryTestClient::CloseLease() {
  lease_context_.TryCancel();
  stream_->Finish();
  stream_.reset();
}

grpc::Status MemoryTestClient::AwaitLeaseEnd() {
  v1::KeepLeaseResponse response;
  EXPECT_FALSE(stream_->Read(&response));
  const grpc::Status status = stream_->Finish();
  stream_.reset();
  return status;
}

v1::RegisterSharedMemoryRequest MemoryTestClient::RegisterRequest(
    const std::string& region, const TensorObject& object) const {
  v1::RegisterSharedMemoryRequest request;
  request.set_lease(lease_);
  request.set_region(region);
  request.set_object_name(object.name());
  request.set_byte_size(TensorObject::kBytes);
  return request;
}

grpc::Status MemoryTestClient::Register(
    const v1::RegisterSharedMemoryRequest& request) {
  grpc::ClientContext context;
  v1::RegisterMemoryResponse response;
  return memory_->RegisterSharedMemory(&context, request, &response);
}

grpc::Status MemoryTestClient::Register(const std::string& region,
                                        const TensorObject& object) {
  return Register(RegisterRequest(region, object));
}

grpc::Status MemoryTestClient::Unregister(const std::string& region,
                                          absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  v1::UnregisterMemoryRequest request;
  request.set_lease(lease_);
  request.set_region(region);
  v1::UnregisterMemoryResponse response;
  return memory_->UnregisterMemory(&context, request, &response);
}

std::vector<v1::MemoryRegion> MemoryTestClient::List() {
  grpc::ClientContext context;
  v1::ListMemoryRequest request;
  request.set_lease(lease_);
  v1::ListMemoryResponse response;
  const grpc::Status status = memory_->ListMemory(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return {response.regions().begin(), response.regions().end()};
}

v1::AttentionRequest MemoryTestClient::CallOn(const std::string& region) {
  v1::AttentionRequest request;
  std::vector<v1::MemorySlice*> slices;
  for (v1::Tensor* tensor : {request.mutable_query(), request.mutable_key(),
                             request.mutable_value()}) {
    tensor->set_dtype(v1::DATA_TYPE_FLOAT32);
    for (const int64_t dim : {1, 3, 2, 4}) tensor->add_shape(dim);
    slices.push_back(tensor->mutable_memory());
  }
  slices.push_back(request.mutable_output());
  uint64_t offset = 0;
  for (v1::MemorySlice* slice : slices) {
    slice->set_region(region);
    slice->set_offset(offset);
    slice->set_byte_size(TensorObject::kTensorBytes);
    offset += TensorObject::kTensorBytes;
  }
  return request;
}

grpc::Status MemoryTestClient::Attend(const v1::AttentionRequest& request,
                                      v1::AttentionResponse* response,
                                      const std::string& lease,
                                      absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  if (!lease.empty()) context.AddMetadata(kLeaseKey, lease);
  v1::AttentionResponse dropped;
  return attention_->Attention(&context, request,
                               response == nullptr ? &dropped : response);
}

}  // namespace ithaca::server
