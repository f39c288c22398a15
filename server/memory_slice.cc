#include "server/memory_slice.h"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "ithaca/v1/attention.pb.h"
#include "server/memory_region.h"

namespace ithaca::server {

namespace {

namespace v1 = ithaca::v1;

absl::Status Invalid(absl::string_view field, absl::string_view expected,
                     absl::string_view actual) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected ", expected, ", got ", actual));
}

// Bytes from the start of the object or allocation that the region is in.
uint64_t BeginOf(const RegionPart& part) {
  const internal::v1::Region& memory = part.region->memory;
  return part.offset + (memory.has_shared() ? memory.shared().offset()
                                            : memory.cuda().offset());
}

bool SameMemory(const internal::v1::Region& a, const internal::v1::Region& b) {
  if (a.has_shared() != b.has_shared()) return false;
  return a.has_shared()
             ? a.shared().device_number() == b.shared().device_number() &&
                   a.shared().inode() == b.shared().inode()
             : a.cuda().ipc_handle() == b.cuda().ipc_handle();
}

bool Overlap(const RegionPart& a, const RegionPart& b) {
  return SameMemory(a.region->memory, b.region->memory) &&
         BeginOf(a) < BeginOf(b) + b.byte_size &&
         BeginOf(b) < BeginOf(a) + a.byte_size;
}

class SliceReader {
 public:
  explicit SliceReader(const RegionLookup& lookup) : lookup_(lookup) {}

  absl::StatusOr<RegionPart> Read(absl::string_view field,
                                  const v1::MemorySlice& slice,
                                  int64_t tensor_bytes, int64_t element_bytes) {
    RegionPart part;
    auto region = Find(slice.region());
    if (!region.ok()) {
      return absl::Status(region.status().code(),
                          absl::StrCat(field, ".", region.status().message()));
    }
    part.region = *std::move(region);
    part.offset = slice.offset();
    part.byte_size = slice.byte_size();
    const uint64_t size = part.region->byte_size();
    if (part.byte_size != static_cast<uint64_t>(tensor_bytes)) {
      return Invalid(absl::StrCat(field, ".byte_size"),
                     absl::StrCat(tensor_bytes, ", the tensor's bytes"),
                     absl::StrCat(part.byte_size));
    }
    if (part.offset > size || part.byte_size > size - part.offset) {
      return Invalid(absl::StrCat(field, ".offset + byte_size"),
                     absl::StrCat("at most the region's ", size, " bytes"),
                     absl::StrCat(part.offset, " + ", part.byte_size));
    }
    const uint64_t begin = BeginOf(part);
    if (begin % static_cast<uint64_t>(element_bytes) != 0) {
      return Invalid(absl::StrCat(field, ".offset"),
                     absl::StrCat("a multiple of the element's ", element_bytes,
                                  " bytes from the start of the memory"),
                     absl::StrCat(begin, " with the region's own offset"));
    }
    return part;
  }

  std::vector<std::shared_ptr<const void>> TakeHolds() {
    return std::move(holds_);
  }

 private:
  absl::StatusOr<std::shared_ptr<const MemoryRegion>> Find(
      const std::string& name) {
    for (const auto& region : found_) {
      if (region->name == name) return region;
    }
    auto pin = lookup_(name);
    if (!pin.ok()) return pin.status();
    found_.push_back(pin->region);
    holds_.push_back(std::move(pin->hold));
    return std::move(pin->region);
  }

  const RegionLookup& lookup_;
  std::vector<std::shared_ptr<const MemoryRegion>> found_;
  std::vector<std::shared_ptr<const void>> holds_;
};

}  // namespace

bool HasSlices(const v1::AttentionRequest& request) {
  return request.query().has_memory() || request.key().has_memory() ||
         request.value().has_memory() || request.has_output();
}

absl::StatusOr<CallRegions> ReadSlices(const v1::AttentionRequest& request,
                                       const TensorSizes& sizes,
                                       const RegionLookup& lookup) {
  CallRegions regions;
  struct Slot {
    const char* field;
    const v1::MemorySlice* slice;  // nullptr: in the message
    int64_t bytes;
    RegionPart* part;
  };
  const auto memory_of = [](const v1::Tensor& tensor) {
    return tensor.has_memory() ? &tensor.memory() : nullptr;
  };
  const std::array<Slot, 4> slots = {
      Slot{"query.memory", memory_of(request.query()), sizes.query,
           &regions.query},
      Slot{"key.memory", memory_of(request.key()), sizes.key, &regions.key},
      Slot{"value.memory", memory_of(request.value()), sizes.key,
           &regions.value},
      Slot{"output", request.has_output() ? &request.output() : nullptr,
           sizes.query, &regions.output}};
  SliceReader reader(lookup);
  for (const Slot& slot : slots) {
    if (slot.slice == nullptr) continue;
    if (!lookup) {
      return absl::UnimplementedError(absl::StrCat(
          slot.field,
          ": this server has no memory plane enabled; send and take tensors "
          "in the call itself"));
    }
    auto part = reader.Read(slot.field, *slot.slice, slot.bytes, sizes.element);
    if (!part.ok()) return part.status();
    *slot.part = *std::move(part);
  }
  regions.holds = reader.TakeHolds();
  if (regions.output.region == nullptr) return regions;
  for (const Slot& slot : slots) {
    if (slot.part == &regions.output || slot.part->region == nullptr) continue;
    if (Overlap(*slot.part, regions.output)) {
      return Invalid(
          "output", absl::StrCat("memory apart from ", slot.field),
          absl::StrCat("bytes ", regions.output.offset, " to ",
                       regions.output.offset + regions.output.byte_size,
                       " of its region, which overlap it"));
    }
  }
  return regions;
}

}  // namespace ithaca::server
