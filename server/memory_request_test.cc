#include "server/memory_request.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/lease_token.h"

namespace ithaca::server {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kMostSigned = std::numeric_limits<int64_t>::max();

v1::RegisterSharedMemoryRequest Shared() {
  v1::RegisterSharedMemoryRequest request;
  request.set_lease("lease");
  request.set_region("region");
  request.set_object_name("/ithaca-object");
  request.set_offset(16);
  request.set_byte_size(64);
  return request;
}

v1::RegisterCudaMemoryRequest Cuda() {
  v1::RegisterCudaMemoryRequest request;
  request.set_lease("lease");
  request.set_region("region");
  request.set_ipc_handle(std::string(64, '\xff'));
  request.set_device_uuid("GPU-1");
  request.set_offset(16);
  request.set_byte_size(64);
  return request;
}

template <typename Request>
void ExpectInvalid(const Request& request,
                   const std::vector<std::string>& parts) {
  const absl::Status status = CheckRequest(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  for (const std::string& part : parts) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

TEST(MemoryRequestTest, GoodRequestsPass) {
  EXPECT_TRUE(CheckRequest(Shared()).ok());
  EXPECT_TRUE(CheckRequest(Cuda()).ok());
  auto longest = Shared();
  longest.set_region(std::string(256, 'r'));
  longest.set_object_name("/ithaca-" + std::string(247, 'o'));
  EXPECT_TRUE(CheckRequest(longest).ok());
}

TEST(MemoryRequestTest, ARegionsNameHasALength) {
  for (const size_t length : {size_t{0}, size_t{257}, size_t{60000}}) {
    auto shared = Shared();
    shared.set_region(std::string(length, 'r'));
    ExpectInvalid(shared, {"region", "256", std::to_string(length)});
    auto cuda = Cuda();
    cuda.set_region(std::string(length, 'r'));
    ExpectInvalid(cuda, {"region", "256", std::to_string(length)});
  }
}

TEST(MemoryRequestTest, OnlyObjectsOfOurNamesAreTaken) {
  for (const std::string& name :
       {std::string(), std::string("/"), std::string("ithaca-object"),
        std::string("/other"), std::string("/ithaca"), std::string("/ithaca_x"),
        std::string("//ithaca-x"), std::string("/ithaca-/x"),
        std::string("/ithaca-x/../../etc"), std::string("/ithaca-x/"),
        std::string("/ITHACA-x"), std::string("/ithaca-x\0y", 11)}) {
    auto request = Shared();
    request.set_object_name(name);
    ExpectInvalid(request, {"object_name", "/ithaca-"});
  }
  auto request = Shared();
  request.set_object_name("/ithaca-" + std::string(248, 'o'));
  ExpectInvalid(request, {"object_name", "255", "256"});
}

TEST(MemoryRequestTest, ARangeIsNotEmptyAndDoesNotOverflow) {
  const auto with_range = [](auto request, uint64_t offset, uint64_t size) {
    request.set_offset(offset);
    request.set_byte_size(size);
    return request;
  };
  ExpectInvalid(with_range(Shared(), 0, 0), {"byte_size", "at least 1"});
  ExpectInvalid(with_range(Cuda(), 0, 0), {"byte_size", "at least 1"});
  const std::vector<std::pair<uint64_t, uint64_t>> ranges = {
      {1, kMost},           {kMost, 1},       {kMost, kMost},
      {0, kMostSigned + 1}, {kMostSigned, 1}, {kMostSigned + 1, 1}};
  for (const auto& [offset, size] : ranges) {
    ExpectInvalid(with_range(Shared(), offset, size),
                  {"offset + byte_size", std::to_string(offset)});
    ExpectInvalid(with_range(Cuda(), offset, size),
                  {"offset + byte_size", std::to_string(offset)});
  }
  EXPECT_TRUE(CheckRequest(with_range(Cuda(), 0, kMostSigned)).ok());
}

TEST(MemoryRequestTest, AnIpcHandleIsOf64BytesAndHasItsDevice) {
  for (const size_t length : {0, 63, 65, 128}) {
    auto request = Cuda();
    request.set_ipc_handle(std::string(length, 'h'));
    ExpectInvalid(request, {"ipc_handle", "64", std::to_string(length)});
  }
  auto request = Cuda();
  request.set_device_uuid("");
  ExpectInvalid(request, {"device_uuid"});
  request.set_device_uuid(std::string(129, 'u'));
  ExpectInvalid(request, {"device_uuid", "128", "129"});
}

TEST(MemoryRequestTest, APartBeyondItsObjectIsRefused) {
  const std::string name = "/ithaca-memory-request-test-" + NewLeaseToken();
  const int fd = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(ftruncate(fd, 80), 0);
  close(fd);
  const auto object = SharedMemoryObject::Open(name);
  shm_unlink(name.c_str());
  ASSERT_TRUE(object.ok());
  auto request = Shared();
  EXPECT_TRUE(CheckObject(request, *object).ok());
  request.set_offset(17);
  const absl::Status status = CheckObject(request, *object);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("80"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("17 + 64"));

  const internal::v1::Region region = DescribeRegion(Shared(), *object);
  EXPECT_EQ(region.byte_size(), 64u);
  EXPECT_EQ(region.shared().object_name(), name);
  EXPECT_EQ(region.shared().offset(), 16u);
  EXPECT_EQ(region.shared().device_number(), object->device_number());
  EXPECT_EQ(region.shared().inode(), object->inode());
}

absl::Status Parse(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  v1::RegisterSharedMemoryRequest request;
  return ParseMemoryRequest(grpc::ByteBuffer(&slice, 1), &request);
}

TEST(MemoryRequestTest, WhatIsNoMessageIsInvalid) {
  EXPECT_TRUE(Parse(Shared().SerializeAsString()).ok());
  EXPECT_TRUE(Parse("").ok());
  // A length beyond the end; a region that is not UTF-8; far too long.
  EXPECT_TRUE(absl::IsInvalidArgument(Parse("\x12\x7f")));
  EXPECT_TRUE(absl::IsInvalidArgument(Parse("\x12\x02\xc3\x28")));
  EXPECT_TRUE(absl::IsInvalidArgument(
      Parse(std::string("\x12\x80\x80\x08", 4) + std::string(1 << 17, 'r'))));
  v1::RegisterSharedMemoryRequest request;
  EXPECT_TRUE(absl::IsInvalidArgument(
      ParseMemoryRequest(grpc::ByteBuffer(), &request)));
}

}  // namespace
}  // namespace ithaca::server
