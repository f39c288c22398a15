#include "worker/warm_shapes.h"

#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/data_type.h"

namespace ithaca {

namespace {

// Sets what one word says; false if the value is not one.
using Setter = std::function<bool(absl::string_view value)>;

Setter Integer(int64_t* number) {
  return [number](absl::string_view value) {
    return absl::SimpleAtoi(value, number);
  };
}

template <typename Enum>
Setter OneOf(Enum* choice, std::vector<Enum> choices) {
  return [choice, choices = std::move(choices)](absl::string_view value) {
    for (const Enum candidate : choices) {
      if (Name(candidate) == std::string_view(value.data(), value.size())) {
        *choice = candidate;
        return true;
      }
    }
    return false;
  };
}

absl::StatusOr<WarmShape> ParseLine(absl::string_view line) {
  WarmShape warm;
  AttentionShape& shape = warm.shape;
  AttentionOptions& options = warm.options;
  shape.dtype = DataType::kBFloat16;
  shape.image_tokens = -1;
  shape.num_heads = -1;
  shape.num_kv_heads = -1;
  shape.head_dim = -1;
  options.softmax_scale = 0;
  const std::map<absl::string_view, Setter> words = {
      {"batch", Integer(&shape.batch)},
      {"image-tokens", Integer(&shape.image_tokens)},
      {"text-tokens", Integer(&shape.text_tokens)},
      {"heads", Integer(&shape.num_heads)},
      {"kv-heads", Integer(&shape.num_kv_heads)},
      {"head-dim", Integer(&shape.head_dim)},
      {"valid-text",
       [&](absl::string_view value) {
         for (const absl::string_view part : absl::StrSplit(value, ',')) {
           int64_t& valid = shape.valid_text_tokens.emplace_back();
           if (!absl::SimpleAtoi(part, &valid)) return false;
         }
         return true;
       }},
      {"image-queries-only",
       [&](absl::string_view value) {
         shape.image_queries_only = true;
         return value.empty();
       }},
      {"scale",
       [&](absl::string_view value) {
         return absl::SimpleAtod(value, &options.softmax_scale);
       }},
      {"order",
       OneOf(&shape.order, {TokenOrder::kImageFirst, TokenOrder::kTextFirst})},
      {"dtype", OneOf(&shape.dtype, {DataType::kFloat32, DataType::kFloat16,
                                     DataType::kBFloat16})},
      {"precision", OneOf(&options.precision, {CommunicationPrecision::kNative,
                                               CommunicationPrecision::kFp8E4m3,
                                               CommunicationPrecision::kInt8})},
      {"schedule",
       OneOf(&options.schedule, {HeadSchedule::kAuto, HeadSchedule::kFused,
                                 HeadSchedule::kPerHead})},
      {"kernel",
       OneOf(&options.kernel,
             {AttentionKernelKind::kAuto, AttentionKernelKind::kMath,
              AttentionKernelKind::kFlash, AttentionKernelKind::kCudnn})},
  };
  for (const absl::string_view word :
       absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    const auto known = words.find(parts.first);
    if (known == words.end() || !known->second(parts.second)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", word, "\" is not a word of a shape"));
    }
  }
  if (shape.num_kv_heads < 0) shape.num_kv_heads = shape.num_heads;
  if (shape.valid_text_tokens.empty()) {
    // A number of batch elements that makes no sense is Validate's to refuse.
    const int64_t elements =
        shape.batch > 0 && shape.batch < 4096 ? shape.batch : 0;
    shape.valid_text_tokens.assign(static_cast<size_t>(elements),
                                   shape.text_tokens);
  }
  if (auto status = Validate(shape); !status.ok()) return status;
  if (options.softmax_scale == 0) {
    options.softmax_scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  }
  return warm;
}

}  // namespace

absl::StatusOr<std::vector<WarmShape>> ParseWarmShapes(std::string_view text) {
  std::vector<WarmShape> shapes;
  int number = 0;
  for (absl::string_view line :
       absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == absl::string_view::npos) continue;
    auto shape = ParseLine(line);
    if (!shape.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": ", shape.status().message()));
    }
    shapes.push_back(*std::move(shape));
  }
  return shapes;
}

absl::StatusOr<std::vector<WarmShape>> ReadWarmShapes(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::ostringstream text;
  text << file.rdbuf();
  auto shapes = ParseWarmShapes(text.str());
  if (!shapes.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", shapes.status().message()));
  }
  return shapes;
}

}  // namespace ithaca
