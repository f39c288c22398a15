#include "worker/call_tensors.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ithaca {
namespace {

const char* NameOf(TensorRole role) {
  switch (role) {
    case TensorRole::kQuery:
      return "query";
    case TensorRole::kKey:
      return "key";
    case TensorRole::kValue:
      return "value";
    case TensorRole::kOutput:
      return "output";
  }
  return "tensor";
}

const std::optional<RegionSlice>& SliceOf(const RankCall& call,
                                          TensorRole role) {
  switch (role) {
    case TensorRole::kQuery:
      return call.query;
    case TensorRole::kKey:
      return call.key;
    case TensorRole::kValue:
      return call.value;
    case TensorRole::kOutput:
      break;
  }
  return call.output;
}

absl::Status CheckSlice(const RegionSlice& slice, int64_t expected,
                        TensorRole role) {
  if (slice.byte_size != static_cast<uint64_t>(expected)) {
    return absl::InvalidArgumentError(
        absl::StrCat(NameOf(role), ".memory.byte_size: expected ", expected,
                     ", got ", slice.byte_size));
  }
  const uint64_t room = slice.region.byte_size;
  if (slice.offset > room || slice.byte_size > room - slice.offset) {
    return absl::InvalidArgumentError(
        absl::StrCat(NameOf(role), ".memory: ", slice.byte_size, " bytes at ",
                     slice.offset, " do not lie within the region's ", room));
  }
  return absl::OkStatus();
}

// Pieces one after the other.
class PieceReader {
 public:
  explicit PieceReader(const std::vector<std::string_view>& pieces)
      : pieces_(pieces) {}

  // Up to `bytes`, at least one. REQUIRES: there are any, bytes > 0.
  std::string_view Next(int64_t bytes) {
    while (piece_.empty()) piece_ = pieces_[next_++];
    const std::string_view taken = piece_.substr(0, static_cast<size_t>(bytes));
    piece_.remove_prefix(taken.size());
    return taken;
  }

 private:
  const std::vector<std::string_view>& pieces_;
  size_t next_ = 0;
  std::string_view piece_;
};

}  // namespace

int64_t InlineInputBytes(const SequenceParallelPlan& plan, int rank,
                         const RankCall& call) {
  int64_t bytes = 0;
  for (const TensorRole role :
       {TensorRole::kQuery, TensorRole::kKey, TensorRole::kValue}) {
    if (SliceOf(call, role).has_value()) continue;
    bytes += ImageRows(plan, rank, role).bytes() + TextRows(plan, role).bytes();
  }
  return bytes;
}

absl::StatusOr<CallTensors> CallTensors::Open(const RankCall& call,
                                              const SequenceParallelPlan& plan,
                                              int rank, RegionTable* table) {
  struct Tensor {
    TensorRole role;
    PartName image, text;
  };
  CallTensors tensors;
  for (const Tensor& tensor :
       {Tensor{TensorRole::kQuery, kImageQuery, kTextQuery},
        Tensor{TensorRole::kKey, kImageKey, kTextKey},
        Tensor{TensorRole::kValue, kImageValue, kTextValue},
        Tensor{TensorRole::kOutput, kImageOutput, kTextOutput}}) {
    Part& image = tensors.parts_[tensor.image];
    Part& text = tensors.parts_[tensor.text];
    image.rows = ImageRows(plan, rank, tensor.role);
    text.rows = TextRows(plan, tensor.role);
    const std::optional<RegionSlice>& slice = SliceOf(call, tensor.role);
    if (!slice.has_value()) continue;
    if (table == nullptr) return absl::UnimplementedError("no memory regions");
    const int64_t whole = WholeTensorBytes(plan.shape, tensor.role);
    if (absl::Status status = CheckSlice(*slice, whole, tensor.role);
        !status.ok()) {
      return status;
    }
    auto region = table->Acquire(slice->region);
    if (!region.ok()) return region.status();
    image.tensor_offset = text.tensor_offset =
        static_cast<int64_t>(slice->offset);
    image.region = text.region = *std::move(region);
  }
  tensors.parts_[kTextOutput].wanted = call.return_text_output;
  if (absl::Status status = tensors.CheckRegions(); !status.ok()) {
    return status;
  }
  tensors.alignment_ = ByteSize(plan.shape.dtype);
  tensors.attends_in_place_ = plan.ranks.size() == 1;
  tensors.DecideWhatStays();
  return tensors;
}

void CallTensors::DecideWhatStays() {
  const auto memory_of = [](const Part& part) {
    return part.region->device_memory() + part.tensor_offset + part.rows.begin;
  };
  const auto overlap = [&](const Part& a, const Part& b) {
    return memory_of(a) < memory_of(b) + b.rows.bytes() &&
           memory_of(b) < memory_of(a) + a.rows.bytes();
  };
  for (size_t i = 0; i < kNumParts; ++i) {
    Part& part = parts_[i];
    if (part.region == nullptr || part.region->device_memory() == nullptr ||
        !part.rows.contiguous() || !part.wanted ||
        !IsAligned(memory_of(part))) {
      continue;
    }
    // A lane's output may be written before the next one's input is read.
    part.in_place =
        i < kImageOutput ||
        std::none_of(parts_.begin(), parts_.begin() + kImageOutput,
                     [&](const Part& input) {
                       return input.in_place && overlap(part, input);
                     });
    if (part.in_place) part.memory = memory_of(part);
  }
}

