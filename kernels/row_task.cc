#include "kernels/row_task.h"

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "core/data_type.h"
#include "kernels/fast_divider.h"
#include "kernels/layout.h"
#include "kernels/task_list.h"

namespace ithaca::kernels {

namespace {

// The tensor side and the 8-bit side of a job of either kind.
struct Sides {
  char* elements;
  int64_t token_stride;  // in elements
  int64_t batch_stride;
  uint8_t* codes;
  float* scales;
};

bool IsWide(const RowTask& task, int64_t row_bytes, int64_t element_size) {
  constexpr uint64_t kVectorBytes = 16;
  const auto codes_per_vector =
      kVectorBytes / static_cast<uint64_t>(element_size);
  const uint64_t elements = reinterpret_cast<uint64_t>(task.elements) |
                            static_cast<uint64_t>(task.token_stride) |
                            static_cast<uint64_t>(task.batch_stride) |
                            static_cast<uint64_t>(row_bytes);
  return elements % kVectorBytes == 0 &&
         reinterpret_cast<uint64_t>(task.codes) % codes_per_vector == 0;
}

template <typename Job>
void ForEachRowTask(const LayoutParams& params, const Job& job,
                    const Sides& sides,
                    absl::FunctionRef<void(const RowTask&)> visit) {
  const int64_t size = ByteSize(params.dtype);
  ForEachPart(job.batch, job.tokens, job.heads, params.head_dim,
              [&](int64_t b, int64_t t, int64_t h, int64_t batch,
                  int64_t tokens, int64_t heads) {
                // Parts are whole in all dimensions but the one they are cut
                // in, so that their rows follow each other on the 8-bit side.
                const int64_t row = (b * job.tokens + t) * job.heads + h;
                RowTask task;
                task.elements = sides.elements +
                                (b * sides.batch_stride +
                                 t * sides.token_stride + h * params.head_dim) *
                                    size;
                task.codes = sides.codes + row * params.head_dim;
                task.scales = sides.scales + row;
                task.token_stride = tokens > 1 ? sides.token_stride * size : 0;
                task.batch_stride = batch > 1 ? sides.batch_stride * size : 0;
                task.heads = FastDivider(heads);
                task.tokens = FastDivider(tokens);
                task.num_rows = static_cast<uint32_t>(batch * tokens * heads);
                task.rows_apart =
                    tokens > 1 && sides.token_stride != heads * params.head_dim;
                task.wide = IsWide(task, params.head_dim * size, size);
                visit(task);
              });
}

}  // namespace

void ForEachTask(const LayoutParams& params, const QuantizeJob& job,
                 absl::FunctionRef<void(const RowTask&)> visit) {
  // One task type for both directions; see RowTask for who writes what.
  void* elements = const_cast<void*>(job.src.base);
  ForEachRowTask(params, job,
                 {static_cast<char*>(elements), job.src.token_stride,
                  job.src.batch_stride, job.payload, job.scales},
                 visit);
}

void ForEachTask(const LayoutParams& params, const DequantizeJob& job,
                 absl::FunctionRef<void(const RowTask&)> visit) {
  ForEachRowTask(params, job,
                 {static_cast<char*>(job.dst.base), job.dst.token_stride,
                  job.dst.batch_stride, const_cast<uint8_t*>(job.payload),
                  const_cast<float*>(job.scales)},
                 visit);
}

}  // namespace ithaca::kernels
