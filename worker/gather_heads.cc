#include "worker/gather_heads.h"

#include <cstdint>
#include <vector>

#include "core/sequence_parallel_plan.h"
#include "kernels/layout.h"
#include "worker/ulysses_call.h"
#include "worker/ulysses_layout.h"

namespace ithaca {
namespace {

// Text rows of the output, of batch element b.
char* TextOutput(const UlyssesCall& call, int64_t b) {
  return static_cast<char*>(call.outputs.text) +
         b * call.shape().text_tokens * call.TokenBytes(call.shape().num_heads);
}

// The lane's output of batch element b as dense rows of all its heads; nullptr
// if there are none.
const char* OutputRows(const UlyssesCall& call, int lane,
                       const LaneOutput& output, int64_t b) {
  const int64_t heads = call.share().lanes[lane].query_heads.size;
  const char* joined = call.At(call.layout.lanes[lane].output);
  if (joined != nullptr) {
    const int64_t tokens =
        call.shape().image_tokens + MaxValidTextQueries(call.shape());
    return joined + b * tokens * call.TokenBytes(heads);
  }
  if (output.pieces.empty()) return nullptr;
  return static_cast<const char*>(output.results[b].out.data);
}

// Its valid text rows, which follow the image's.
const char* TextRows(const UlyssesCall& call, int lane,
                     const LaneOutput& output, int64_t b) {
  const char* rows = OutputRows(call, lane, output, b);
  if (rows == nullptr) return nullptr;
  const int64_t heads = call.share().lanes[lane].query_heads.size;
  return rows + call.shape().image_tokens * call.TokenBytes(heads);
}

// Calls visit(lane, b, valid tokens of b) in the order in which a rank's text
// is sent: by lane, then by batch element; those without valid text left out.
template <typename Visit>
void ForEachTextBlock(const UlyssesCall& call, const Visit& visit) {
  for (int lane = 0; lane < call.plan.num_lanes; ++lane) {
    for (int64_t b = 0; b < call.shape().batch; ++b) {
      const int64_t valid = call.shape().valid_text_tokens[b];
      if (valid > 0) visit(lane, b, valid);
    }
  }
}

// Copies `tokens` rows of one piece, from row `begin`, to head `head` of dense
// rows of `num_heads` heads.
kernels::CopyJob CopyRows(const UlyssesCall& call, const TokenRows& rows,
                          int64_t begin, int64_t tokens, char* to,
                          int64_t num_heads, int64_t head) {
  kernels::CopyJob job;
  job.src.base =
      static_cast<const char*>(rows.data) + begin * call.TokenBytes(rows.heads);
  job.src.token_stride = rows.token_stride;
  job.dst.base = to + call.TokenBytes(head);
  job.dst.token_stride = num_heads * call.shape().head_dim;
  job.tokens = tokens;
  job.heads = rows.heads;
  return job;
}

// Heads that arrived from rank s go to their place in the image output.
kernels::HeadBlock<void> ImageOutputHeads(const UlyssesCall& call,
                                          Range heads) {
  const int64_t token_stride = call.shape().num_heads * call.shape().head_dim;
  return {static_cast<char*>(call.outputs.image) + call.TokenBytes(heads.begin),
          token_stride, call.share().image_tokens.size * token_stride};
}

}  // namespace

std::vector<kernels::CopyJob> OutputPackCopyJobs(const UlyssesCall& call,
                                                 int lane,
                                                 const LaneOutput& output) {
  std::vector<kernels::CopyJob> jobs;
  const int64_t place = call.layout.lanes[lane].output;
  if (place == LaneLayout::kNone) return jobs;
  const int64_t batch = call.shape().batch;
  const int64_t tokens =
      call.shape().image_tokens + MaxValidTextQueries(call.shape());
  const Range held = call.share().lanes[lane].query_heads;
  for (size_t i = 0; i < output.results.size(); ++i) {
    const TokenRows& rows = output.results[i].out;
    if (rows.tokens == 0) continue;
    const AttentionPiece& piece = output.pieces[i / static_cast<size_t>(batch)];
    const int64_t b = static_cast<int64_t>(i) % batch;
    char* joined = call.At(place) + b * tokens * call.TokenBytes(held.size);
    jobs.push_back(CopyRows(call, rows, 0, rows.tokens, joined, held.size,
                            piece.query_heads.begin - held.begin));
  }
  return jobs;
}

std::vector<kernels::QuantizeJob> OutputPackQuantizeJobs(
    const UlyssesCall& call, int lane, const LaneOutput& output) {
  std::vector<kernels::QuantizeJob> jobs;
  if (!call.quantized()) return jobs;
  const AttentionShape& shape = call.shape();
  const int64_t heads = call.share().lanes[lane].query_heads.size;
  for (int d = 0; d < call.plan.world_size; ++d) {
    char* block = call.At(call.layout.lanes[lane].output_send[d]);
    if (block == nullptr) continue;
    const QuantizedBlock::Part part =
        QuantizedOutputs(call.plan, lane, call.rank, d).parts[0];
    const Range tokens = call.share(d).image_tokens;
    for (int64_t b = 0; b < shape.batch; ++b) {
      kernels::QuantizeJob job;
      job.src.base = OutputRows(call, lane, output, b) +
                     tokens.begin * call.TokenBytes(heads);
      job.src.token_stride = heads * shape.head_dim;
      const int64_t rows = b * tokens.size * heads;
      job.payload = reinterpret_cast<uint8_t*>(block + part.payload) +
                    rows * shape.head_dim;
      job.scales = reinterpret_cast<float*>(block + part.scales) + rows;
      job.tokens = tokens.size;
      job.heads = heads;
      jobs.push_back(job);
    }
  }
  return jobs;
}

ExchangeSegments OutputSegments(const UlyssesCall& call, int lane,
                                const LaneOutput& output) {
  const AttentionShape& shape = call.shape();
  const LaneLayout& layout = call.layout.lanes[lane];
  ExchangeSegments segments;
  for (int peer = 0; peer < call.plan.world_size; ++peer) {
    if (peer == call.rank) continue;
    char* received = call.At(layout.output_receive[peer]);
    if (call.quantized()) {
      segments.sends.push_back(
          {peer, call.At(layout.output_send[peer]),
           QuantizedOutputs(call.plan, lane, call.rank, peer).bytes});
      segments.recvs.push_back(
          {peer, received,
           QuantizedOutputs(call.plan, lane, peer, call.rank).bytes});
      continue;
    }
    const int64_t token_bytes =
        call.TokenBytes(call.share().lanes[lane].query_heads.size);
    const Range tokens = call.share(peer).image_tokens;
    const int64_t received_bytes =
        call.share().image_tokens.size *
        call.TokenBytes(call.share(peer).lanes[lane].query_heads.size);
    for (int64_t b = 0; b < shape.batch; ++b) {
      const int64_t sent_bytes = tokens.size * token_bytes;
      if (sent_bytes > 0) {
        segments.sends.push_back(
            {peer,
             OutputRows(call, lane, output, b) + tokens.begin * token_bytes,
             sent_bytes});
      }
      if (received_bytes > 0) {
        segments.recvs.push_back({peer, received, received_bytes});
        received += received_bytes;
      }
    }
  }
  return segments;
}

std::vector<kernels::CopyJob> OutputUnpackCopyJobs(const UlyssesCall& call,
                                                   int lane,
                                                   const LaneOutput& output) {
  std::vector<kernels::CopyJob> jobs;
  if (call.quantized()) return jobs;
  const int64_t batch = call.shape().batch;
  const Range own_tokens = call.share().image_tokens;
  for (int s = 0; s < call.plan.world_size; ++s) {
    const Range heads = call.share(s).lanes[lane].query_heads;
    if (own_tokens.size == 0 || heads.size == 0) continue;
    const int64_t token_stride = heads.size * call.shape().head_dim;
    kernels::CopyJob job;
    job.dst = ImageOutputHeads(call, heads);
    job.tokens = own_tokens.size;
    job.heads = heads.size;
    if (s != call.rank) {
      job.src = {call.At(call.layout.lanes[lane].output_receive[s]),
                 token_stride, own_tokens.size * token_stride};
      job.batch = batch;
      jobs.push_back(job);
      continue;
    }
    for (int64_t b = 0; b < batch; ++b) {
      kernels::CopyJob own = job;
      own.src = {OutputRows(call, lane, output, b) +
                     own_tokens.begin * call.TokenBytes(heads.size),
                 token_stride, 0};
      own.dst.base =
          static_cast<char*>(job.dst.base) +
          b * own_tokens.size * call.TokenBytes(call.shape().num_heads);
      jobs.push_back(own);
    }
  }
  return jobs;
}

std::vector<kernels::DequantizeJob> OutputUnpackDequantizeJobs(
    const UlyssesCall& call, int lane) {
  std::vector<kernels::DequantizeJob> jobs;
  if (!call.quantized()) return jobs;
  const LaneLayout& layout = call.layout.lanes[lane];
  for (int s = 0; s < call.plan.world_size; ++s) {
    const char* block = call.At(s == call.rank ? layout.output_send[s]
                                               : layout.output_receive[s]);
    if (block == nullptr) continue;
    const QuantizedBlock::Part part =
        QuantizedOutputs(call.plan, lane, s, call.rank).parts[0];
    const Range heads = call.share(s).lanes[lane].query_heads;
    kernels::DequantizeJob job;
    job.payload = reinterpret_cast<const uint8_t*>(block + part.payload);
    job.scales = reinterpret_cast<const float*>(block + part.scales);
    job.dst = ImageOutputHeads(call, heads);
    job.batch = call.shape().batch;
    job.tokens = call.share().image_tokens.size;
    job.heads = heads.size;
    jobs.push_back(job);
  }
  return jobs;
}

ExchangeSegments TextSegments(const UlyssesCall& call,
                              const std::vector<LaneOutput>& outputs) {
  ExchangeSegments segments;
  for (int peer = 0; peer < call.plan.world_size; ++peer) {
    if (peer == call.rank) continue;
    char* received = call.At(call.layout.text_receive[peer]);
    ForEachTextBlock(call, [&](int lane, int64_t b, int64_t valid) {
      const int64_t sent_bytes =
          valid * call.TokenBytes(call.share().lanes[lane].query_heads.size);
      if (sent_bytes > 0) {
        segments.sends.push_back(
            {peer, TextRows(call, lane, outputs[lane], b), sent_bytes});
      }
      const int64_t received_bytes =
          valid *
          call.TokenBytes(call.share(peer).lanes[lane].query_heads.size);
      if (received_bytes > 0) {
        segments.recvs.push_back({peer, received, received_bytes});
        received += received_bytes;
      }
    });
  }
  return segments;
}

std::vector<kernels::CopyJob> TextUnpackJobs(
    const UlyssesCall& call, const std::vector<LaneOutput>& outputs) {
  std::vector<kernels::CopyJob> jobs;
  for (int s = 0; s < call.plan.world_size; ++s) {
    const char* received = call.At(call.layout.text_receive[s]);
    ForEachTextBlock(call, [&](int lane, int64_t b, int64_t valid) {
      const Range heads = call.share(s).lanes[lane].query_heads;
      if (heads.size == 0) return;
      const TokenRows rows = {
          s == call.rank ? TextRows(call, lane, outputs[lane], b) : received,
          valid, heads.size, heads.size * call.shape().head_dim,
          call.shape().head_dim};
      jobs.push_back(CopyRows(call, rows, 0, valid, TextOutput(call, b),
                              call.shape().num_heads, heads.begin));
      if (s != call.rank) received += valid * call.TokenBytes(heads.size);
    });
  }
  return jobs;
}

}  // namespace ithaca
