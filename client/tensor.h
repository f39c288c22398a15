#ifndef ITHACA_CLIENT_TENSOR_H_
#define ITHACA_CLIENT_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ithaca/v1/attention.pb.h"

// Tensors as the public API carries them: row-major, contiguous, little-endian,
// [batch, tokens, heads, head_dim] or, for batch 1, [tokens, heads, head_dim].

namespace ithaca::client {

// Bytes of one element; 0 for an unspecified or unknown dtype.
int64_t ElementBytes(ithaca::v1::DataType dtype);

// "float32", "float16", "bfloat16"; "unspecified" for anything else.
std::string_view Name(ithaca::v1::DataType dtype);

// Bytes of a dense tensor; nullopt if a dimension is negative, the dtype is
// unknown or the product does not fit in int64.
std::optional<int64_t> DenseBytes(ithaca::v1::DataType dtype,
                                  std::span<const int64_t> shape);

class MemoryRegion;  // memory_region.h

// A place in memory that is registered with the server.
struct RegionView {
  std::shared_ptr<MemoryRegion> region = {};  // null: no such place
  uint64_t offset = 0;                        // bytes
};

// Somebody's tensor. Nothing here checks that the first three fields agree:
// the server judges them, and its message names the one that is wrong.
struct TensorView {
  ithaca::v1::DataType dtype = ithaca::v1::DATA_TYPE_UNSPECIFIED;
  std::vector<int64_t> shape = {};
  std::span<const std::byte> bytes = {};
  // Keeps `bytes` alive. Null: the bytes are only borrowed for a call, which
  // then does not end before the connection has let go of them.
  std::shared_ptr<const void> owner = {};
  // Where the server finds the tensor without being sent it. `bytes` are the
  // same memory, or empty where this process cannot read it (a GPU's).
  RegionView region = {};
};

// Bytes of the tensor, wherever it lies; 0 if no such tensor can be.
uint64_t ByteSize(const TensorView& tensor);

// A tensor with its memory, uninitialised when made. Copies share the memory.
class Tensor {
 public:
  Tensor() = default;
  // REQUIRES: DenseBytes(dtype, shape) has a value.
  Tensor(ithaca::v1::DataType dtype, std::vector<int64_t> shape);
  // The memory is the caller's, who keeps it alive.
  Tensor(ithaca::v1::DataType dtype, std::vector<int64_t> shape,
         std::span<std::byte> bytes);
  // In a region, which the tensor keeps; `bytes` as in TensorView.
  Tensor(ithaca::v1::DataType dtype, std::vector<int64_t> shape,
         std::span<std::byte> bytes, RegionView region);

  ithaca::v1::DataType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  std::span<std::byte> bytes() { return bytes_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  TensorView view() const { return {dtype_, shape_, bytes_, memory_, region_}; }
  // Where it lies, for AttentionArguments::output_region.
  const RegionView& region() const { return region_; }

 private:
  ithaca::v1::DataType dtype_ = ithaca::v1::DATA_TYPE_UNSPECIFIED;
  std::vector<int64_t> shape_;
  std::shared_ptr<const void> memory_;
  std::span<std::byte> bytes_;
  RegionView region_;
};

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_TENSOR_H_
