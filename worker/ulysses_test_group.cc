#include "worker/ulysses_test_group.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/oracle/attention_oracle.h"
#include "worker/torch_attention_kernels.h"

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

struct RankTensors {
  std::string image_query, image_key, image_value;
  std::string text_query, text_key, text_value;
  std::string image_output, text_output;
};

RankTensors Cut(const SequenceParallelPlan& plan, int rank,
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
  // Bytes that no right answer has: what is not written shows.
  tensors.image_output.assign(tensors.image_query.size(), '\xff');
  tensors.text_output.assign(tensors.text_query.size(), '\xff');
  return tensors;
}

}  // namespace

UlyssesTestGroup::UlyssesTestGroup(int world_size, PlanPolicy policy)
    : policy_(policy), group_(world_size, absl::Seconds(30)) {
  for (int rank = 0; rank < world_size; ++rank) {
    auto made = std::make_unique<Rank>(std::make_unique<CpuDevice>());
    made->communicator = group_.MakeCommunicator(rank);
    made->kernels = MakeTorchAttentionKernels({/*num_threads=*/1});
    ranks_.push_back(std::move(made));
  }
}

void UlyssesTestGroup::Replace(int rank, std::unique_ptr<Device> device) {
  auto made = std::make_unique<Rank>(std::move(device));
  made->communicator = std::move(ranks_[rank]->communicator);
  made->kernels = std::move(ranks_[rank]->kernels);
  ranks_[rank] = std::move(made);
}

void UlyssesTestGroup::Replace(int rank,
                               std::unique_ptr<AttentionKernels> kernels) {
  ranks_[rank]->kernels = std::move(kernels);
}

absl::StatusOr<std::string> UlyssesTestGroup::Run(
    const AttentionShape& shape, const AttentionOptions& options,
    const oracle::CallInputs& inputs, std::vector<RankReport>* reports) {
  absl::StatusOr<SequenceParallelPlan> plan =
      MakeSequenceParallelPlan(shape, options, world_size(), policy_);
  if (!plan.ok()) return plan.status();
  ++call_number_;
  statuses_.assign(ranks_.size(), absl::OkStatus());
  std::vector<RankReport> rank_reports(ranks_.size());
  std::vector<RankTensors> tensors;
  for (int rank = 0; rank < world_size(); ++rank) {
    tensors.push_back(Cut(*plan, rank, inputs));
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size(); ++rank) {
    threads.emplace_back([&, rank] {
      RankTensors& own = tensors[rank];
      const RankInputs in = {own.image_query.data(), own.image_key.data(),
                             own.image_value.data(), own.text_query.data(),
                             own.text_key.data(),    own.text_value.data()};
      const RankOutputs out = {own.image_output.data(), own.text_output.data()};
      Rank& self = *ranks_[rank];
      UlyssesAttention attention(self.device.get(), self.communicator.get(),
                                 self.kernels.get(), &self.arena);
      absl::StatusOr<RankReport> report =
          attention.Run(*plan, call_number_, in, out);
      statuses_[rank] = report.status();
      if (report.ok()) rank_reports[rank] = *report;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses_) {
    if (!status.ok()) return status;
  }
  const int64_t text = shape.text_query_tokens();
  std::string output(inputs.query.size(), '\0');
  for (int rank = 0; rank < world_size(); ++rank) {
    if (tensors[rank].text_output != tensors[0].text_output) {
      return absl::InternalError("ranks hold different text outputs");
    }
    PutTokens(tensors[rank].image_output, shape.batch, shape.query_tokens(),
              ImagePlace(shape, plan->ranks[rank].image_tokens, text), output);
  }
  PutTokens(tensors[0].text_output, shape.batch, shape.query_tokens(),
            TextPlace(shape, text), output);
  if (reports != nullptr) *reports = std::move(rank_reports);
  return output;
}

AttentionOptions DefaultOptions(const AttentionShape& shape) {
  AttentionOptions options;
  options.softmax_scale = oracle::DefaultScale(shape);
  options.schedule = HeadSchedule::kFused;
  options.kernel = AttentionKernelKind::kMath;
  return options;
}

}  // namespace ithaca
