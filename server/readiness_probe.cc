#include "server/readiness_probe.h"

#include <grpcpp/support/slice.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/attention_call.h"
#include "server/pending_call.h"
#include "server/tensor_bytes.h"

namespace ithaca::server {

namespace {

constexpr int64_t kHeadDim = 8;
constexpr int64_t kTextTokens = 2;
constexpr int64_t kValidTextTokens = 1;
constexpr double kTolerance = 1e-4;

// One token more than ranks: shares are uneven.
int64_t ImageTokens(int world_size) { return world_size + 1; }
int64_t Tokens(int world_size) { return ImageTokens(world_size) + kTextTokens; }

// All logits are equal, so that the output is the plain mean of the kept
// values: of token * 1 + head * 100 + dim * 0.125 over the kept tokens.
float Value(int64_t token, int64_t head, int64_t dim) {
  return static_cast<float>(static_cast<double>(token) +
                            static_cast<double>(head) * 100.0 +
                            static_cast<double>(dim) * 0.125);
}

double Expected(int world_size, int64_t token, int64_t head, int64_t dim) {
  const int64_t kept = ImageTokens(world_size) + kValidTextTokens;
  if (token >= kept) return 0.0;  // a padded text query
  return static_cast<double>(kept - 1) / 2.0 +
         static_cast<double>(Value(0, head, dim));
}

TensorBytes ToBytes(const std::vector<float>& values) {
  TensorBytes bytes;
  bytes.Append(grpc::Slice(values.data(), values.size() * sizeof(float)));
  return bytes;
}

}  // namespace

std::shared_ptr<PendingCall> MakeReadinessProbe(
    int world_size, PendingCall::EndFunction on_end) {
  auto call = std::make_shared<PendingCall>(std::move(on_end));
  call->request_id = "readiness-probe";
  AttentionShape& shape = call->shape;
  shape.dtype = DataType::kFloat32;
  shape.batch = 1;
  shape.image_tokens = ImageTokens(world_size);
  shape.text_tokens = kTextTokens;
  shape.valid_text_tokens = {kValidTextTokens};
  shape.order = TokenOrder::kImageFirst;
  shape.num_heads = world_size;
  shape.num_kv_heads = world_size;
  shape.head_dim = kHeadDim;
  call->options.schedule = HeadSchedule::kFused;

  const int64_t tokens = Tokens(world_size);
  const auto elements = static_cast<size_t>(tokens * world_size * kHeadDim);
  std::vector<float> value;
  value.reserve(elements);
  for (int64_t token = 0; token < tokens; ++token) {
    const bool padded = token >= ImageTokens(world_size) + kValidTextTokens;
    for (int64_t head = 0; head < world_size; ++head) {
      for (int64_t dim = 0; dim < kHeadDim; ++dim) {
        value.push_back(padded ? std::numeric_limits<float>::quiet_NaN()
                               : Value(token, head, dim));
      }
    }
  }
  call->tensors.query = ToBytes(std::vector<float>(elements, 0.0F));
  call->tensors.key = call->tensors.query;
  call->tensors.value = ToBytes(value);
  return call;
}

absl::Status CheckReadinessProbe(int world_size, const TensorBytes& output) {
  const std::string bytes = output.Flatten();
  const int64_t tokens = Tokens(world_size);
  const auto expected_bytes =
      static_cast<size_t>(tokens * world_size * kHeadDim) * sizeof(float);
  if (bytes.size() != expected_bytes) {
    return absl::InternalError(
        absl::StrCat("the readiness probe's output: expected ", expected_bytes,
                     " bytes, got ", bytes.size()));
  }
  const char* at = bytes.data();
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t head = 0; head < world_size; ++head) {
      for (int64_t dim = 0; dim < kHeadDim; ++dim, at += sizeof(float)) {
        float actual = 0;
        std::memcpy(&actual, at, sizeof(actual));
        const double expected = Expected(world_size, token, head, dim);
        // Written so that a NaN fails.
        if (!(std::abs(static_cast<double>(actual) - expected) <=
              kTolerance * std::max(1.0, expected))) {
          return absl::InternalError(absl::StrCat(
              "the readiness probe's output at token ", token, ", head ", head,
              ", dim ", dim, ": expected ", expected, ", got ", actual));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace ithaca::server
