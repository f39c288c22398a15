#include "server/memory_request.h"

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/tensor_bytes.h"

namespace ithaca::server {

namespace {

// Names and numbers only; a message this long is none of ours.
constexpr size_t kMaxMessageBytes = 64 << 10;

constexpr size_t kIpcHandleBytes = 64;
constexpr size_t kMaxDeviceUuidBytes = 128;

absl::Status Invalid(absl::string_view field, absl::string_view expected,
                     absl::string_view actual) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected ", expected, ", got ", actual));
}

absl::Status CheckRegionName(const std::string& name) {
  if (!name.empty() &&
      name.size() <= static_cast<size_t>(kMaxRegionNameBytes)) {
    return absl::OkStatus();
  }
  return Invalid("region",
                 absl::StrCat("a name of 1 to ", kMaxRegionNameBytes, " bytes"),
                 absl::StrCat(name.size(), " bytes"));
}

absl::Status CheckRange(uint64_t offset, uint64_t byte_size) {
  if (byte_size == 0) return Invalid("byte_size", "at least 1", "0");
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  if (offset <= kMost && byte_size <= kMost - offset) return absl::OkStatus();
  return Invalid("offset + byte_size", "less than 2^63",
                 absl::StrCat(offset, " + ", byte_size));
}

absl::Status CheckObjectName(const std::string& name) {
  if (name.size() > static_cast<size_t>(kMaxObjectNameBytes)) {
    return Invalid("object_name",
                   absl::StrCat("at most ", kMaxObjectNameBytes, " bytes"),
                   absl::StrCat(name.size()));
  }
  if (!absl::StartsWith(name, kObjectNamePrefix) ||
      name.find('/', 1) != std::string::npos ||
      name.find('\0') != std::string::npos) {
    return Invalid("object_name",
                   absl::StrCat("a name that starts with \"", kObjectNamePrefix,
                                "\" and has no further slash"),
                   absl::StrCat("\"", absl::Utf8SafeCEscape(name), "\""));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseMemoryRequest(const grpc::ByteBuffer& bytes,
                                google::protobuf::Message* request) {
  TensorBytes received;
  if (!bytes.Valid() || !FromByteBuffer(bytes, &received)) {
    return absl::InvalidArgumentError("the call came without a message");
  }
  if (static_cast<size_t>(received.size()) > kMaxMessageBytes) {
    return Invalid("the request message",
                   absl::StrCat("at most ", kMaxMessageBytes, " bytes"),
                   absl::StrCat(received.size()));
  }
  if (!request->ParseFromString(received.Flatten())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the request is not a valid ", request->GetTypeName(),
        " message: it is malformed, or a name in it is not UTF-8"));
  }
  return absl::OkStatus();
}

absl::Status CheckRequest(const v1::RegisterSharedMemoryRequest& request) {
  if (auto status = CheckRegionName(request.region()); !status.ok()) {
    return status;
  }
  if (auto status = CheckObjectName(request.object_name()); !status.ok()) {
    return status;
  }
  return CheckRange(request.offset(), request.byte_size());
}

absl::Status CheckRequest(const v1::RegisterCudaMemoryRequest& request) {
  if (auto status = CheckRegionName(request.region()); !status.ok()) {
    return status;
  }
  if (request.ipc_handle().size() != kIpcHandleBytes) {
    return Invalid(
        "ipc_handle",
        absl::StrCat("a cudaIpcMemHandle_t of ", kIpcHandleBytes, " bytes"),
        absl::StrCat(request.ipc_handle().size(), " bytes"));
  }
  const size_t uuid_bytes = request.device_uuid().size();
  if (uuid_bytes == 0 || uuid_bytes > kMaxDeviceUuidBytes) {
    return Invalid(
        "device_uuid",
        absl::StrCat("a GPU's UUID of at most ", kMaxDeviceUuidBytes, " bytes"),
        absl::StrCat(uuid_bytes, " bytes"));
  }
  return CheckRange(request.offset(), request.byte_size());
}

absl::Status CheckObject(const v1::RegisterSharedMemoryRequest& request,
                         const SharedMemoryObject& object) {
  const uint64_t size = object.Size();
  const uint64_t end = request.offset() + request.byte_size();
  if (end <= size) return absl::OkStatus();
  return Invalid("offset + byte_size",
                 absl::StrCat("at most the object's ", size, " bytes"),
                 absl::StrCat(request.offset(), " + ", request.byte_size()));
}

internal::v1::Region DescribeRegion(
    const v1::RegisterSharedMemoryRequest& request,
    const SharedMemoryObject& object) {
  internal::v1::Region region;
  region.set_byte_size(request.byte_size());
  internal::v1::SharedMemory* const shared = region.mutable_shared();
  shared->set_object_name(object.name());
  shared->set_offset(request.offset());
  shared->set_device_number(object.device_number());
  shared->set_inode(object.inode());
  return region;
}

internal::v1::Region DescribeRegion(
    const v1::RegisterCudaMemoryRequest& request) {
  internal::v1::Region region;
  region.set_byte_size(request.byte_size());
  internal::v1::CudaMemory* const cuda = region.mutable_cuda();
  cuda->set_ipc_handle(request.ipc_handle());
  cuda->set_device_uuid(request.device_uuid());
  cuda->set_offset(request.offset());
  return region;
}

}  // namespace ithaca::server
