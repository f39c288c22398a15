#include "worker/scatter_heads.h"

#include <array>
#include <cstdint>
#include <vector>

#include "core/sequence_parallel_plan.h"
#include "kernels/layout.h"
#include "worker/ulysses_call.h"
#include "worker/ulysses_layout.h"

namespace ithaca {
namespace {

// One of query, key and value on its way in.
struct InputTensor {
  const void* image = nullptr;  // [B, S_r, num_heads, D]
  const void* text = nullptr;   // [B, T, num_heads, D], or none
  int64_t num_heads = 0;        // of all ranks
  Range Lane::*heads = nullptr;
  // [B, gathered_tokens, own heads, D]; the image's memory with inputs in
  // place, where nothing writes to it.
  char* gathered = nullptr;
  int64_t gathered_tokens = 0;  // a batch element
};

std::array<InputTensor, 3> InputTensors(const UlyssesCall& call, int lane) {
  const AttentionShape& shape = call.shape();
  const LaneLayout& layout = call.layout.lanes[lane];
  const int64_t query_tokens = shape.image_tokens + MaxValidTextQueries(shape);
  const int64_t key_tokens = shape.image_tokens + MaxValidText(shape);
  const auto gathered = [&call](const void* image, int64_t place) {
    return call.layout.inputs_in_place
               ? static_cast<char*>(const_cast<void*>(image))
               : call.At(place);
  };
  const RankInputs& inputs = call.inputs;
  return {InputTensor{inputs.image_query,
                      shape.image_queries_only ? nullptr : inputs.text_query,
                      shape.num_heads, &Lane::query_heads,
                      gathered(inputs.image_query, layout.query), query_tokens},
          InputTensor{inputs.image_key, inputs.text_key, shape.num_kv_heads,
                      &Lane::new_kv_heads,
                      gathered(inputs.image_key, layout.key), key_tokens},
          InputTensor{inputs.image_value, inputs.text_value, shape.num_kv_heads,
                      &Lane::new_kv_heads,
                      gathered(inputs.image_value, layout.value), key_tokens}};
}

// Heads `heads` of a dense [B, tokens, num_heads, D].
kernels::HeadBlock<const void> HeadsOf(const UlyssesCall& call,
                                       const void* tensor, int64_t tokens,
                                       int64_t num_heads, Range heads) {
  const int64_t token_stride = num_heads * call.shape().head_dim;
  return {static_cast<const char*>(tensor) + call.TokenBytes(heads.begin),
          token_stride, tokens * token_stride};
}

// Image rows of rank `of` in a gathered tensor.
kernels::HeadBlock<void> GatheredRows(const UlyssesCall& call, int of,
                                      const InputTensor& tensor,
                                      int64_t heads) {
  const int64_t token_stride = heads * call.shape().head_dim;
  return {tensor.gathered +
              call.share(of).image_tokens.begin * call.TokenBytes(heads),
          token_stride, tensor.gathered_tokens * token_stride};
}

void AddTextJobs(const UlyssesCall& call, const InputTensor& tensor,
                 Range heads, std::vector<kernels::CopyJob>& jobs) {
  const AttentionShape& shape = call.shape();
  if (tensor.text == nullptr || heads.size == 0) return;
  const int64_t token_bytes = call.TokenBytes(heads.size);
  for (int64_t b = 0; b < shape.batch; ++b) {
    const int64_t valid = shape.valid_text_tokens[b];
    if (valid == 0) continue;
    kernels::CopyJob job;
    job.src =
        HeadsOf(call, tensor.text, shape.text_tokens, tensor.num_heads, heads);
    job.src.base = static_cast<const char*>(job.src.base) +
                   b * shape.text_tokens * call.TokenBytes(tensor.num_heads);
    job.dst.base =
        tensor.gathered +
        (b * tensor.gathered_tokens + shape.image_tokens) * token_bytes;
    job.dst.token_stride = heads.size * shape.head_dim;
    job.tokens = valid;
    job.heads = heads.size;
    jobs.push_back(job);
  }
}

}  // namespace

bool InputsLieJoined(const SequenceParallelPlan& plan,
                     const RankInputs& inputs) {
  const AttentionShape& shape = plan.shape;
  if (plan.world_size != 1 || plan.num_lanes != 1 || shape.image_tokens == 0 ||
      plan.options.precision != CommunicationPrecision::kNative) {
    return false;
  }
  const bool with_text = TotalValidText(shape) > 0;
  if (with_text && shape.batch > 1) return false;
  constexpr uintptr_t kRowAlignment = 16;
  const auto joined = [&](const void* image, const void* text,
                          int64_t num_heads, bool text_follows) {
    const int64_t token_bytes =
        num_heads * shape.head_dim * ByteSize(shape.dtype);
    return reinterpret_cast<uintptr_t>(image) % kRowAlignment == 0 &&
           (!text_follows || text == static_cast<const char*>(image) +
                                         shape.image_tokens * token_bytes);
  };
  return joined(inputs.image_query, inputs.text_query, shape.num_heads,
                with_text && !shape.image_queries_only) &&
         joined(inputs.image_key, inputs.text_key, shape.num_kv_heads,
                with_text) &&
         joined(inputs.image_value, inputs.text_value, shape.num_kv_heads,
                with_text);
}

std::vector<kernels::CopyJob> PackCopyJobs(const UlyssesCall& call, int lane) {
  const AttentionShape& shape = call.shape();
  const int64_t own_tokens = call.share().image_tokens.size;
  const std::array<InputTensor, 3> tensors = InputTensors(call, lane);
  std::vector<kernels::CopyJob> jobs;
  if (call.layout.inputs_in_place) return jobs;
  for (int d = 0; !call.quantized() && d < call.plan.world_size; ++d) {
    char* packed = call.At(call.layout.lanes[lane].send[d]);
    for (const InputTensor& tensor : tensors) {
      const Range heads = call.share(d).lanes[lane].*tensor.heads;
      if (own_tokens == 0 || heads.size == 0) continue;
      kernels::CopyJob job;
      job.src =
          HeadsOf(call, tensor.image, own_tokens, tensor.num_heads, heads);
      job.batch = shape.batch;
      job.tokens = own_tokens;
      job.heads = heads.size;
      if (d == call.rank) {
        job.dst = GatheredRows(call, d, tensor, heads.size);
      } else {
        const int64_t token_stride = heads.size * shape.head_dim;
        job.dst = {packed, token_stride, own_tokens * token_stride};
        packed += shape.batch * own_tokens * call.TokenBytes(heads.size);
      }
      jobs.push_back(job);
    }
  }
  for (const InputTensor& tensor : tensors) {
    AddTextJobs(call, tensor, call.share().lanes[lane].*tensor.heads, jobs);
  }
  return jobs;
}

std::vector<kernels::QuantizeJob> PackQuantizeJobs(const UlyssesCall& call,
                                                   int lane) {
  std::vector<kernels::QuantizeJob> jobs;
  if (!call.quantized()) return jobs;
  const int64_t own_tokens = call.share().image_tokens.size;
  const std::array<InputTensor, 3> tensors = InputTensors(call, lane);
  for (int d = 0; d < call.plan.world_size; ++d) {
    char* block = call.At(call.layout.lanes[lane].send[d]);
    if (block == nullptr) continue;
    const QuantizedBlock parts = QuantizedInputs(call.plan, lane, call.rank, d);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const InputTensor& tensor = tensors[i];
      const Range heads = call.share(d).lanes[lane].*tensor.heads;
      if (heads.size == 0) continue;
      kernels::QuantizeJob job;
      job.src =
          HeadsOf(call, tensor.image, own_tokens, tensor.num_heads, heads);
      job.payload = reinterpret_cast<uint8_t*>(block + parts.parts[i].payload);
      job.scales = reinterpret_cast<float*>(block + parts.parts[i].scales);
      job.batch = call.shape().batch;
      job.tokens = own_tokens;
      job.heads = heads.size;
      jobs.push_back(job);
    }
  }
  return jobs;
}

