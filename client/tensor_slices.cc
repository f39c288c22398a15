#include "client/tensor_slices.h"

#include <utility>

#include "client/run_soon.h"

namespace ithaca::client {
namespace {

// Below it a copy costs less than tracking who still reads the bytes.
constexpr size_t kCopyBelowBytes = 16384;

}  // namespace

std::shared_ptr<TensorSlices> TensorSlices::Create() {
  return std::shared_ptr<TensorSlices>(new TensorSlices);
}

grpc::Slice TensorSlices::Make(const TensorView& tensor) {
  const size_t size = tensor.bytes.size();
  if (size < kCopyBelowBytes) return grpc::Slice(tensor.bytes.data(), size);
  void* bytes = const_cast<std::byte*>(tensor.bytes.data());
  if (tensor.owner != nullptr) {
    using Owner = std::shared_ptr<const void>;
    return grpc::Slice(
        bytes, size, [](void* owner) { delete static_cast<Owner*>(owner); },
        new Owner(tensor.owner));
  }
  using Borrower = std::shared_ptr<TensorSlices>;
  holds_.fetch_add(1, std::memory_order_relaxed);
  return grpc::Slice(
      bytes, size,
      [](void* opaque) {
        const std::unique_ptr<Borrower> borrower(
            static_cast<Borrower*>(opaque));
        if (!(*borrower)->ReleaseOne()) return;
        // Somewhere inside the transport and under its locks: no place to run
        // the caller's code.
        RunSoon(std::exchange((*borrower)->then_, nullptr));
      },
      new Borrower(shared_from_this()));
}

void TensorSlices::WhenReleased(std::function<void()> then) {
  then_ = std::move(then);
  if (ReleaseOne()) std::exchange(then_, nullptr)();
}

bool TensorSlices::ReleaseOne() {
  return holds_.fetch_sub(1, std::memory_order_acq_rel) == 1;
}

}  // namespace ithaca::client
