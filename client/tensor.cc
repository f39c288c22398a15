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

Tensor::Tensor(v1::DataType dtype, std::vector<int64_t> shape)
    : dtype_(dtype), shape_(std::move(shape)) {
  const auto size = static_cast<size_t>(*DenseBytes(dtype_, shape_));
  // Not zeroed: the bytes are about to be written, and may be hundreds of MB.
  memory_ = std::shared_ptr<std::byte[]>(new std::byte[size]);
  bytes_ = {memory_.get(), size};
}

Tensor::Tensor(v1::DataType dtype, std::vector<int64_t> shape,
               std::span<std::byte> bytes)
    : dtype_(dtype), shape_(std::move(shape)), bytes_(bytes) {}

}  // namespace ithaca::client