int64_t CallTensors::host_output_bytes() const {
  int64_t bytes = 0;
  for (const PartName name : {kImageOutput, kTextOutput}) {
    const Part& part = parts_[name];
    if (part.region == nullptr && part.wanted) bytes += part.rows.bytes();
  }
  return bytes;
}

void CallTensors::StayOnHost(const RankCall& call, HostBuffer* host) {
  const auto take = [](Part* part, char* memory) {
    if (part->region != nullptr || !part->wanted) return memory;
    part->in_place = true;
    part->memory = memory;
    return memory + part->rows.bytes();
  };
  // A lone rank attends inputs where they lie, if text lies behind its image:
  // in the arena, not in a message.
  const bool joins = attends_in_place_ && parts_[kTextKey].rows.bytes() > 0;
  if (!joins && call.tensors.size() == 1 && IsAligned(call.tensors[0].data())) {
    reads_message_ = true;
    // Inputs are never written.
    char* memory = const_cast<char*>(call.tensors[0].data());
    for (int i = 0; i < kImageOutput; ++i) memory = take(&parts_[i], memory);
  }
  char* memory = host->data();
  for (const PartName name : {kImageOutput, kTextOutput}) {
    memory = take(&parts_[name], memory);
  }
}

int64_t CallTensors::arena_bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) {
    if (!part.in_place) bytes += Arena::AlignedSize(part.rows.bytes());
  }
  return bytes;
}

void CallTensors::Place(Arena* arena) {
  // Text right behind its image: a lone rank then attends both where they lie
  // (InputsLieJoined).
  constexpr int kInputs = 3;
  for (int i = kImageQuery; i < kTextQuery; ++i) {
    Part& image = parts_[i];
    Part& text = parts_[i + kInputs];
    if (image.in_place || text.in_place) continue;
    image.memory =
        static_cast<char*>(arena->Take(image.rows.bytes() + text.rows.bytes()));
    text.memory = image.memory + image.rows.bytes();
  }
  for (Part& part : parts_) {
    if (part.memory != nullptr) continue;
    part.memory = static_cast<char*>(arena->Take(part.rows.bytes()));
  }
}

RankInputs CallTensors::inputs() const {
  RankInputs inputs;
  inputs.image_query = parts_[kImageQuery].memory;
  inputs.image_key = parts_[kImageKey].memory;
  inputs.image_value = parts_[kImageValue].memory;
  inputs.text_query = parts_[kTextQuery].memory;
  inputs.text_key = parts_[kTextKey].memory;
  inputs.text_value = parts_[kTextValue].memory;
  return inputs;
}

RankOutputs CallTensors::outputs() const {
  RankOutputs outputs;
  outputs.image = parts_[kImageOutput].memory;
  outputs.text = parts_[kTextOutput].memory;
  return outputs;
}

absl::Status CallTensors::Scatter(const RankCall& call, Device* device) const {
  PieceReader pieces(call.tensors);
  absl::Status status;
  for (size_t i = 0; status.ok() && i < kImageOutput; ++i) {
    const Part& part = parts_[i];
    if (part.in_place) continue;
    if (part.region == nullptr) {
      for (int64_t done = 0; status.ok() && done < part.rows.bytes();) {
        const std::string_view piece = pieces.Next(part.rows.bytes() - done);
        const auto size = static_cast<int64_t>(piece.size());
        status =
            call.tensors_are_pinned
                ? device->Copy(part.memory + done, piece.data(), size)
                : device->CopyFromHost(part.memory + done, piece.data(), size);
        done += size;
      }
      continue;
    }
    for (int64_t b = 0; status.ok() && b < part.rows.count; ++b) {
      status = part.region->CopyToDevice(
          device, part.memory + b * part.rows.size,
          part.tensor_offset + part.rows.begin + b * part.rows.stride,
          part.rows.size);
    }
  }
  return status;
}

absl::Status CallTensors::Gather(Device* device, HostBuffer* host) const {
  char* to = host->data();
  absl::Status status;
  for (const PartName name : {kImageOutput, kTextOutput}) {
    const Part& part = parts_[name];
    if (!status.ok() || part.in_place || !part.wanted) continue;
    if (part.region == nullptr) {
      status = host->is_pinned()
                   ? device->Copy(to, part.memory, part.rows.bytes())
                   : device->CopyToHost(to, part.memory, part.rows.bytes());
      to += part.rows.bytes();
      continue;
    }
    for (int64_t b = 0; status.ok() && b < part.rows.count; ++b) {
      status = part.region->CopyFromDevice(
          device, part.tensor_offset + part.rows.begin + b * part.rows.stride,
          part.memory + b * part.rows.size, part.rows.size);
    }
  }
  return status;
}

absl::Status CallTensors::CheckRegions() const {
  absl::Status status;
  for (const Part& part : parts_) {
    if (status.ok() && part.region != nullptr) status = part.region->Check();
  }
  return status;
}

}  // namespace ithaca
