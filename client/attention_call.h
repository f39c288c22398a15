#ifndef ITHACA_CLIENT_ATTENTION_CALL_H_
#define ITHACA_CLIENT_ATTENTION_CALL_H_

#include <cstddef>
#include <span>
#include <string>

#include "absl/time/time.h"
#include "client/plane.h"
#include "client/tensor.h"
#include "ithaca/v1/attention.pb.h"

// What goes into one attention call, and what comes out.

namespace ithaca::client {

struct AttentionArguments {
  // [B, query tokens, Hq, D]
  TensorView query = {};
  // [B, image + text tokens, Hkv, D], Hkv divides Hq
  TensorView key = {};
  TensorView value = {};
  ithaca::v1::SequenceLayout layout = {};
  ithaca::v1::AttentionOptions options = {};
  // Echoed in every log line of the call. Empty = the server makes one.
  std::string request_id = {};
  absl::Time deadline = absl::InfiniteFuture();
  // Where the output's bytes go, as many as the query has; it must stay until
  // the call ends. Empty = the result brings memory of its own.
  std::span<std::byte> output = {};
  // Or a place in a region, which the workers write themselves.
  // REQUIRES: `output` is empty then.
  RegionView output_region = {};
};

struct AttentionResult {
  std::string request_id;
  Tensor output;  // query's shape and dtype
  ithaca::v1::ExecutionReport report;
  // How the tensors travelled. Where one is in a region and another is not,
  // the server names the plane.
  Plane plane = Plane::kUnary;
  // Why not by the plane that was asked for, or that both sides can in
  // general; empty if there is nothing to tell.
  std::string plane_note;
};

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_ATTENTION_CALL_H_
