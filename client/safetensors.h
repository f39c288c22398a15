#ifndef ITHACA_CLIENT_SAFETENSORS_H_
#define ITHACA_CLIENT_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/tensor.h"

// The .safetensors format: 8 bytes of little-endian header size N, N bytes of
// JSON {name: {dtype, shape, data_offsets: [begin, end]}}, then the data.
// A file is untrusted: nothing in it is believed before it is checked.
// Source: the format's own description (huggingface/safetensors).

namespace ithaca::client {

// Where a tensor lies; offsets are from the start of the data.
struct SafetensorsEntry {
  // Unspecified for a dtype that the API does not carry.
  ithaca::v1::DataType dtype = ithaca::v1::DATA_TYPE_UNSPECIFIED;
  std::string dtype_name;  // as written: "BF16"
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

using SafetensorsIndex = std::map<std::string, SafetensorsEntry>;

// The header's JSON, checked against `data_bytes`, what follows it in the
// file. Every range lies inside the data, and where the dtype is one of the
// API's, it is as long as the shape says.
// Errors: kInvalidArgument, naming the tensor and what is wrong.
absl::StatusOr<SafetensorsIndex> ParseSafetensorsHeader(std::string_view json,
                                                        uint64_t data_bytes);

// The tensors `names` of a file, in that order.
// Errors: kNotFound (no such file, or no such tensor: lists those it has),
// kInvalidArgument (not a .safetensors file; a dtype other than F32, F16 and
// BF16), kUnavailable (the file can't be read to its end).
absl::StatusOr<std::vector<Tensor>> ReadSafetensors(
    const std::string& path, const std::vector<std::string>& names);

// Replaces `path`. Errors: kInvalidArgument (a tensor's bytes do not fit its
// shape), kUnavailable (it can't be written; no half file stays).
absl::Status WriteSafetensors(const std::string& path,
                              const std::map<std::string, TensorView>& tensors);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_SAFETENSORS_H_
