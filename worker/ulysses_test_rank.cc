#include "worker/ulysses_test_rank.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ithaca {
namespace {

// Tokens [begin, begin + size) of every batch element of [B, tokens, row].
std::string CutTokens(const std::string& tensor, int64_t batch, int64_t tokens,
                      Range wanted) {
  std::string cut;
  if (tokens == 0) return cut;
  const int64_t row = static_cast<int64_t>(tensor.size()) / (batch * tokens);
  for (int64_t b = 0; b < batch; ++b) {
    cut += tensor.substr((b * tokens + wanted.begin) * row, wanted.size * row);
  }
  return cut;
}

void PutTokens(const std::string& cut, int64_t batch, int64_t tokens,
               Range place, std::string& tensor) {
  if (place.size == 0) return;
  const int64_t row = static_cast<int64_t>(cut.size()) / (batch * place.size);
  for (int64_t b = 0; b < batch; ++b) {
    tensor.replace((b * tokens + place.begin) * row, place.size * row,
                   cut.substr(b * place.size * row, place.size * row));
  }
}

// Where a range of image tokens, and the text, lie on the caller's token axis.
Range ImagePlace(const AttentionShape& shape, Range image, int64_t text) {
  return {image.begin + (shape.order == TokenOrder::kTextFirst ? text : 0),
          image.size};
}

Range TextPlace(const AttentionShape& shape, int64_t text) {
  return {shape.order == TokenOrder::kTextFirst ? 0 : shape.image_tokens, text};
}

int64_t RoomFor(const std::string& host) {
  return Arena::AlignedSize(static_cast<int64_t>(host.size()));
}

}  // namespace

RankTensors CutRankTensors(const SequenceParallelPlan& plan, int rank,
                           const oracle::CallInputs& inputs) {
  const AttentionShape& shape = plan.shape;
  const Range own = plan.ranks[rank].image_tokens;
  const int64_t text = shape.text_tokens;
  auto cut = [&](const std::string& tensor, int64_t text_rows, bool image) {
    return CutTokens(tensor, shape.batch, shape.image_tokens + text_rows,
                     image ? ImagePlace(shape, own, text_rows)
                           : TextPlace(shape, text_rows));
  };
  RankTensors tensors;
  tensors.image_query = cut(inputs.query, shape.text_query_tokens(), true);
  tensors.image_key = cut(inputs.key, text, true);
  tensors.image_value = cut(inputs.value, text, true);
  tensors.text_query = cut(inputs.query, shape.text_query_tokens(), false);
  tensors.text_key = cut(inputs.key, text, false);
  tensors.text_value = cut(inputs.value, text, false);
  tensors.image_output.assign(tensors.image_query.size(), '\xff');
  tensors.text_output.assign(tensors.text_query.size(), '\xff');
  return tensors;
}

absl::StatusOr<std::string> JoinRankOutputs(
    const SequenceParallelPlan& plan, const std::vector<RankTensors>& ranks) {
  const AttentionShape& shape = plan.shape;
  const int64_t text = shape.text_query_tokens();
  size_t bytes = ranks[0].text_output.size();
  for (const RankTensors& rank : ranks) bytes += rank.image_output.size();
  std::string output(bytes, '\0');
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].text_output != ranks[0].text_output) {
      return absl::InternalError("ranks hold different text outputs");
    }
    PutTokens(ranks[rank].image_output, shape.batch, shape.query_tokens(),
              ImagePlace(shape, plan.ranks[rank].image_tokens, text), output);
  }
  PutTokens(ranks[0].text_output, shape.batch, shape.query_tokens(),
            TextPlace(shape, text), output);
  return output;
}

absl::StatusOr<RankReport> UlyssesTestRank::Run(
    const SequenceParallelPlan& plan, uint64_t call_number, RankTensors& call) {
  // Text lies right behind its image rows, as in a caller's memory.
  const std::string inputs[] = {call.image_query + call.text_query,
                                call.image_key + call.text_key,
                                call.image_value + call.text_value};
  std::string* const outputs[] = {&call.image_output, &call.text_output};
  int64_t bytes = 0;
  for (const std::string& host : inputs) bytes += RoomFor(host);
  for (const std::string* host : outputs) bytes += RoomFor(*host);
  if (auto status = tensors.Reset(bytes); !status.ok()) return status;
  std::vector<void*> memory;
  absl::Status status;
  const auto put = [&](const std::string& host) {
    memory.push_back(tensors.Take(static_cast<int64_t>(host.size())));
    status.Update(tensors_device->CopyFromHost(
        memory.back(), host.data(), static_cast<int64_t>(host.size())));
  };
  for (const std::string& host : inputs) put(host);
  for (const std::string* host : outputs) put(*host);
  status.Update(tensors_device->Synchronize());
  if (!status.ok()) return status;
  UlyssesAttention attention(device.get(), communicator.get(), kernels.get(),
                             &arena);
  const auto text = [&](size_t input, const std::string& image) -> const void* {
    return static_cast<const char*>(memory[input]) + image.size();
  };
  absl::StatusOr<RankReport> report =
      attention.Run(plan, call_number,
                    {memory[0], memory[1], memory[2], text(0, call.image_query),
                     text(1, call.image_key), text(2, call.image_value)},
                    {memory[3], memory[4]});
  if (!report.ok()) return report;
  for (size_t i = 0; i < std::size(outputs); ++i) {
    status.Update(tensors_device->CopyToHost(
        outputs[i]->data(), memory[std::size(inputs) + i],
        static_cast<int64_t>(outputs[i]->size())));
  }
  if (!status.ok()) return status;
  return report;
}

}  // namespace ithaca
