#ifndef ITHACA_WORKER_GRPC_SLICE_CURSOR_H_
#define ITHACA_WORKER_GRPC_SLICE_CURSOR_H_

#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// Protocol buffers on gRPC's slices, read and written by hand where a message
// carries tensor bytes: those stay in the slices they came in, and go out in
// the memory they lie in.

namespace ithaca {

// Reads on from slice to slice. The slices outlive it.
class SliceCursor {
 public:
  explicit SliceCursor(const std::vector<grpc::Slice>& slices);

  uint64_t remaining() const { return remaining_; }
  bool AtEnd() const { return remaining_ == 0; }

  // Each false at the end, or on what is no protocol buffer: the cursor is
  // then of no use any more.
  bool ReadVarint(uint64_t* value);
  bool ReadTag(uint32_t* tag);
  // The next `size` bytes, in the pieces that they lie in. Null: skips them.
  bool Read(uint64_t size, std::vector<std::string_view>* pieces);
  // A length and as many bytes, appended to `joined`.
  bool ReadMessage(std::string* joined);
  // The value of a field that nobody knows.
  bool SkipField(uint32_t tag);

 private:
  // Up to `size` bytes, at least one. REQUIRES: size >= 1 and not AtEnd.
  std::string_view Piece(uint64_t size);

  const std::vector<grpc::Slice>& slices_;
  size_t index_ = 0;
  size_t offset_ = 0;
  uint64_t remaining_ = 0;
};

void AppendVarint(uint64_t value, std::string* out);

}  // namespace ithaca

#endif  // ITHACA_WORKER_GRPC_SLICE_CURSOR_H_
