#include "kernels/copy_task.h"

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "core/data_type.h"
#include "kernels/fast_divider.h"
#include "kernels/layout.h"
#include "kernels/task_list.h"

namespace ithaca::kernels {

namespace {

// The widest vector that every row of the task is made of, at both ends.
uint32_t VectorBytes(const CopyTask& task, int64_t row_bytes) {
  const uint64_t together = reinterpret_cast<uint64_t>(task.src) |
                            reinterpret_cast<uint64_t>(task.dst) |
                            static_cast<uint64_t>(task.src_token_stride) |
                            static_cast<uint64_t>(task.src_batch_stride) |
                            static_cast<uint64_t>(task.dst_token_stride) |
                            static_cast<uint64_t>(task.dst_batch_stride) |
                            static_cast<uint64_t>(row_bytes);
  uint32_t bytes = 16;
  while (together % bytes != 0) bytes /= 2;
  return bytes;
}

CopyTask MakeTask(const char* src, char* dst, const CopyJob& job,
                  int64_t element_size, int64_t batch, int64_t tokens,
                  int64_t row_bytes) {
  CopyTask task;
  task.src = src;
  task.dst = dst;
  task.src_token_stride = job.src.token_stride * element_size;
  task.src_batch_stride = job.src.batch_stride * element_size;
  task.dst_token_stride = job.dst.token_stride * element_size;
  task.dst_batch_stride = job.dst.batch_stride * element_size;
  // Tokens that are dense on both sides are one long row. A stride that no row
  // uses must not narrow the vectors.
  if (task.src_token_stride == row_bytes &&
      task.dst_token_stride == row_bytes) {
    row_bytes *= tokens;
    tokens = 1;
  }
  if (tokens == 1) task.src_token_stride = task.dst_token_stride = 0;
  if (batch == 1) task.src_batch_stride = task.dst_batch_stride = 0;
  task.vector_bytes = VectorBytes(task, row_bytes);
  const int64_t vectors = row_bytes / task.vector_bytes;
  task.vectors_per_token = FastDivider(vectors);
  task.tokens = FastDivider(tokens);
  task.num_vectors = static_cast<uint32_t>(batch * tokens * vectors);
  return task;
}

}  // namespace

void ForEachTask(const LayoutParams& params, const CopyJob& job,
                 absl::FunctionRef<void(const CopyTask&)> visit) {
  const int64_t size = ByteSize(params.dtype);
  ForEachPart(
      job.batch, job.tokens, job.heads, params.head_dim,
      [&](int64_t b, int64_t t, int64_t h, int64_t batch, int64_t tokens,
          int64_t heads) {
        const int64_t head = h * params.head_dim;
        const int64_t src =
            b * job.src.batch_stride + t * job.src.token_stride + head;
        const int64_t dst =
            b * job.dst.batch_stride + t * job.dst.token_stride + head;
        visit(MakeTask(static_cast<const char*>(job.src.base) + src * size,
                       static_cast<char*>(job.dst.base) + dst * size, job, size,
                       batch, tokens, heads * params.head_dim * size));
      });
}

}  // namespace ithaca::kernels
