#include "worker/torch_attention_kernels.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/softmax.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "worker/value_range.h"

namespace ithaca {
namespace {

// Logits of one block of queries in MATH.
constexpr int64_t kMaxBlockLogits = int64_t{16} << 20;

at::ScalarType ScalarType(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
      return at::kFloat;
    case DataType::kFloat16:
      return at::kHalf;
    case DataType::kBFloat16:
      return at::kBFloat16;
  }
  return at::kFloat;
}

// [groups, repeats, tokens, D]: head h of the rows is (h / repeats,
// h % repeats). No copy.
at::Tensor View(const AttentionArguments& arguments, const TokenRows& rows,
                int64_t repeats) {
  return at::from_blob(
      const_cast<void*>(rows.data),
      {rows.heads / repeats, repeats, rows.tokens, arguments.head_dim},
      {rows.head_stride * repeats, rows.head_stride, rows.token_stride, 1},
      at::TensorOptions().dtype(ScalarType(arguments.dtype)));
}

// [groups, repeats * tokens, D] in float32.
at::Tensor InFloat32(const at::Tensor& view) {
  return view.to(at::kFloat)
      .reshape({view.size(0), view.size(1) * view.size(2), view.size(3)});
}

// [tokens, groups, repeats, D], dense.
at::Tensor MathAttention(const AttentionArguments& arguments) {
  const int64_t groups = arguments.key.heads;
  const int64_t repeats = arguments.query.heads / groups;
  const int64_t tokens = arguments.query.tokens;
  const int64_t head_dim = arguments.head_dim;
  const at::Tensor query = View(arguments, arguments.query, repeats);
  const at::Tensor key = InFloat32(View(arguments, arguments.key, 1));
  const at::Tensor value = InFloat32(View(arguments, arguments.value, 1));
  at::Tensor out =
      at::empty({tokens, groups, repeats, head_dim}, query.options());
  const int64_t block = std::max<int64_t>(
      1, kMaxBlockLogits / (arguments.query.heads * arguments.key.tokens));
  for (int64_t begin = 0; begin < tokens; begin += block) {
    const int64_t size = std::min(block, tokens - begin);
    const at::Tensor rows = InFloat32(query.narrow(2, begin, size));
    const at::Tensor logits =
        at::bmm(rows, key.transpose(1, 2)).mul_(arguments.softmax_scale);
    const at::Tensor weights = at::softmax(logits, -1);
    const at::Tensor block_out =
        at::bmm(weights, value).view({groups, repeats, size, head_dim});
    out.narrow(0, begin, size).copy_(block_out.permute({2, 0, 1, 3}));
  }
  return out;
}

// [tokens, groups, repeats, D], dense.
at::Tensor FlashAttention(const AttentionArguments& arguments) {
  // The kernel wants as many key heads as query heads. Each group is a batch
  // element of its own to it, whose one key head is seen as `repeats`.
  const int64_t groups = arguments.key.heads;
  const int64_t repeats = arguments.query.heads / groups;
  at::Tensor query = View(arguments, arguments.query, repeats);
  at::Tensor key = View(arguments, arguments.key, 1);
  at::Tensor value = View(arguments, arguments.value, 1);
  if (repeats == 1) {
    // One batch element: its output then already is [tokens, heads, D].
    query = query.transpose(0, 1);
    key = key.transpose(0, 1);
    value = value.transpose(0, 1);
  } else {
    key = key.expand({groups, repeats, -1, -1});
    value = value.expand({groups, repeats, -1, -1});
  }
  const at::Tensor out =
      std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
          query, key, value, /*dropout_p=*/0.0, /*is_causal=*/false,
          /*attn_mask=*/std::nullopt, arguments.softmax_scale));
  return repeats == 1 ? out.permute({2, 1, 0, 3}).contiguous()
                      : out.permute({2, 0, 1, 3}).contiguous();
}

