// Calls whose right answer is known exactly, on every kernel, schedule and
// precision that ought to give it: each a kind of fault that others met.

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/oracle/attention_oracle.h"
#include "tests/oracle/tensor_data.h"
#include "worker/ulysses_test_caller.h"

namespace ithaca {
namespace {

using oracle::ElementFunction;

constexpr CommunicationPrecision kAllPrecisions[] = {
    CommunicationPrecision::kNative, CommunicationPrecision::kFp8E4m3,
    CommunicationPrecision::kInt8};
constexpr DataType kAllTypes[] = {DataType::kFloat32, DataType::kFloat16,
                                  DataType::kBFloat16};

AttentionShape Shape(int64_t batch, int64_t image, int64_t text,
                     std::vector<int64_t> valid, int64_t heads,
                     int64_t head_dim) {
  AttentionShape shape;
  shape.batch = batch;
  shape.image_tokens = image;
  shape.text_tokens = text;
  shape.valid_text_tokens = std::move(valid);
  shape.num_heads = heads;
  shape.num_kv_heads = heads;
  shape.head_dim = head_dim;
  return shape;
}

AttentionShape ImageShape(int64_t image, int64_t heads, int64_t head_dim) {
  return Shape(1, image, 0, {0}, heads, head_dim);
}

// Groups live on from call to call and from test to test: what one call leaves
// behind must not show in the next.
std::map<int, std::unique_ptr<UlyssesTestCaller>>& Groups() {
  static auto* const groups =
      new std::map<int, std::unique_ptr<UlyssesTestCaller>>();
  return *groups;
}

UlyssesTestCaller& GroupOf(int world_size) {
  std::unique_ptr<UlyssesTestCaller>& group = Groups()[world_size];
  if (group == nullptr) group = MakeUlyssesTestCaller(world_size);
  return *group;
}

class UlyssesExactTest : public testing::Test {
 protected:
  static void TearDownTestSuite() { Groups().clear(); }
};

struct Variant {
  AttentionOptions options;
  std::string name;
};

// Every kernel and schedule with NATIVE communication or all precisions.
std::vector<Variant> Variants(const AttentionShape& shape,
                              bool all_precisions) {
  std::vector<Variant> variants;
  for (AttentionKernelKind kernel :
       {AttentionKernelKind::kMath, AttentionKernelKind::kFlash,
        AttentionKernelKind::kCudnn}) {
    for (HeadSchedule schedule :
         {HeadSchedule::kFused, HeadSchedule::kPerHead}) {
      for (CommunicationPrecision precision : kAllPrecisions) {
        if (!all_precisions && precision != CommunicationPrecision::kNative) {
          continue;
        }
        Variant variant{DefaultOptions(shape), ""};
        variant.options.kernel = kernel;
        variant.options.schedule = schedule;
        variant.options.precision = precision;
        for (std::string_view part :
             {Name(kernel), Name(schedule), Name(precision)}) {
          variant.name.append(part).append(" ");
        }
        variants.push_back(variant);
      }
    }
  }
  return variants;
}

// A kernel that the device lacks, or not for this call, gives its place to
// AUTO.
std::vector<double> RunCall(UlyssesTestCaller& group,
                            const AttentionShape& shape,
                            AttentionOptions options,
                            const oracle::CallInputs& inputs) {
  absl::StatusOr<std::string> output = group.Run(shape, options, inputs);
  if (absl::IsUnimplemented(output.status())) {
    options.kernel = AttentionKernelKind::kAuto;
    output = group.Run(shape, options, inputs);
  }
  EXPECT_TRUE(output.ok()) << output.status();
  return output.ok() ? oracle::Decode(shape.dtype, *output)
                     : std::vector<double>();
}

std::vector<double> Expected(const AttentionShape& shape,
                             const ElementFunction& expected) {
  AttentionShape exact = shape;
  exact.dtype = DataType::kFloat32;
  return oracle::Decode(exact.dtype, oracle::FillQuery(exact, expected));
}

// Relative to the expected value; 0 = exactly.
void ExpectOutput(UlyssesTestCaller& group, const AttentionShape& shape,
                  const AttentionOptions& options,
                  const oracle::CallInputs& inputs,
                  const std::vector<double>& expected, double tolerance,
                  const std::string& name) {
  const std::vector<double> output = RunCall(group, shape, options, inputs);
  ASSERT_EQ(output.size(), expected.size()) << name;
  for (size_t i = 0; i < output.size(); ++i) {
    ASSERT_NEAR(output[i], expected[i], tolerance * std::abs(expected[i]))
        << name << "at " << i << " of S " << shape.image_tokens << " T "
        << shape.text_tokens << " " << Name(shape.dtype) << " P "
        << group.world_size();
  }
}

void ExpectOutput(int world_size, const AttentionShape& shape,
                  bool all_precisions, const oracle::CallInputs& inputs,
                  const std::vector<double>& expected, double tolerance = 0) {
  UlyssesTestCaller& group = GroupOf(world_size);
  for (const Variant& variant : Variants(shape, all_precisions)) {
    ExpectOutput(group, shape, variant.options, inputs, expected, tolerance,
                 variant.name);
  }
}

// PICK and TAG: any mix-up of token, head or batch element shows. An 8-bit tag
// is exact in 16 bits and to a rounding in float32.
void ExpectPickedTags(int world_size, const AttentionShape& shape) {
  ExpectOutput(world_size, shape, true,
               oracle::PickInputs(shape,
                                  [&shape](auto b, auto t, auto g, auto) {
                                    return oracle::Tag(shape, b, t, g);
                                  }),
               oracle::PickTagOutput(shape),
               shape.dtype == DataType::kFloat32 ? 1e-6 : 0);
}

TEST_F(UlyssesExactTest, PaddedTextKeysHaveNoWeightInEitherOrder) {
  AttentionShape shape = Shape(1, 4, 8, {2}, 2, 8);
  for (TokenOrder order : {TokenOrder::kTextFirst, TokenOrder::kImageFirst}) {
    shape.order = order;
    const bool text_first = order == TokenOrder::kTextFirst;
    const oracle::CallInputs inputs =
        oracle::ZeroInputs(shape, [&](auto, auto t, auto, auto) {
          const bool text = text_first ? t < 8 : t >= 4;
          const int64_t index = text_first ? t : t - 4;
          return !text ? 2.0 : (index < 2 ? 1.0 : 100.0);
        });
    const std::vector<double> expected =
        Expected(shape, [&](auto, auto i, auto, auto) {
          return oracle::QueryIsPadding(shape, 0, i) ? 0.0 : 10.0 / 6.0;
        });
    ExpectOutput(2, shape, true, inputs, expected, 1e-6);
  }
}

TEST_F(UlyssesExactTest, UnevenSharesAddNoPaddingKeys) {
  for (int64_t tokens : {1, 13, 15, 1021}) {
    const AttentionShape shape = ImageShape(tokens, 4, 8);
    ExpectOutput(4, shape, true,
                 oracle::ZeroInputs(shape, [](auto...) { return 1; }),
                 Expected(shape, [](auto...) { return 1; }), 1e-6);
  }
  const AttentionShape shape = ImageShape(13, 4, 8);
  ExpectOutput(
      4, shape, false,
      oracle::ZeroInputs(shape, [](auto, auto t, auto, auto) { return t; }),
      Expected(shape, [](auto...) { return 6; }), 1e-6);
}

TEST_F(UlyssesExactTest, AnyTokenCountWorksOnAnyGroup) {
  for (int world_size : {2, 4}) {
    for (int64_t tokens : {1, 2, 3, 5, 7, 13}) {
      for (DataType dtype : kAllTypes) {
        AttentionShape shape = ImageShape(tokens, 4, 64);
        shape.dtype = dtype;
        ExpectPickedTags(world_size, shape);
      }
    }
  }
}

TEST_F(UlyssesExactTest, LongOddTextIsWholeOnEveryRank) {
  AttentionShape shape = Shape(1, 64, 1241, {1241}, 2, 64);
  shape.dtype = DataType::kBFloat16;
  const oracle::CallInputs inputs = {
      oracle::FillQuery(shape,
                        [](auto, auto i, auto, auto d) {
                          return (i + 1) % 64 == d ? 32 : 0;
                        }),
      oracle::FillKey(shape, [](auto, auto t, auto,
                                auto d) { return t % 64 == d ? 32 : 0; }),
      oracle::FillKey(shape, [](auto, auto t, auto, auto) { return t % 64; })};
  ExpectOutput(
      2, shape, false, inputs,
      Expected(shape, [](auto, auto i, auto, auto) { return (i + 1) % 64; }));
}

TEST_F(UlyssesExactTest, BatchElementsNeverMix) {
  for (int world_size : {2, 4}) {
    for (DataType dtype : kAllTypes) {
      AttentionShape shape = Shape(2, 8, 0, {0, 0}, 4, 64);
      shape.dtype = dtype;
      ExpectPickedTags(world_size, shape);
    }
  }
}

TEST_F(UlyssesExactTest, HeadsComeBackInOrder) {
  for (DataType dtype : kAllTypes) {
    AttentionShape shape = ImageShape(8, 8, 64);
    shape.dtype = dtype;
    ExpectPickedTags(4, shape);
    ExpectPickedTags(3, shape);
  }
}

TEST_F(UlyssesExactTest, QueryHeadsMeetTheirKeyHeads) {
  struct Case {
    int64_t heads;
    int64_t kv_heads;
    int world_size;
  };
  for (const Case& c :
       {Case{28, 7, 2}, Case{8, 2, 4}, Case{28, 7, 3}, Case{8, 1, 3}}) {
    AttentionShape shape = ImageShape(5, c.heads, 8);
    shape.num_kv_heads = c.kv_heads;
    const int64_t group = c.heads / c.kv_heads;
    ExpectOutput(
        c.world_size, shape, true,
        oracle::ZeroInputs(shape, [](auto, auto, auto g, auto) { return g; }),
        Expected(shape,
                 [group](auto, auto, auto h, auto) { return h / group; }),
        1e-6);
  }
}

TEST_F(UlyssesExactTest, HeadCountsThatDoNotDivideAreRefused) {
  AttentionShape shape = ImageShape(4, 7, 8);
  shape.num_kv_heads = 2;
  UlyssesTestCaller& group = GroupOf(2);
  EXPECT_EQ(group
                .Run(shape, DefaultOptions(shape),
                     oracle::ZeroInputs(shape, [](auto...) { return 0; }))
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(UlyssesExactTest, ARowWithoutAKeptKeyIsZero) {
  // Element 0 keeps no key at all, element 1 keeps one of its three.
  const AttentionShape shape = Shape(2, 0, 3, {0, 1}, 2, 8);
  ExpectOutput(
      2, shape, true,
      oracle::ZeroInputs(shape, [](auto, auto t, auto, auto) { return 7 + t; }),
      Expected(shape, [](auto b, auto i, auto, auto) {
        return b == 1 && i == 0 ? 7 : 0;
      }));
}

TEST_F(UlyssesExactTest, NoKernelDropsTheMask) {
  // Only one of ten keys is kept; were the others, 4.5 would come out.
  AttentionShape shape = Shape(1, 1, 9, {0}, 8, 64);
  shape.image_queries_only = true;
  for (DataType dtype : kAllTypes) {
    shape.dtype = dtype;
    for (int world_size : {1, 2, 4}) {
      ExpectOutput(
          world_size, shape, true,
          oracle::ZeroInputs(shape, [](auto, auto t, auto,
                                       auto) { return t == 0 ? 9 : t - 1; }),
          Expected(shape, [](auto...) { return 9; }), 1e-6);
    }
  }
  // Valid counts what is kept, not what is hidden.
  const AttentionShape half = Shape(1, 0, 4, {2}, 2, 8);
  ExpectOutput(
      2, half, true,
      oracle::ZeroInputs(
          half, [](auto, auto t, auto, auto) { return t < 2 ? 1 : 9; }),
      Expected(half, [](auto, auto i, auto, auto) { return i < 2 ? 1 : 0; }));
}

TEST_F(UlyssesExactTest, EachBatchElementHasItsOwnValidLength) {
  for (const std::vector<int64_t>& valid :
       {std::vector<int64_t>{3, 8}, std::vector<int64_t>{0, 8}}) {
    const AttentionShape shape = Shape(2, 4, 8, valid, 2, 8);
    ExpectOutput(2, shape, true,
                 oracle::ZeroInputs(shape,
                                    [&shape](auto b, auto t, auto, auto) {
                                      return oracle::KeyIsKept(shape, b, t) ? 1
                                                                            : 9;
                                    }),
                 Expected(shape,
                          [&shape](auto b, auto i, auto, auto) {
                            return oracle::QueryIsPadding(shape, b, i) ? 0 : 1;
                          }),
                 1e-6);
  }
  const AttentionShape no_text = Shape(2, 4, 0, {0, 0}, 2, 8);
  ExpectOutput(
      2, no_text, false,
      oracle::ZeroInputs(no_text, [](auto, auto t, auto, auto) { return t; }),
      Expected(no_text, [](auto...) { return 1.5; }), 1e-6);
}

TEST_F(UlyssesExactTest, EveryHeadDimIsRight) {
  for (int64_t head_dim : {40, 64, 72, 80, 96, 128, 160, 256}) {
    for (DataType dtype : kAllTypes) {
      AttentionShape shape = ImageShape(8, 4, head_dim);
      shape.dtype = dtype;
      // From a tag of 1 on: a value of 0 shows traces of the other keys.
      ExpectOutput(2, shape, true,
                   oracle::PickInputs(shape,
                                      [&shape](auto b, auto t, auto g, auto) {
                                        return 1 + oracle::Tag(shape, b, t, g);
                                      }),
                   Expected(shape,
                            [&shape](auto b, auto i, auto h, auto) {
                              return 1 + oracle::Tag(
                                             shape, b,
                                             oracle::PickedKey(shape, b, i), h);
                            }),
                   dtype == DataType::kFloat32 ? 1e-6 : 0);
    }
  }
}

TEST_F(UlyssesExactTest, TheScaleIsOfTheCallersHeadDim) {
  for (int64_t head_dim : {64, 72, 80, 96, 128, 256}) {
    const AttentionShape shape = ImageShape(2, 2, head_dim);
    const oracle::CallInputs inputs = {
        oracle::FillQuery(
            shape, [](auto, auto, auto, auto d) { return d == 0 ? 4 : 0; }),
        oracle::FillKey(shape, [](auto, auto t, auto,
                                  auto d) { return t == 0 && d == 0 ? 4 : 0; }),
        oracle::FillKey(
            shape, [](auto, auto t, auto, auto) { return t == 0 ? 64 : 0; })};
    const double expected =
        64 / (1 + std::exp(-16 / std::sqrt(static_cast<double>(head_dim))));
    ExpectOutput(2, shape, false, inputs,
                 Expected(shape, [expected](auto...) { return expected; }),
                 1e-5);
    UlyssesTestCaller& group = GroupOf(2);
    AttentionOptions options = DefaultOptions(shape);
    options.softmax_scale = 1.0;
    ExpectOutput(group, shape, options, inputs,
                 Expected(shape, [](auto...) { return 64; }), 1e-5, "scale 1 ");
  }
}

TEST_F(UlyssesExactTest, QuantizedZerosStayZero) {
  const AttentionShape shape = ImageShape(8, 4, 64);
  const ElementFunction ones = [](auto...) { return 1; };
  const ElementFunction no_channel_5 = [](auto, auto, auto, auto d) {
    return d == 5 ? 0 : 1;
  };
  const ElementFunction zeros = [](auto...) { return 0; };
  for (const ElementFunction& value : {ones, no_channel_5, zeros}) {
    ExpectOutput(2, shape, true, oracle::ZeroInputs(shape, value),
                 Expected(shape, value), 1e-6);
  }
  // One head all zero beside three that are not.
  oracle::CallInputs inputs =
      oracle::PickInputs(shape, [&shape](auto b, auto t, auto g, auto) {
        return g == 0 ? 0 : oracle::Tag(shape, b, t, g);
      });
  std::vector<double> keys = oracle::Decode(shape.dtype, inputs.key);
  std::vector<double> queries = oracle::Decode(shape.dtype, inputs.query);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i / 64 % 4 == 0) keys[i] = queries[i] = 0;
  }
  inputs.key = oracle::Encode(shape.dtype, keys);
  inputs.query = oracle::Encode(shape.dtype, queries);
  std::vector<double> expected = oracle::PickTagOutput(shape);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (i / 64 % 4 == 0) expected[i] = 0;
  }
  ExpectOutput(2, shape, true, inputs, expected, 1e-6);
}

TEST_F(UlyssesExactTest, ALargerCallAfterASmallOneIsRight) {
  const AttentionShape shape = ImageShape(8, 4, 64);
  UlyssesTestCaller& group = GroupOf(2);
  for (double value : {1.0, 1000.0, 1.0}) {
    for (const Variant& variant : Variants(shape, true)) {
      ExpectOutput(group, shape, variant.options,
                   oracle::ZeroInputs(shape, [=](auto...) { return value; }),
                   Expected(shape, [=](auto...) { return value; }), 1e-6,
                   variant.name);
    }
  }
}

TEST_F(UlyssesExactTest, QuantizedTinyValuesStayTiny) {
  const AttentionShape shape = ImageShape(8, 4, 64);
  const double tiny = std::ldexp(1.0, -120);
  UlyssesTestCaller& group = GroupOf(2);
  for (const Variant& variant : Variants(shape, true)) {
    for (double out :
         RunCall(group, shape, variant.options,
                 oracle::ZeroInputs(shape, [=](auto...) { return tiny; }))) {
      EXPECT_TRUE(out == 0 || std::abs(out - tiny) <= 0.0625 * tiny)
          << variant.name << out;
    }
  }
}

TEST_F(UlyssesExactTest, AnInfinityNeverBecomesANumber) {
  const double infinity = std::numeric_limits<double>::infinity();
  UlyssesTestCaller& group = GroupOf(2);
  for (DataType dtype : kAllTypes) {
    AttentionShape shape = ImageShape(8, 4, 64);
    shape.dtype = dtype;
    for (const Variant& variant : Variants(shape, true)) {
      for (double out :
           RunCall(group, shape, variant.options,
                   oracle::ZeroInputs(shape, [=](auto, auto t, auto, auto) {
                     return t == 0 ? infinity : 1.0;
                   }))) {
        EXPECT_FALSE(std::isfinite(out)) << variant.name;
        if (variant.options.precision == CommunicationPrecision::kNative) {
          EXPECT_EQ(out, infinity) << variant.name;
        }
      }
    }
  }
}

TEST_F(UlyssesExactTest, LogitsPastFloat16AreNotLost) {
  for (int heads : {1, 2}) {
    AttentionShape shape = ImageShape(2, heads, 64);
    shape.dtype = DataType::kFloat16;
    const oracle::CallInputs inputs = {
        oracle::FillQuery(shape, [](auto...) { return 120; }),
        oracle::FillKey(shape,
                        [](auto, auto t, auto, auto) { return 120 - t; }),
        oracle::FillKey(shape,
                        [](auto, auto t, auto, auto) { return 3 + 4 * t; })};
    ExpectOutput(heads, shape, false, inputs,
                 Expected(shape, [](auto...) { return 3; }));
  }
}

TEST_F(UlyssesExactTest, OneQueryIsOrdinary) {
  // One image query, five keys, grouped heads.
  AttentionShape shape = Shape(1, 1, 4, {4}, 8, 128);
  shape.num_kv_heads = 2;
  shape.image_queries_only = true;
  for (int world_size : {1, 2, 4}) {
    ExpectOutput(
        world_size, shape, true,
        oracle::ZeroInputs(shape,
                           [](auto, auto, auto g, auto) { return 1 + g; }),
        Expected(shape, [](auto, auto, auto h, auto) { return 1 + h / 4; }),
        1e-6);
  }
  // No query in one batch element, one in the other.
  const AttentionShape ragged = Shape(2, 0, 1, {0, 1}, 8, 8);
  ExpectOutput(4, ragged, false,
               oracle::ZeroInputs(
                   ragged, [](auto, auto, auto g, auto) { return 1 + g; }),
               Expected(ragged, [](auto b, auto, auto h, auto) {
                 return b == 0 ? 0 : 1 + h;
               }));
  const AttentionShape one = ImageShape(1, 8, 8);
  ExpectOutput(
      4, one, true,
      oracle::ZeroInputs(one, [](auto, auto, auto g, auto) { return 1 + g; }),
      Expected(one, [](auto, auto, auto h, auto) { return 1 + h; }), 1e-6);
}

TEST_F(UlyssesExactTest, EveryQuerySeesEveryRanksKeys) {
  const AttentionShape shape = ImageShape(8, 2, 8);
  ExpectOutput(2, shape, true,
               oracle::ZeroInputs(shape, [](auto, auto t, auto,
                                            auto) { return t < 4 ? 0 : 2; }),
               Expected(shape, [](auto...) { return 1; }), 1e-6);
}

TEST_F(UlyssesExactTest, GroupsAtOnceKeepToThemselves) {
  const AttentionShape shape = ImageShape(8, 8, 64);
  auto run = [&shape](double offset) {
    const std::unique_ptr<UlyssesTestCaller> own = MakeUlyssesTestCaller(2);
    UlyssesTestCaller& group = *own;
    const oracle::CallInputs inputs = oracle::PickInputs(
        shape, [&shape, offset](auto b, auto t, auto g, auto) {
          return oracle::Tag(shape, b, t, g) + offset;
        });
    std::vector<double> expected = oracle::PickTagOutput(shape);
    for (double& value : expected) value += offset;
    for (int i = 0; i < 50; ++i) {
      ExpectOutput(group, shape, DefaultOptions(shape), inputs, expected, 0,
                   "offset ");
    }
  };
  std::thread other(run, 100.0);
  run(0.0);
  other.join();
}

TEST_F(UlyssesExactTest, Float32KeepsItsPrecision) {
  const AttentionShape shape = ImageShape(2, 2, 8);
  ExpectOutput(
      2, shape, false,
      oracle::ZeroInputs(shape,
                         [](auto, auto t, auto, auto) {
                           return t == 0 ? 1.0 : 1.0 + std::ldexp(1.0, -20);
                         }),
      Expected(shape, [](auto...) { return 1.0 + std::ldexp(1.0, -21); }),
      1.2e-7);
}

}  // namespace
}  // namespace ithaca
