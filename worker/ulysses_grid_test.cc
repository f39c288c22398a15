// The whole grid of calls against the float64 oracle, sampled so that every
// pair of values occurs together.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/oracle/attention_oracle.h"
#include "tests/oracle/tensor_data.h"
#include "worker/ulysses_test_caller.h"

namespace ithaca {
namespace {

constexpr int kWorldSizes[] = {1, 2, 3, 4, 7, 8};
constexpr int64_t kImageTokens[] = {0, 1, 2, 3, 5, 7, 13, 64};
constexpr int64_t kTextTokens[] = {0, 1, 5};
constexpr const char* kValidText[] = {"none", "part", "all"};
constexpr std::pair<int64_t, int64_t> kHeads[] = {{1, 1}, {4, 4}, {6, 6},
                                                  {8, 2}, {7, 7}, {28, 7}};
constexpr int64_t kHeadDims[] = {1, 8, 40, 64};
constexpr CommunicationPrecision kPrecisions[] = {
    CommunicationPrecision::kNative, CommunicationPrecision::kFp8E4m3,
    CommunicationPrecision::kInt8};
// Where a device has no such kernel, or not for the call, the call says so and
// AUTO takes its place.
constexpr AttentionKernelKind kKernels[] = {AttentionKernelKind::kMath,
                                            AttentionKernelKind::kFlash,
                                            AttentionKernelKind::kCudnn};
constexpr int kSamples = 1500;

enum Axis {
  kWorldSize,
  kImage,
  kText,
  kValid,
  kHeadCounts,
  kOrder,
  kImageQueriesOnly,
  kType,
  kSchedule,
  kPrecision,
  kBatch,
  kKernel,
  kHeadDim,
  kNumAxes,
};
constexpr std::array<int, kNumAxes> kAxisSizes = {6, 8, 3, 3, 6, 2, 2,
                                                  3, 2, 3, 2, 3, 4};
using Sample = std::array<int, kNumAxes>;

bool IsCall(const Sample& sample) {
  const bool no_image = kImageTokens[sample[kImage]] == 0;
  return !(no_image &&
           (kTextTokens[sample[kText]] == 0 || sample[kImageQueriesOnly] == 1));
}

using Pair = std::array<int, 4>;  // axis, value, axis, value

// Pairs that no call can have: no tokens at all, and no image query.
bool IsPossible(const Pair& pair) {
  Sample sample;
  sample.fill(1);
  sample[kImageQueriesOnly] = 0;
  sample[pair[0]] = pair[1];
  sample[pair[2]] = pair[3];
  return IsCall(sample);
}

std::vector<Pair> PairsOf(const Sample& sample) {
  std::vector<Pair> pairs;
  for (int a = 0; a < kNumAxes; ++a) {
    for (int b = a + 1; b < kNumAxes; ++b) {
      pairs.push_back({a, sample[a], b, sample[b]});
    }
  }
  return pairs;
}

std::set<Pair> AllPairs() {
  std::set<Pair> pairs;
  for (int a = 0; a < kNumAxes; ++a) {
    for (int b = a + 1; b < kNumAxes; ++b) {
      for (int i = 0; i < kAxisSizes[a]; ++i) {
        for (int j = 0; j < kAxisSizes[b]; ++j) {
          if (IsPossible({a, i, b, j})) pairs.insert({a, i, b, j});
        }
      }
    }
  }
  return pairs;
}

// Of some random calls the one with most pairs not seen yet, again and again.
std::vector<Sample> Samples() {
  std::mt19937_64 random(20240501);
  std::set<Pair> missing = AllPairs();
  std::vector<Sample> samples;
  while (samples.size() < kSamples || !missing.empty()) {
    Sample best = {};
    size_t best_new = 0;
    bool found = false;
    for (int attempt = 0; attempt < 20; ++attempt) {
      Sample sample;
      for (int axis = 0; axis < kNumAxes; ++axis) {
        sample[axis] = static_cast<int>(random() % kAxisSizes[axis]);
      }
      if (!IsCall(sample)) continue;
      const std::vector<Pair> pairs = PairsOf(sample);
      const size_t fresh = std::count_if(
          pairs.begin(), pairs.end(),
          [&](const Pair& pair) { return missing.contains(pair); });
      if (!found || fresh > best_new) best = sample;
      best_new = std::max(best_new, fresh);
      found = true;
    }
    for (const Pair& pair : PairsOf(best)) missing.erase(pair);
    samples.push_back(best);
    if (samples.size() > size_t{10} * kSamples) break;  // the test then fails
  }
  return samples;
}

AttentionShape ShapeOf(const Sample& sample) {
  AttentionShape shape;
  shape.dtype = static_cast<DataType>(sample[kType]);
  shape.batch = sample[kBatch] + 1;
  shape.image_tokens = kImageTokens[sample[kImage]];
  shape.text_tokens = kTextTokens[sample[kText]];
  for (int64_t b = 0; b < shape.batch; ++b) {
    // Different for each batch element: 2 and 3 of 5.
    const int64_t part = std::min(shape.text_tokens, shape.text_tokens / 2 + b);
    shape.valid_text_tokens.push_back(
        sample[kValid] == 0 ? 0
                            : (sample[kValid] == 1 ? part : shape.text_tokens));
  }
  shape.order = static_cast<TokenOrder>(sample[kOrder]);
  shape.image_queries_only = sample[kImageQueriesOnly] == 1;
  std::tie(shape.num_heads, shape.num_kv_heads) = kHeads[sample[kHeadCounts]];
  shape.head_dim = kHeadDims[sample[kHeadDim]];
  return shape;
}

AttentionOptions OptionsOf(const Sample& sample, const AttentionShape& shape) {
  AttentionOptions options = DefaultOptions(shape);
  options.schedule =
      sample[kSchedule] == 0 ? HeadSchedule::kFused : HeadSchedule::kPerHead;
  options.precision = kPrecisions[sample[kPrecision]];
  options.kernel = kKernels[sample[kKernel]];
  return options;
}

std::string Describe(const Sample& sample) {
  const AttentionShape shape = ShapeOf(sample);
  const AttentionOptions options = OptionsOf(sample, shape);
  std::ostringstream text;
  text << "P " << kWorldSizes[sample[kWorldSize]] << " B " << shape.batch
       << " S " << shape.image_tokens << " T " << shape.text_tokens << " V "
       << kValidText[sample[kValid]] << " heads " << shape.num_heads << "/"
       << shape.num_kv_heads << " D " << shape.head_dim << " "
       << Name(shape.order)
       << (shape.image_queries_only ? " image queries" : "") << " "
       << Name(shape.dtype) << " " << Name(options.schedule) << " "
       << Name(options.precision) << " " << Name(options.kernel);
  return text.str();
}

// Accepted of a tiny call: a few elements may all be at their worst.
double AcceptedError(const AttentionShape& shape,
                     CommunicationPrecision precision) {
  switch (precision) {
    case CommunicationPrecision::kNative:
      return oracle::AcceptedError(shape.dtype);
    case CommunicationPrecision::kFp8E4m3:
      return 0.12;
    case CommunicationPrecision::kInt8:
      return 0.05;
  }
  return 0;
}

TEST(UlyssesGridTest, EveryPairOfValuesIsSampled) {
  std::set<Pair> missing = AllPairs();
  for (const Sample& sample : Samples()) {
    ASSERT_TRUE(IsCall(sample));
    for (const Pair& pair : PairsOf(sample)) missing.erase(pair);
  }
  EXPECT_TRUE(missing.empty()) << missing.size() << " pairs are missing";
}

TEST(UlyssesGridTest, MatchesTheOracle) {
  // Groups live on from call to call: what one call leaves behind must not
  // show in the next.
  std::map<int, std::unique_ptr<UlyssesTestCaller>> groups;
  std::set<AttentionKernelKind> kernels_seen;
  uint64_t seed = 1;
  for (const Sample& sample : Samples()) {
    const int world_size = kWorldSizes[sample[kWorldSize]];
    std::unique_ptr<UlyssesTestCaller>& group = groups[world_size];
    if (group == nullptr) group = MakeUlyssesTestCaller(world_size);
    const AttentionShape shape = ShapeOf(sample);
    AttentionOptions options = OptionsOf(sample, shape);
    const oracle::CallInputs inputs = oracle::RandomInputs(shape, seed++);
    std::vector<RankReport> reports;
    absl::StatusOr<std::string> output =
        group->Run(shape, options, inputs, &reports);
    if (absl::IsUnimplemented(output.status())) {
      options.kernel = AttentionKernelKind::kAuto;
      output = group->Run(shape, options, inputs, &reports);
    }
    ASSERT_TRUE(output.ok()) << Describe(sample) << ": " << output.status();
    kernels_seen.insert(reports[0].kernel);
    const std::vector<double> expected =
        oracle::Attention(shape, options.softmax_scale, inputs);
    const double error =
        oracle::RelativeL2Error(oracle::Decode(shape.dtype, *output), expected);
    EXPECT_LE(error, AcceptedError(shape, options.precision))
        << Describe(sample);
  }
  for (const AttentionKernelKind kernel : groups[1]->kernels()) {
    EXPECT_TRUE(kernels_seen.contains(kernel)) << Name(kernel);
  }
}

}  // namespace
}  // namespace ithaca
