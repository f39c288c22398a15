// What 8-bit communication costs in accuracy: attention over four ranks with
// FP8_E4M3 and INT8 against the same call with NATIVE communication. Prints a
// table; holds each number to a limit.
//
// Of queries, keys and values that are normal with mean 0, the output is the
// mean of about a thousand independent values, small beside each of them, and
// relative errors are those of the values. Real values have a mean, which
// survives attention: "values with a mean" are normal with mean 1.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/attention_call.h"
#include "gtest/gtest.h"
#include "tests/oracle/attention_oracle.h"
#include "tests/oracle/tensor_data.h"
#include "worker/ulysses_test_group.h"

namespace ithaca {
namespace {

constexpr int64_t kTokens = 4096;
constexpr int64_t kHeads = 4;
constexpr int64_t kHeadDim = 128;

AttentionShape Shape() {
  AttentionShape shape;
  shape.dtype = DataType::kBFloat16;
  shape.image_tokens = kTokens;
  shape.valid_text_tokens = {0};
  shape.num_heads = kHeads;
  shape.num_kv_heads = kHeads;
  shape.head_dim = kHeadDim;
  return shape;
}

struct Data {
  const char* name;
  double query_scale;   // > 1: peaky logits
  double key_offset;    // of every 16th channel
  double value_offset;  // of all
  double fp8_limit;     // of the relative L2 error
  double int8_limit;
};

// The limits are about a quarter above what E4M3's 3 bits of mantissa and
// INT8's row scales come to for such data.
constexpr Data kData[] = {
    {"Gaussian", 1, 0, 0, 7e-2, 2e-2},
    {"Gaussian, K with offset channels", 1, 5, 0, 8e-2, 2.5e-2},
    {"Gaussian, peaky logits", 3, 0, 0, 11e-2, 3e-2},
    {"values with a mean", 1, 0, 1, 3.2e-2, 1e-2},
    {"values with a mean, K with offset channels", 1, 5, 1, 4.2e-2, 2e-2},
    {"values with a mean, peaky logits", 3, 0, 1, 6.5e-2, 2e-2},
};

oracle::CallInputs Inputs(const Data& data) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  const AttentionShape shape = Shape();
  oracle::CallInputs inputs;
  inputs.query = oracle::FillQuery(
      shape, [&](auto...) { return data.query_scale * normal(random); });
  inputs.key = oracle::FillKey(shape, [&](auto, auto, auto, int64_t d) {
    return normal(random) + (d % 16 == 0 ? data.key_offset : 0);
  });
  inputs.value = oracle::FillKey(
      shape, [&](auto...) { return data.value_offset + normal(random); });
  return inputs;
}

double Cosine(const std::vector<double>& a, const std::vector<double>& b) {
  double dot = 0;
  double a_norm = 0;
  double b_norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    dot += a[i] * b[i];
    a_norm += a[i] * a[i];
    b_norm += b[i] * b[i];
  }
  return dot / std::sqrt(a_norm * b_norm);
}

TEST(QuantizedAccuracyTest, IsThatOfTheFormats) {
  const AttentionShape shape = Shape();
  UlyssesTestGroup group(4);
  for (const Data& data : kData) {
    const oracle::CallInputs inputs = Inputs(data);
    const auto run = [&](CommunicationPrecision precision) {
      AttentionOptions options = DefaultOptions(shape);
      options.precision = precision;
      options.kernel = AttentionKernelKind::kAuto;
      const auto output = group.Run(shape, options, inputs);
      EXPECT_TRUE(output.ok()) << output.status();
      return oracle::Decode(shape.dtype, output.value());
    };
    const std::vector<double> native = run(CommunicationPrecision::kNative);
    for (const auto& [precision, limit] :
         {std::pair{CommunicationPrecision::kFp8E4m3, data.fp8_limit},
          {CommunicationPrecision::kInt8, data.int8_limit}}) {
      const std::vector<double> output = run(precision);
      const double error = oracle::RelativeL2Error(output, native);
      std::printf("ACCURACY %-8s %-44s relL2 %.2e  cos %.5f\n",
                  std::string(Name(precision)).c_str(), data.name, error,
                  Cosine(output, native));
      EXPECT_LE(error, limit) << Name(precision) << " " << data.name;
    }
  }
}

}  // namespace
}  // namespace ithaca
