#include "worker/ulysses_test_group.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/oracle/attention_oracle.h"

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

struct UlyssesTestGroup::RankTensors {
  RankTensors(const SequenceParallelPlan& plan, int rank,
              const oracle::CallInputs& inputs);

  std::string image_query, image_key, image_value;
  std::string text_query, text_key, text_value;
  std::string image_output, text_output;
};

UlyssesTestGroup::RankTensors::RankTensors(const SequenceParallelPlan& plan,
                                           int rank,
                                           const oracle::CallInputs& inputs) {
  const AttentionShape& shape = plan.shape;
  const Range own = plan.ranks[rank].image_tokens;
  const int64_t text = shape.text_tokens;
  auto cut = [&](const std::string& tensor, int64_t text_rows, bool image) {
    return CutTokens(tensor, shape.batch, shape.image_tokens + text_rows,
                     image ? ImagePlace(shape, own, text_rows)
                           : TextPlace(shape, text_rows));
  };
  image_query = cut(inputs.query, shape.text_query_tokens(), true);
  image_key = cut(inputs.key, text, true);
  image_value = cut(inputs.value, text, true);
  text_query = cut(inputs.query, shape.text_query_tokens(), false);
  text_key = cut(inputs.key, text, false);
  text_value = cut(inputs.value, text, false);
  // Bytes that no right answer has: what is not written shows.
  image_output.assign(image_query.size(), '\xff');
  text_output.assign(text_query.size(), '\xff');
}

UlyssesTestGroup::UlyssesTestGroup(int world_size, PlanPolicy policy)
    : backend_(MakeUlyssesTestBackend()),
      policy_(policy),
      group_(world_size, absl::Seconds(30), backend_->CopyMemory()) {
  for (int rank = 0; rank < world_size; ++rank) {
    auto made =
        std::make_unique<Rank>(backend_->MakeDevice(), backend_->MakeDevice());
    made->communicator =
        backend_->Order(group_.MakeCommunicator(rank), made->device.get());
    made->kernels = backend_->MakeKernels(made->device.get());
    ranks_.push_back(std::move(made));
  }
}

void UlyssesTestGroup::Replace(int rank, std::unique_ptr<Device> device) {
  auto made = std::make_unique<Rank>(std::move(device), backend_->MakeDevice());
  made->communicator = std::move(ranks_[rank]->communicator);
  made->kernels = std::move(ranks_[rank]->kernels);
  ranks_[rank] = std::move(made);
}

void UlyssesTestGroup::Replace(int rank,
                               std::unique_ptr<AttentionKernels> kernels) {
  ranks_[rank]->kernels = std::move(kernels);
}

absl::StatusOr<RankReport> UlyssesTestGroup::RunRank(
    Rank& rank, const SequenceParallelPlan& plan, RankTensors& tensors) {
  // Text lies right behind its image rows, as in a caller's memory.
  const std::string inputs[] = {tensors.image_query + tensors.text_query,
                                tensors.image_key + tensors.text_key,
                                tensors.image_value + tensors.text_value};
  std::string* const outputs[] = {&tensors.image_output, &tensors.text_output};
  int64_t bytes = 0;
  for (const std::string& host : inputs) bytes += RoomFor(host);
  for (const std::string* host : outputs) bytes += RoomFor(*host);
  if (auto status = rank.tensors.Reset(bytes); !status.ok()) return status;
  std::vector<void*> memory;
  absl::Status status;
  const auto put = [&](const std::string& host) {
    memory.push_back(rank.tensors.Take(static_cast<int64_t>(host.size())));
    status.Update(rank.tensors_device->CopyFromHost(
        memory.back(), host.data(), static_cast<int64_t>(host.size())));
  };
  for (const std::string& host : inputs) put(host);
  for (const std::string* host : outputs) put(*host);
  status.Update(rank.tensors_device->Synchronize());
  if (!status.ok()) return status;
  UlyssesAttention attention(rank.device.get(), rank.communicator.get(),
                             rank.kernels.get(), &rank.arena);
  const auto text = [&](size_t input, const std::string& image) -> const void* {
    return static_cast<const char*>(memory[input]) + image.size();
  };
  absl::StatusOr<RankReport> report = attention.Run(
      plan, call_number_,
      {memory[0], memory[1], memory[2], text(0, tensors.image_query),
       text(1, tensors.image_key), text(2, tensors.image_value)},
      {memory[3], memory[4]});
  if (!report.ok()) return report;
  for (size_t i = 0; i < std::size(outputs); ++i) {
    status.Update(rank.tensors_device->CopyToHost(
        outputs[i]->data(), memory[std::size(inputs) + i],
        static_cast<int64_t>(outputs[i]->size())));
  }
  if (!status.ok()) return status;
  return report;
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
    tensors.emplace_back(*plan, rank, inputs);
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size(); ++rank) {
    threads.emplace_back([&, rank] {
      const absl::StatusOr<RankReport> report =
          RunRank(*ranks_[rank], *plan, tensors[rank]);
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