TokenRows OneHead(const AttentionArguments& arguments, const TokenRows& rows,
                  int64_t head) {
  TokenRows one = rows;
  one.heads = 1;
  one.data = static_cast<const char*>(rows.data) +
             head * rows.head_stride * ByteSize(arguments.dtype);
  return one;
}

// FLASH loses infinities and NaNs; MATH propagates them. Each head is judged by
// itself then: what it gives must not hang on which heads a rank or a lane has
// beside it.
at::Tensor FlashWhereFinite(const AttentionArguments& arguments) {
  if (AttentionStaysFinite(arguments)) return FlashAttention(arguments);
  const int64_t heads = arguments.query.heads;
  const int64_t repeats = heads / arguments.key.heads;
  at::Tensor out =
      at::empty({arguments.query.tokens, heads, 1, arguments.head_dim},
                at::TensorOptions().dtype(ScalarType(arguments.dtype)));
  for (int64_t head = 0; head < heads; ++head) {
    AttentionArguments one = arguments;
    one.query = OneHead(arguments, arguments.query, head);
    one.key = OneHead(arguments, arguments.key, head / repeats);
    one.value = OneHead(arguments, arguments.value, head / repeats);
    out.narrow(1, head, 1)
        .copy_(AttentionStaysFinite(one) ? FlashAttention(one)
                                         : MathAttention(one));
  }
  return out;
}

class TorchAttentionKernels : public AttentionKernels {
 public:
  explicit TorchAttentionKernels(const TorchAttentionOptions& options)
      : num_threads_(options.num_threads) {}

  absl::StatusOr<AttentionKernelKind> Choose(
      AttentionKernelKind wanted, const AttentionShape& shape) const override {
    const bool fits =
        shape.head_dim >= 1 && shape.head_dim <= AttentionShape::kMaxHeadDim;
    if (fits && wanted == AttentionKernelKind::kAuto) {
      return AttentionKernelKind::kFlash;
    }
    if (fits && (wanted == AttentionKernelKind::kMath ||
                 wanted == AttentionKernelKind::kFlash)) {
      return wanted;
    }
    const std::string_view name = Name(wanted);
    return absl::UnimplementedError(
        absl::StrCat("kernel ", absl::string_view(name.data(), name.size()),
                     " does not run on device cpu with head_dim ",
                     shape.head_dim, "; math and flash do, with head_dim 1 to ",
                     AttentionShape::kMaxHeadDim));
  }

  std::vector<AttentionKernelKind> Available() const override {
    return {AttentionKernelKind::kMath, AttentionKernelKind::kFlash};
  }

  absl::StatusOr<AttentionResult> Attend(
      const AttentionArguments& arguments) override {
    try {
      // LibTorch keeps the number of threads for each calling thread.
      if (num_threads_ > 0 && at::get_num_threads() != num_threads_) {
        at::set_num_threads(num_threads_);
      }
      const c10::InferenceMode inference;
      auto out = std::make_shared<at::Tensor>(
          arguments.kernel == AttentionKernelKind::kFlash
              ? FlashWhereFinite(arguments)
              : MathAttention(arguments));
      AttentionResult result;
      result.out.data = out->const_data_ptr();
      result.out.tokens = arguments.query.tokens;
      result.out.heads = arguments.query.heads;
      result.out.token_stride = arguments.query.heads * arguments.head_dim;
      result.out.head_stride = arguments.head_dim;
      result.owner = std::move(out);
      return result;
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError("out of host memory in attention");
    } catch (const c10::Error& error) {
      // LibTorch's host allocator has no type of error of its own.
      const absl::string_view said = error.what_without_backtrace();
      return absl::StrContains(said, "DefaultCPUAllocator")
                 ? absl::ResourceExhaustedError(said)
                 : absl::InternalError(said);
    } catch (const std::exception& error) {
      return absl::InternalError(error.what());
    }
  }

 private:
  const int num_threads_;
};

}  // namespace

std::unique_ptr<AttentionKernels> MakeTorchAttentionKernels(
    const TorchAttentionOptions& options) {
  return std::make_unique<TorchAttentionKernels>(options);
}

}  // namespace ithaca