ExchangeSegments InputSegments(const UlyssesCall& call, int lane) {
  const AttentionShape& shape = call.shape();
  const LaneLayout& layout = call.layout.lanes[lane];
  ExchangeSegments segments;
  for (int peer = 0; peer < call.plan.world_size; ++peer) {
    if (peer == call.rank) continue;
    const char* packed = call.At(layout.send[peer]);
    if (call.quantized()) {
      segments.sends.push_back(
          {peer, packed,
           QuantizedInputs(call.plan, lane, call.rank, peer).bytes});
      segments.recvs.push_back(
          {peer, call.At(layout.receive[peer]),
           QuantizedInputs(call.plan, lane, peer, call.rank).bytes});
      continue;
    }
    // One segment for each tensor and batch element, in the order in which
    // they are packed: where they arrive, they lie apart.
    for (const InputTensor& tensor : InputTensors(call, lane)) {
      const int64_t sent = (call.share(peer).lanes[lane].*tensor.heads).size;
      const int64_t received = (call.share().lanes[lane].*tensor.heads).size;
      const int64_t sent_bytes =
          call.share().image_tokens.size * call.TokenBytes(sent);
      const int64_t token_bytes = call.TokenBytes(received);
      const int64_t received_bytes =
          call.share(peer).image_tokens.size * token_bytes;
      char* rows = received_bytes == 0
                       ? nullptr
                       : tensor.gathered +
                             call.share(peer).image_tokens.begin * token_bytes;
      for (int64_t b = 0; b < shape.batch; ++b) {
        if (sent_bytes > 0) {
          segments.sends.push_back({peer, packed, sent_bytes});
          packed += sent_bytes;
        }
        if (received_bytes > 0) {
          segments.recvs.push_back(
              {peer, rows + b * tensor.gathered_tokens * token_bytes,
               received_bytes});
        }
      }
    }
  }
  return segments;
}

