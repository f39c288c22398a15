#ifndef ITHACA_CLIENT_CLI_ENUM_FLAG_H_
#define ITHACA_CLIENT_CLI_ENUM_FLAG_H_

#include <google/protobuf/generated_enum_reflection.h>

#include <map>
#include <string>

#include "absl/strings/ascii.h"

// The API's enums as the command line spells them: HEAD_SCHEDULE_PER_HEAD is
// "per_head". New values need no change here.

namespace ithaca::client {

// `prefix` is "HEAD_SCHEDULE_". The value 0, unspecified, has no name.
template <typename Enum>
std::map<std::string, int> EnumFlagValues(const std::string& prefix) {
  std::map<std::string, int> values;
  const auto* descriptor = google::protobuf::GetEnumDescriptor<Enum>();
  for (int i = 0; i < descriptor->value_count(); ++i) {
    const auto* value = descriptor->value(i);
    if (value->number() == 0) continue;
    values[absl::AsciiStrToLower(value->name().substr(prefix.size()))] =
        value->number();
  }
  return values;
}

// "unspecified" for 0; the number for a value that this build does not know.
template <typename Enum>
std::string EnumFlagName(const std::string& prefix, int number) {
  const auto* value =
      google::protobuf::GetEnumDescriptor<Enum>()->FindValueByNumber(number);
  if (value == nullptr) return std::to_string(number);
  return absl::AsciiStrToLower(value->name().substr(prefix.size()));
}

inline constexpr char kDataTypePrefix[] = "DATA_TYPE_";
inline constexpr char kTokenOrderPrefix[] = "TOKEN_ORDER_";
inline constexpr char kPrecisionPrefix[] = "COMMUNICATION_PRECISION_";
inline constexpr char kSchedulePrefix[] = "HEAD_SCHEDULE_";
inline constexpr char kKernelPrefix[] = "ATTENTION_KERNEL_";

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_CLI_ENUM_FLAG_H_
