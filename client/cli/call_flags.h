#ifndef ITHACA_CLIENT_CLI_CALL_FLAGS_H_
#define ITHACA_CLIENT_CLI_CALL_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/attention_call.h"
#include "client/cli/named_shapes.h"

namespace CLI {
class App;
}  // namespace CLI

namespace ithaca::client {

// The flags that say what a call is: a named shape, what differs from it, and
// the options. What is unset stays as the named shape, or the server, has it.
struct CallFlags {
  std::string shape = "tiny";
  std::optional<int64_t> batch = {};
  std::optional<int64_t> image_tokens = {};
  std::optional<int64_t> text_tokens = {};
  std::vector<int64_t> valid_text_tokens = {};
  std::optional<int64_t> num_heads = {};
  std::optional<int64_t> num_kv_heads = {};
  std::optional<int64_t> head_dim = {};
  std::optional<int> dtype = {};  // v1 enum values
  std::optional<int> order = {};
  bool image_queries_only = false;
  uint64_t seed = 1;

  int precision = 0;
  int schedule = 0;
  int kernel = 0;
  std::optional<double> softmax_scale = {};

  // Whether a flag describes random tensors: none may with an input file.
  bool DescribesTensors() const;
  CallShape Shape() const;
  ithaca::v1::AttentionOptions Options() const;
};

// `flags` outlives the parsing.
void AddCallFlags(CLI::App* command, CallFlags* flags);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_CLI_CALL_FLAGS_H_