std::vector<kernels::DequantizeJob> UnpackJobs(const UlyssesCall& call,
                                               int lane) {
  std::vector<kernels::DequantizeJob> jobs;
  if (!call.quantized()) return jobs;
  const LaneLayout& layout = call.layout.lanes[lane];
  const std::array<InputTensor, 3> tensors = InputTensors(call, lane);
  for (int s = 0; s < call.plan.world_size; ++s) {
    const char* block =
        call.At(s == call.rank ? layout.send[s] : layout.receive[s]);
    if (block == nullptr) continue;
    const QuantizedBlock parts = QuantizedInputs(call.plan, lane, s, call.rank);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const int64_t heads = (call.share().lanes[lane].*tensors[i].heads).size;
      if (heads == 0) continue;
      kernels::DequantizeJob job;
      job.payload =
          reinterpret_cast<const uint8_t*>(block + parts.parts[i].payload);
      job.scales =
          reinterpret_cast<const float*>(block + parts.parts[i].scales);
      job.dst = GatheredRows(call, s, tensors[i], heads);
      job.batch = call.shape().batch;
      job.tokens = call.share(s).image_tokens.size;
      job.heads = heads;
      jobs.push_back(job);
    }
  }
  return jobs;
}

AttentionArguments MakeAttentionArguments(const UlyssesCall& call, int lane,
                                          const AttentionPiece& piece,
                                          int64_t b,
                                          AttentionKernelKind kernel) {
  const AttentionShape& shape = call.shape();
  const int64_t valid = shape.valid_text_tokens[b];
  const int64_t keys = shape.image_tokens + valid;
  const int64_t queries = shape.image_queries_only ? shape.image_tokens : keys;
  auto rows = [&](const InputTensor& tensor, Range held, Range wanted,
                  int64_t tokens) {
    TokenRows view;
    view.data = tensor.gathered +
                b * tensor.gathered_tokens * call.TokenBytes(held.size) +
                call.TokenBytes(wanted.begin - held.begin);
    view.tokens = tokens;
    view.heads = wanted.size;
    view.token_stride = held.size * shape.head_dim;
    view.head_stride = shape.head_dim;
    return view;
  };
  AttentionArguments arguments;
  arguments.dtype = shape.dtype;
  arguments.head_dim = shape.head_dim;
  arguments.softmax_scale = call.plan.options.softmax_scale;
  arguments.kernel = kernel;
  if (queries == 0) return arguments;
  const Range kv_held = call.share().lanes[piece.kv_lane].new_kv_heads;
  const std::array<InputTensor, 3> own = InputTensors(call, lane);
  const std::array<InputTensor, 3> kv = InputTensors(call, piece.kv_lane);
  arguments.query = rows(own[0], call.share().lanes[lane].query_heads,
                         piece.query_heads, queries);
  arguments.key = rows(kv[1], kv_held, piece.kv_heads, keys);
  arguments.value = rows(kv[2], kv_held, piece.kv_heads, keys);
  return arguments;
}

}  // namespace ithaca
