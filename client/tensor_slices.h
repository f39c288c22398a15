#ifndef ITHACA_CLIENT_TENSOR_SLICES_H_
#define ITHACA_CLIENT_TENSOR_SLICES_H_

#include <grpcpp/support/slice.h>

#include <atomic>
#include <functional>
#include <memory>

#include "client/tensor.h"

namespace ithaca::client {

// gRPC slices over the tensors of one call, and the moment from which the
// transport reads none of those that are only borrowed.
class TensorSlices : public std::enable_shared_from_this<TensorSlices> {
 public:
  static std::shared_ptr<TensorSlices> Create();

  // A slice of the view's bytes: a copy if there are few, else the memory
  // itself. Parts of it (Slice::sub) count as it does.
  grpc::Slice Make(const TensorView& tensor);

  // Calls `then` once all slices over memory without an owner are gone: in
  // here, or later on a thread of gRPC's. Once at most, after the last Make.
  void WhenReleased(std::function<void()> then);

 private:
  TensorSlices() = default;
  bool ReleaseOne();

  std::atomic<int> holds_ = 1;  // one is the call's own, until WhenReleased
  std::function<void()> then_;
};

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_TENSOR_SLICES_H_
