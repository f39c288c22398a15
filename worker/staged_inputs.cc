#include "worker/staged_inputs.h"

#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ithaca {

StagedInputs::StagedInputs(std::shared_ptr<HostBuffer> buffer, int64_t bytes)
    : buffer_(std::move(buffer)), bytes_(bytes), missing_(bytes) {}

absl::Status StagedInputs::Put(uint64_t offset,
                               absl::Span<const std::string_view> pieces) {
  uint64_t size = 0;
  for (std::string_view piece : pieces) size += piece.size();
  const auto room = static_cast<uint64_t>(bytes_);
  if (offset > room || size > room - offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk: ", size, " bytes at ", offset,
                     " do not lie within the inputs' ", bytes_));
  }
  if (size == 0) return absl::OkStatus();

  int64_t begin = static_cast<int64_t>(offset);
  int64_t end = begin + static_cast<int64_t>(size);
  auto next = covered_.lower_bound(begin);
  auto before = next == covered_.begin() ? covered_.end() : std::prev(next);
  if ((next != covered_.end() && next->first < end) ||
      (before != covered_.end() && before->second > begin)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "chunk: of ", size, " bytes at ", offset, " some have come before"));
  }
  if (buffer_ != nullptr) {
    char* to = buffer_->data() + begin;
    for (std::string_view piece : pieces) {
      std::memcpy(to, piece.data(), piece.size());
      to += piece.size();
    }
  }
  missing_ -= end - begin;
  if (next != covered_.end() && next->first == end) {
    end = next->second;
    covered_.erase(next);
  }
  if (before != covered_.end() && before->second == begin) {
    before->second = end;
  } else {
    covered_.emplace(begin, end);
  }
  return absl::OkStatus();
}

}  // namespace ithaca
