#include "server/stream_input.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "ithaca/v1/attention.pb.h"
#include "server/stream_scatter.h"

namespace ithaca::server {

namespace {

constexpr std::array<const char*, 3> kNames = {"query", "key", "value"};

absl::Status Invalid(const std::string& what) {
  return absl::InvalidArgumentError(what);
}

}  // namespace

StreamInput::StreamInput(const StreamScatter& scatter)
    : expected_{scatter.tensor_bytes(InputRole::kQuery),
                scatter.tensor_bytes(InputRole::kKey),
                scatter.tensor_bytes(InputRole::kValue)} {}

absl::StatusOr<InputRole> StreamInput::Accept(ithaca::v1::TensorRole role,
                                              uint64_t offset, int64_t size) {
  if (role != ithaca::v1::TENSOR_ROLE_QUERY &&
      role != ithaca::v1::TENSOR_ROLE_KEY &&
      role != ithaca::v1::TENSOR_ROLE_VALUE) {
    return Invalid(absl::StrCat(
        "chunk.role: expected TENSOR_ROLE_QUERY, TENSOR_ROLE_KEY or "
        "TENSOR_ROLE_VALUE, got ",
        ithaca::v1::TensorRole_IsValid(role)
            ? ithaca::v1::TensorRole_Name(role)
            : absl::StrCat("number ", static_cast<int>(role))));
  }
  const auto index = static_cast<size_t>(role - ithaca::v1::TENSOR_ROLE_QUERY);
  const char* const name = kNames[index];
  if (expected_[index] == 0) {
    return Invalid(absl::StrCat("a chunk of ", name,
                                ": expected none, for the tensor is in a "
                                "memory region, got one at offset ",
                                offset));
  }
  if (size == 0) {
    return Invalid(absl::StrCat("a chunk of ", name, " at offset ", offset,
                                ": expected data, got 0 bytes"));
  }
  if (offset != static_cast<uint64_t>(received_[index])) {
    return Invalid(absl::StrCat("a chunk of ", name, ": expected offset ",
                                received_[index], ", got ", offset));
  }
  if (size > expected_[index] - received_[index]) {
    return Invalid(absl::StrCat(
        "a chunk of ", name, " at offset ", offset, ": expected at most ",
        expected_[index] - received_[index], " bytes, for the tensor has ",
        expected_[index], ", got ", size));
  }
  received_[index] += size;
  return static_cast<InputRole>(index);
}

bool StreamInput::complete() const { return received_ == expected_; }

absl::Status StreamInput::Missing() const {
  for (size_t index = 0; index < kNames.size(); ++index) {
    if (received_[index] < expected_[index]) {
      return Invalid(absl::StrCat(
          "the stream ended before all of ", kNames[index], ": expected ",
          expected_[index], " bytes, got ", received_[index]));
    }
  }
  return absl::InternalError("the stream is complete");
}

}  // namespace ithaca::server
