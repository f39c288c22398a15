#include "worker/torch_cuda_attention_kernels.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/softmax.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "worker/attention_pieces.h"
#include "worker/cuda_kernel_choice.h"

namespace ithaca {

namespace {

// What the fused kernels load at once, in elements.
constexpr int64_t kHeadDimMultiple = 8;
// Float32 logits that MATH holds at once.
constexpr int64_t kMathLogits = int64_t{1} << 26;
// What a kernel may take beside its tensors: partial results of split keys,
// plans' workspaces, cuBLAS.
constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;
// Shapes whose cuDNN plans are kept for good, and as many that come and go.
constexpr size_t kKeptPlans = 256;

at::ScalarType TorchType(DataType dtype) {
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

int64_t PaddedHeadDim(int64_t head_dim) {
  return (head_dim + kHeadDimMultiple - 1) / kHeadDimMultiple *
         kHeadDimMultiple;
}

// Calls `body`, which may throw LibTorch's exceptions, and returns what they
// said.
template <typename Body>
absl::Status CatchTorch(const char* what, const Body& body) {
  try {
    body();
    return absl::OkStatus();
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": ", error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    return absl::InternalError(
        absl::StrCat(what, ": ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(what, ": ", error.what()));
  }
}

// [1, heads, tokens, D] over the rows' own memory.
at::Tensor View(const TokenRows& rows, const AttentionArguments& arguments,
                int ordinal) {
  return at::from_blob(
      const_cast<void*>(rows.data),
      {1, rows.heads, rows.tokens, arguments.head_dim},
      {rows.tokens * rows.token_stride, rows.head_stride, rows.token_stride, 1},
      at::TensorOptions()
          .dtype(TorchType(arguments.dtype))
          .device(at::kCUDA, static_cast<c10::DeviceIndex>(ordinal)));
}

// Zeros up to a multiple of 8 add nothing to a logit, and the columns of the
// output that come of them are dropped.
at::Tensor PadHeadDim(const at::Tensor& tensor) {
  const int64_t head_dim = tensor.size(3);
  const int64_t padded = PaddedHeadDim(head_dim);
  if (padded == head_dim) return tensor;
  return at::constant_pad_nd(tensor, {0, padded - head_dim});
}

at::Tensor RunCudnn(const at::Tensor& query, const at::Tensor& key,
                    const at::Tensor& value, double scale) {
  return std::get<0>(at::_ops::_scaled_dot_product_cudnn_attention::call(
      query, key, value, /*attn_bias=*/std::nullopt,
      /*compute_log_sumexp=*/false, /*dropout_p=*/0.0, /*is_causal=*/false,
      /*return_debug_mask=*/false, scale));
}

at::Tensor RunFlash(const at::Tensor& query, const at::Tensor& key,
                    const at::Tensor& value, double scale) {
  // A lone query row of grouped heads takes a shortcut in LibTorch that reads
  // with wrong strides (pytorch issue 186434); two rows do not.
  const bool lone_row = query.size(2) == 1 && query.size(1) != key.size(1);
  const at::Tensor rows =
      lone_row ? query.expand({-1, -1, 2, -1}).contiguous() : query;
  const at::Tensor out = std::get<0>(at::_ops::_flash_attention_forward::call(
      rows.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
      /*cum_seq_q=*/std::nullopt, /*cum_seq_k=*/std::nullopt, rows.size(2),
      key.size(2), /*dropout_p=*/0.0, /*is_causal=*/false,
      /*return_debug_mask=*/false, scale, /*window_size_left=*/std::nullopt,
      /*window_size_right=*/std::nullopt, /*seqused_k=*/std::nullopt,
      /*alibi_slopes=*/std::nullopt));
  const at::Tensor by_head = out.transpose(1, 2);
  return lone_row ? by_head.narrow(2, 0, 1) : by_head;
}

// The definition. Query heads that share a key/value head are rows of one
// product; heads and rows are taken in pieces, so that the logits in memory
// are bounded.
at::Tensor RunMath(const at::Tensor& query, const at::Tensor& key,
                   const at::Tensor& value, double scale) {
  const int64_t kv_heads = key.size(1);
  const int64_t group = query.size(1) / kv_heads;
  const int64_t queries = query.size(2);
  const int64_t keys = key.size(2);
  const int64_t head_dim = query.size(3);
  const int64_t rows = group * queries;
  const int64_t rows_at_once = std::clamp<int64_t>(kMathLogits / keys, 1, rows);
  const int64_t heads_at_once =
      std::clamp<int64_t>(kMathLogits / keys / rows, 1, kv_heads);

  at::Tensor out =
      at::empty({queries, query.size(1), head_dim}, query.options());
  for (int64_t head = 0; head < kv_heads; head += heads_at_once) {
    const int64_t heads = std::min(heads_at_once, kv_heads - head);
    const at::Tensor q = query[0]
                             .narrow(0, head * group, heads * group)
                             .to(at::kFloat)
                             .reshape({heads, rows, head_dim});
    const at::Tensor k = key[0].narrow(0, head, heads).to(at::kFloat);
    const at::Tensor v = value[0].narrow(0, head, heads).to(at::kFloat);
    at::Tensor result = at::empty({heads, rows, head_dim}, q.options());
    for (int64_t row = 0; row < rows; row += rows_at_once) {
      const int64_t count = std::min(rows_at_once, rows - row);
      at::Tensor logits =
          at::bmm(q.narrow(1, row, count), k.transpose(1, 2)).mul_(scale);
      result.narrow(1, row, count)
          .copy_(at::bmm(at::softmax(logits, /*dim=*/-1), v));
    }
    out.narrow(1, head * group, heads * group)
        .copy_(result.view({heads * group, queries, head_dim}).transpose(0, 1));
  }
  return out.transpose(0, 1).unsqueeze(0);
}

// The memory of `out`, [1, heads, tokens, padded D], as [tokens, heads, D]
// dense. It lies like that already unless D was padded; LibTorch's views would
// cost the host microseconds to find that out.
at::Tensor TokenMajor(const at::Tensor& out, int64_t head_dim) {
  const int64_t heads = out.size(1);
  const bool as_wanted =
      out.size(3) == head_dim && out.stride(3) == 1 &&
      (heads == 1 || out.stride(1) == head_dim) &&
      (out.size(2) == 1 || out.stride(2) == heads * head_dim);
  if (as_wanted) return out;
  return out[0].narrow(2, 0, head_dim).transpose(0, 1).contiguous();
}

at::Tensor RunKernel(const AttentionArguments& arguments, int ordinal) {
  const at::Tensor query = View(arguments.query, arguments, ordinal);
  const at::Tensor key = View(arguments.key, arguments, ordinal);
  const at::Tensor value = View(arguments.value, arguments, ordinal);
  if (arguments.kernel == AttentionKernelKind::kCudnn) {
    return RunCudnn(PadHeadDim(query), PadHeadDim(key), PadHeadDim(value),
                    arguments.softmax_scale);
  }
  if (arguments.kernel == AttentionKernelKind::kFlash) {
    return RunFlash(PadHeadDim(query), PadHeadDim(key), PadHeadDim(value),
                    arguments.softmax_scale);
  }
  return RunMath(query, key, value, arguments.softmax_scale);
}

// Memory that Attend takes for rows of one batch element: the output, which
// lives on, and what is gone when Attend returns.
struct AttendBytes {
  int64_t output = 0;
  int64_t transient = 0;
};

AttendBytes BytesOf(AttentionKernelKind kernel, const AttentionShape& shape,
                    int64_t keys, const AttentionPiece& piece) {
  const int64_t queries = shape.image_queries_only ? shape.image_tokens : keys;
  if (queries == 0) return {};
  const int64_t query_rows = queries * piece.query_heads.size;
  const int64_t key_rows = keys * piece.kv_heads.size;
  AttendBytes bytes;
  bytes.output = query_rows * shape.head_dim * ByteSize(shape.dtype);
  if (kernel == AttentionKernelKind::kMath) {
    // Queries, keys, values and results of all heads, and logits and weights,
    // in float32; a row of logits is the least that is held.
    const int64_t logits =
        std::clamp<int64_t>(kMathLogits / keys, 1, query_rows) * keys;
    bytes.transient =
        4 * ((2 * query_rows + 2 * key_rows) * shape.head_dim + 2 * logits);
  } else {
    // Log-sum-exps, and the copies with padded rows.
    bytes.transient = 4 * query_rows;
    const int64_t padded = PaddedHeadDim(shape.head_dim);
    if (padded != shape.head_dim) {
      bytes.transient +=
          (2 * query_rows + 2 * key_rows) * padded * ByteSize(shape.dtype);
    }
  }
  bytes.transient += kWorkspaceBytes;
  return bytes;
}

}  // namespace

TorchCudaAttentionKernels::TorchCudaAttentionKernels(CudaDevice* device)
    : device_(device), plans_(kKeptPlans) {
  // Float32 means float32, whatever the environment says of TF32.
  at::globalContext().setAllowTF32CuBLAS(false);
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  device_->SetReclaim([] { c10::cuda::CUDACachingAllocator::emptyCache(); });
}

TorchCudaAttentionKernels::~TorchCudaAttentionKernels() {
  device_->SetReclaim(nullptr);
  // LibTorch keeps memory by stream, and nobody will use this one's again.
  static_cast<void>(CatchTorch("giving memory back", [] {
    c10::cuda::CUDACachingAllocator::emptyCache();
  }));
}

absl::StatusOr<AttentionKernelKind> TorchCudaAttentionKernels::Choose(
    AttentionKernelKind wanted, const AttentionShape& shape) const {
  return ChooseCudaKernel(wanted, shape, device_->compute_capability(),
                          device_->name());
}

std::vector<AttentionKernelKind> TorchCudaAttentionKernels::Available() const {
  return CudaKernels(device_->compute_capability());
}

absl::Status TorchCudaAttentionKernels::Reserve(
    const SequenceParallelPlan& plan, int rank, AttentionKernelKind kernel) {
  const AttentionShape& shape = plan.shape;
  // First what is gone when Attend returns, then every output: they live until
  // they are sent.
  std::vector<int64_t> sizes = {0};
  for (int lane = 0; lane < plan.num_lanes; ++lane) {
    for (const AttentionPiece& piece :
         SplitIntoAttentionPieces(plan, rank, lane)) {
      for (const int64_t valid : shape.valid_text_tokens) {
        const AttendBytes bytes =
            BytesOf(kernel, shape, shape.image_tokens + valid, piece);
        sizes.push_back(bytes.output);
        sizes[0] = std::max(sizes[0], bytes.transient);
      }
    }
  }
  return CatchTorch("reserving memory for attention", [&] {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(
        device_->stream(), static_cast<c10::DeviceIndex>(device_->ordinal())));
    // Taken all at once and given back: LibTorch's allocator keeps the blocks,
    // and serves the call's own requests from them.
    std::vector<at::DataPtr> blocks;
    blocks.reserve(sizes.size());
    for (const int64_t size : sizes) {
      blocks.push_back(c10::cuda::CUDACachingAllocator::get()->allocate(
          static_cast<size_t>(size)));
    }
  });
}

absl::StatusOr<AttentionResult> TorchCudaAttentionKernels::Attend(
    const AttentionArguments& arguments) {
  AttentionResult result;
  absl::Status status;
  const auto attend = [&] {
    status = CatchTorch("attention", [&] {
      const c10::InferenceMode inference;
      const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(
          device_->stream(),
          static_cast<c10::DeviceIndex>(device_->ordinal())));
      auto owner = std::make_shared<at::Tensor>(TokenMajor(
          RunKernel(arguments, device_->ordinal()), arguments.head_dim));
      result.out = {owner->const_data_ptr(), arguments.query.tokens,
                    arguments.query.heads,
                    arguments.query.heads * arguments.head_dim,
                    arguments.head_dim};
      result.owner = std::move(owner);
    });
  };
  if (arguments.kernel == AttentionKernelKind::kCudnn) {
    plans_.Run({static_cast<int64_t>(arguments.dtype), arguments.head_dim,
                arguments.query.tokens, arguments.query.heads,
                arguments.query.token_stride, arguments.key.tokens,
                arguments.key.heads, arguments.key.token_stride},
               attend);
  } else {
    attend();
  }
  if (!status.ok()) return status;
  return result;
}

}  // namespace ithaca
