#include "client/tensor.h"

#include <utility>

namespace ithaca::client {

int64_t ElementBytes(v1::DataType dtype) {
  switch (dtype) {
    case v1::DATA_TYPE_FLOAT32:
      return 4;
    case v1::DATA_TYPE_FLOAT16:
    case v1::DATA_TYPE_BFLOAT16:
      return 2;
    default:
      return 0;
  }
}

std::string_view Name(v1::DataType dtype) {
  switch (dtype) {
    case v1::DATA_TYPE_FLOAT32:
      return "float32";
    case v1::DATA_TYPE_FLOAT16:
      return "float16";
    case v1::DATA_TYPE_BFLOAT16:
      return "bfloat16";
    default:
      return "unspecified";
  }
}

std::optional<int64_t> DenseBytes(v1::DataType dtype,
                                  std::span<const int64_t> shape) {
  int64_t bytes = ElementBytes(dtype);
  if (bytes == 0) return std::nullopt;
  for (const int64_t dimension : shape) {
    if (dimension < 0 || __builtin_mul_overflow(bytes, dimension, &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

uint64_t ByteSize(const TensorView& tensor) {
  if (!tensor.bytes.empty()) return tensor.bytes.size();
  if (tensor.region.region == nullptr) return 0;
  return static_cast<uint64_t>(
      DenseBytes(tensor.dtype, tensor.shape).value_or(0));
}

Tensor::Tensor(v1::DataType dtype, std::vector<int64_t> shape)
    : dtype_(dtype), shape_(std::move(shape)) {
  const auto size = static_cast<size_t>(*DenseBytes(dtype_, shape_));
  // Not zeroed: the bytes are about to be written, and may be hundreds of MB.
  const std::shared_ptr<std::byte[]> memory(new std::byte[size]);
  bytes_ = {memory.get(), size};
  memory_ = std::shared_ptr<const void>(memory, memory.get());
}

Tensor::Tensor(v1::DataType dtype, std::vector<int64_t> shape,
               std::span<std::byte> bytes)
    : dtype_(dtype), shape_(std::move(shape)), bytes_(bytes) {}

Tensor::Tensor(v1::DataType dtype, std::vector<int64_t> shape,
               std::span<std::byte> bytes, RegionView region)
    : dtype_(dtype),
      shape_(std::move(shape)),
      memory_(region.region),
      bytes_(bytes),
      region_(std::move(region)) {}

}  // namespace ithaca::client
