#include "client/shared_staging.h"

#include <utility>
#include <vector>

#include "client/parallel_copy.h"

namespace ithaca::client {
namespace {

// So that vector loads of a worker are aligned, as they are in a tensor alone.
constexpr uint64_t kAlignment = 256;

uint64_t Align(uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

uint64_t StagedBytes(const AttentionArguments& arguments) {
  uint64_t bytes = 0;
  for (const TensorView* view :
       {&arguments.query, &arguments.key, &arguments.value}) {
    if (view->region.region == nullptr) bytes += Align(view->bytes.size());
  }
  if (arguments.output_region.region == nullptr) {
    bytes += Align(ByteSize(arguments.query));
  }
  return bytes;
}

AttentionArguments StageInputs(const AttentionArguments& arguments,
                               std::shared_ptr<MemoryRegion> region) {
  AttentionArguments staged = arguments;
  std::vector<Copy> copies;
  uint64_t offset = 0;
  for (TensorView* view : {&staged.query, &staged.key, &staged.value}) {
    if (view->region.region != nullptr) continue;
    const uint64_t size = view->bytes.size();
    const std::span<std::byte> place = region->bytes().subspan(offset, size);
    copies.push_back({view->bytes, place.data()});
    view->bytes = place;
    view->owner = region;
    view->region = {region, offset};
    offset += Align(size);
  }
  if (staged.output_region.region == nullptr) {
    staged.output = {};
    staged.output_region = {std::move(region), offset};
  }
  CopyAll(copies);
  return staged;
}

void UnstageOutput(const AttentionArguments& arguments,
                   AttentionResult* result) {
  if (arguments.output_region.region != nullptr) return;
  const Tensor& staged = result->output;
  Tensor output =
      arguments.output.empty()
          ? Tensor(staged.dtype(), staged.shape())
          : Tensor(staged.dtype(), staged.shape(), arguments.output);
  CopyAll({{staged.bytes(), output.bytes().data()}});
  result->output = std::move(output);
}

}  // namespace ithaca::client
