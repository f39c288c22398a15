#ifndef ITHACA_CORE_DATA_TYPE_H_
#define ITHACA_CORE_DATA_TYPE_H_

#include <cstdint>
#include <string_view>

namespace ithaca {

// Element type of query, key, value and output; one per call.
enum class DataType : uint8_t { kFloat32, kFloat16, kBFloat16 };

// Bytes of one element.
constexpr int64_t ByteSize(DataType dtype) {
  return dtype == DataType::kFloat32 ? 4 : 2;
}

// "float32", "float16" or "bfloat16".
std::string_view Name(DataType dtype);

}  // namespace ithaca

#endif  // ITHACA_CORE_DATA_TYPE_H_
