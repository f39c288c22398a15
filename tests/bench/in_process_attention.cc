// The attention that the service's workers compute, in this process and with
// nothing around it: the other side of the service's benchmark (S6).
//
//   in_process_attention --shape flux --threads 2
//
// Says "ready", then for each line "run" on its input attends once and prints
// the seconds that took. The tensors are those of `ithaca bench` with the same
// shape, seed and dtype. Ends with its input.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <string>

#include "client/cli/named_shapes.h"
#include "client/cli/random_call.h"
#include "worker/attention_kernel.h"
#include "worker/torch_attention_kernels.h"

namespace ithaca {
namespace {

TokenRows Rows(const client::TensorView& tensor) {
  // [1, tokens, heads, head_dim]
  const int64_t heads = tensor.shape[2];
  const int64_t head_dim = tensor.shape[3];
  return {.data = tensor.bytes.data(),
          .tokens = tensor.shape[1],
          .heads = heads,
          .token_stride = heads * head_dim,
          .head_stride = head_dim};
}

int Run(const std::string& shape_name, int threads) {
  const client::NamedShape* shape = client::FindNamedShape(shape_name);
  if (shape == nullptr) {
    std::cerr << "no shape is named " << shape_name << '\n';
    return 2;
  }
  const auto call =
      client::MakeRandomCall(shape->Shape(), /*seed=*/1, int64_t{1} << 32);
  if (!call.ok()) {
    std::cerr << call.status() << '\n';
    return 2;
  }
  const auto kernels = MakeTorchAttentionKernels({.num_threads = threads});
  const AttentionArguments arguments{
      .dtype = DataType::kBFloat16,
      .head_dim = shape->head_dim,
      .softmax_scale = 1.0 / std::sqrt(static_cast<double>(shape->head_dim)),
      .query = Rows(call->query),
      .key = Rows(call->key),
      .value = Rows(call->value),
      .kernel = AttentionKernelKind::kFlash};
  std::cout << "ready" << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto begin = std::chrono::steady_clock::now();
    const auto result = kernels->Attend(arguments);
    const std::chrono::duration<double> seconds =
        std::chrono::steady_clock::now() - begin;
    if (!result.ok()) {
      std::cerr << result.status() << '\n';
      return 1;
    }
    std::cout << seconds.count() << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace ithaca

int main(int argc, char** argv) {
  CLI::App app("Attends in process, once for each line of its input.");
  std::string shape = "flux";
  int threads = 0;
  app.add_option("--shape", shape, "Named shape")->capture_default_str();
  app.add_option("--threads", threads, "Threads; 0 = one for each core")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return ithaca::Run(shape, threads);
}
