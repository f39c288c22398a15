#include "kernels/layout_cpu.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/element.h"
#include "kernels/layout.h"

namespace ithaca::kernels {
namespace {

constexpr DataType kDataTypes[] = {DataType::kFloat32, DataType::kFloat16,
                                   DataType::kBFloat16};
constexpr CommunicationPrecision kPrecisions[] = {
    CommunicationPrecision::kFp8E4m3, CommunicationPrecision::kInt8};

// A block of heads inside a larger tensor, with room around it, so that a write
// outside the block shows.
struct Placement {
  int64_t batch = 1;
  int64_t tokens = 1;
  int64_t heads = 1;
  int64_t head_dim = 1;
  int64_t extra_heads = 0;   // of the tensor, beside the block's
  int64_t extra_tokens = 0;  // of each batch element, beside the block's
  int64_t first = 0;         // element the block starts at

  int64_t token_stride() const { return (heads + extra_heads) * head_dim; }
  int64_t batch_stride() const {
    return (tokens + extra_tokens) * token_stride();
  }
  int64_t elements() const { return first + batch * batch_stride(); }
  int64_t Index(int64_t b, int64_t t, int64_t h, int64_t d) const {
    return first + b * batch_stride() + t * token_stride() + h * head_dim + d;
  }
  int64_t rows() const { return batch * tokens * heads; }
  template <typename T, typename Storage>
  HeadBlock<T> Block(std::vector<Storage>& tensor) const {
    return {tensor.data() + first, token_stride(), batch_stride()};
  }
};

// Every element of every row differs, so that a misroute can't pass.
template <typename Storage>
Storage Tag(int64_t b, int64_t t, int64_t h, int64_t d) {
  return static_cast<Storage>(((b * 131 + t) * 137 + h) * 257 + d + 1);
}

template <typename Storage>
void CheckCopy(DataType dtype, const Placement& from, const Placement& to) {
  constexpr Storage kUntouched = 0x5aa5;
  std::vector<Storage> src(from.elements(), 0x1111);
  std::vector<Storage> dst(to.elements(), kUntouched);
  std::vector<Storage> expected = dst;
  for (int64_t b = 0; b < from.batch; ++b) {
    for (int64_t t = 0; t < from.tokens; ++t) {
      for (int64_t h = 0; h < from.heads; ++h) {
        for (int64_t d = 0; d < from.head_dim; ++d) {
          src[from.Index(b, t, h, d)] = Tag<Storage>(b, t, h, d);
          expected[to.Index(b, t, h, d)] = Tag<Storage>(b, t, h, d);
        }
      }
    }
  }
  CopyJob job;
  job.src = from.Block<const void>(src);
  job.dst = to.Block<void>(dst);
  job.batch = from.batch;
  job.tokens = from.tokens;
  job.heads = from.heads;
  LayoutParams params;
  params.dtype = dtype;
  params.head_dim = from.head_dim;
  CopyHeadsCpu(params, {&job, 1});
  EXPECT_EQ(dst, expected);
}

TEST(CopyHeadsTest, PutsEveryElementInItsPlace) {
  for (const int64_t head_dim : {1, 3, 8, 72, 128}) {
    for (const int64_t heads : {1, 3}) {
      for (const int64_t batch : {1, 2}) {
        for (const int64_t tokens : {1, 5}) {
          const Placement dense = {.batch = batch,
                                   .tokens = tokens,
                                   .heads = heads,
                                   .head_dim = head_dim};
          Placement wide = dense;
          wide.extra_heads = 2;
          wide.first = 2 * head_dim;
          Placement joined = dense;  // dense tokens, with others behind them
          joined.extra_tokens = 3;
          for (const Placement& from : {dense, wide, joined}) {
            for (const Placement& to : {dense, wide, joined}) {
              CheckCopy<uint16_t>(DataType::kBFloat16, from, to);
              CheckCopy<uint16_t>(DataType::kFloat16, from, to);
              CheckCopy<uint32_t>(DataType::kFloat32, from, to);
            }
          }
        }
      }
    }
  }
}

TEST(CopyHeadsTest, RunsAllJobsAndSkipsEmptyOnes) {
  std::vector<uint16_t> src = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<uint16_t> dst(8, 0);
  LayoutParams params;
  params.dtype = DataType::kBFloat16;
  params.head_dim = 2;
  // [2 tokens, 2 heads, 2] into heads first, and nothing from nowhere.
  std::vector<CopyJob> jobs(4);
  for (int64_t h = 0; h < 2; ++h) {
    jobs[h].src = {src.data() + 2 * h, 4, 8};
    jobs[h].dst = {dst.data() + 4 * h, 2, 4};
    jobs[h].tokens = 2;
    jobs[h].heads = 1;
  }
  jobs[2].heads = 3;
  jobs[3].tokens = 3;
  CopyHeadsCpu(params, jobs);
  EXPECT_EQ(dst, (std::vector<uint16_t>{1, 2, 5, 6, 3, 4, 7, 8}));
}

// Pack for each of `ranks` destinations, then unpack what was packed: the bits
// come back.
TEST(CopyHeadsTest, UnpackUndoesPack) {
  constexpr int64_t kRanks = 3;
  constexpr int64_t kHeadsPerRank = 2;
  const Placement tensor = {
      .batch = 2, .tokens = 5, .heads = kRanks * kHeadsPerRank, .head_dim = 40};
  std::vector<uint16_t> original(tensor.elements());
  for (size_t i = 0; i < original.size(); ++i) {
    original[i] = static_cast<uint16_t>(i);
  }
  std::vector<uint16_t> packed(original.size());
  std::vector<uint16_t> back(original.size());
  const int64_t chunk = tensor.elements() / kRanks;
  const int64_t run = kHeadsPerRank * tensor.head_dim;
  std::vector<CopyJob> pack(kRanks);
  std::vector<CopyJob> unpack(kRanks);
  for (int64_t r = 0; r < kRanks; ++r) {
    pack[r].src = {original.data() + r * run, tensor.token_stride(),
                   tensor.batch_stride()};
    pack[r].dst = {packed.data() + r * chunk, run, tensor.tokens * run};
    unpack[r].src = {packed.data() + r * chunk, run, tensor.tokens * run};
    unpack[r].dst = {back.data() + r * run, tensor.token_stride(),
                     tensor.batch_stride()};
    for (CopyJob* job : {&pack[r], &unpack[r]}) {
      job->batch = tensor.batch;
      job->tokens = tensor.tokens;
      job->heads = kHeadsPerRank;
    }
  }
  LayoutParams params;
  params.dtype = DataType::kFloat16;
  params.head_dim = tensor.head_dim;
  CopyHeadsCpu(params, pack);
  EXPECT_NE(packed, original);
  CopyHeadsCpu(params, unpack);
  EXPECT_EQ(back, original);
}

// ------------------------------------------------- quantised rows, by formula

// The design's formula in plain, slow code that shares nothing with what it
// checks: codes are found by search, 16-bit values by a table of all of them.
double ElementValue(DataType dtype, uint32_t bits) {
  if (dtype == DataType::kFloat32) return std::bit_cast<float>(bits);
  if (dtype == DataType::kBFloat16) return std::bit_cast<float>(bits << 16);
  const int exponent = static_cast<int>((bits >> 10) & 31);
  const int fraction = static_cast<int>(bits & 0x3ff);
  double magnitude = exponent == 0 ? std::ldexp(fraction, -24)
                                   : std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 31) magnitude = fraction ? std::nan("") : HUGE_VAL;
  return (bits & 0x8000) ? -magnitude : magnitude;
}

double CodeValue(CommunicationPrecision precision, int code) {
  if (precision == CommunicationPrecision::kInt8) {
    return code < 128 ? code : code - 256;
  }
  const int exponent = (code >> 3) & 15;
  const int fraction = code & 7;
  const double magnitude = exponent == 0
                               ? std::ldexp(fraction, -9)
                               : std::ldexp(8 + fraction, exponent - 10);
  return (code & 0x80) ? -magnitude : magnitude;
}

float ReferenceScale(CommunicationPrecision precision, double amax) {
  if (precision == CommunicationPrecision::kInt8) {
    return amax == 0 ? 1.0f : static_cast<float>(amax) / 127.0f;
  }
  return static_cast<float>(std::max(amax, 1.0 / 512)) / 448.0f;
}

// Of a finite quotient. Zeros keep their sign in E4M3.
int ReferenceCode(CommunicationPrecision precision, float quotient) {
  if (precision == CommunicationPrecision::kInt8) {
    const double rounded = std::nearbyint(std::fabs(quotient));
    const int code = static_cast<int>(std::min(rounded, 127.0));
    return (quotient < 0 ? -code : code) & 0xff;
  }
  int best = 0;
  for (int code = 0; code < 0x7f; ++code) {
    const double distance =
        std::fabs(std::fabs(quotient) - CodeValue(precision, code));
    const double least =
        std::fabs(std::fabs(quotient) - CodeValue(precision, best));
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(quotient) ? 0x80 : 0);
}

// A spread of magnitudes, by position; finite.
double Sample(int64_t b, int64_t t, int64_t h, int64_t d) {
  const int64_t mix = ((b * 31 + t) * 37 + h) * 41 + d * 43 + 7;
  const double fraction =
      static_cast<double>((mix * 2654435761) % 4093 - 2046) / 1024;
  return std::ldexp(fraction, static_cast<int>((t * 5 + h) % 9) - 4);
}

template <DataType T>
void CheckRoundTrip(CommunicationPrecision precision, const Placement& place) {
  using Storage = typename Element<T>::Storage;
  std::vector<Storage> src(place.elements(), 0);
  for (int64_t b = 0; b < place.batch; ++b) {
    for (int64_t t = 0; t < place.tokens; ++t) {
      for (int64_t h = 0; h < place.heads; ++h) {
        for (int64_t d = 0; d < place.head_dim; ++d) {
          src[place.Index(b, t, h, d)] = Element<T>::Round(
              static_cast<float>(t == 3 ? 0.0 : Sample(b, t, h, d)));
        }
      }
    }
  }
  std::vector<uint8_t> payload(place.rows() * place.head_dim, 0xee);
  std::vector<float> scales(place.rows(), -1);
  QuantizeJob quantize;
  quantize.src = place.Block<const void>(src);
  quantize.payload = payload.data();
  quantize.scales = scales.data();
  quantize.batch = place.batch;
  quantize.tokens = place.tokens;
  quantize.heads = place.heads;
  LayoutParams params;
  params.dtype = T;
  params.head_dim = place.head_dim;
  params.precision = precision;
  QuantizeHeadsCpu(params, {&quantize, 1});

  constexpr Storage kUntouched = 0x1234;
  std::vector<Storage> dst(place.elements(), kUntouched);
  DequantizeJob dequantize;
  dequantize.payload = payload.data();
  dequantize.scales = scales.data();
  dequantize.dst = place.Block<void>(dst);
  dequantize.batch = place.batch;
  dequantize.tokens = place.tokens;
  dequantize.heads = place.heads;
  DequantizeHeadsCpu(params, {&dequantize, 1});

  int64_t row = 0;
  int64_t touched = 0;
  for (int64_t b = 0; b < place.batch; ++b) {
    for (int64_t t = 0; t < place.tokens; ++t) {
      for (int64_t h = 0; h < place.heads; ++h, ++row) {
        double amax = 0;
        for (int64_t d = 0; d < place.head_dim; ++d) {
          amax = std::max(
              amax, std::fabs(ElementValue(T, src[place.Index(b, t, h, d)])));
        }
        const float scale = ReferenceScale(precision, amax);
        ASSERT_EQ(scales[row], scale) << b << " " << t << " " << h;
        for (int64_t d = 0; d < place.head_dim; ++d) {
          const int64_t at = place.Index(b, t, h, d);
          const float quotient =
              static_cast<float>(ElementValue(T, src[at])) / scale;
          const int code = payload[row * place.head_dim + d];
          ASSERT_EQ(code, ReferenceCode(precision, quotient))
              << ElementValue(T, src[at]) << " / " << scale;
          const float product =
              static_cast<float>(CodeValue(precision, code)) * scale;
          // Element<T>::Round has a test of its own.
          ASSERT_EQ(dst[at], Element<T>::Round(product));
          if (t == 3) {
            ASSERT_EQ(ElementValue(T, dst[at]), 0.0);
          }
          ++touched;
        }
      }
    }
  }
  int64_t untouched = 0;
  for (const Storage bits : dst) untouched += bits == kUntouched ? 1 : 0;
  EXPECT_GE(untouched, place.elements() - touched);
}

class QuantizeHeadsTest : public ::testing::TestWithParam<
                              std::tuple<DataType, CommunicationPrecision>> {
 protected:
  DataType dtype() const { return std::get<0>(GetParam()); }
  CommunicationPrecision precision() const { return std::get<1>(GetParam()); }

  void Check(const Placement& place) const {
    switch (dtype()) {
      case DataType::kFloat32:
        return CheckRoundTrip<DataType::kFloat32>(precision(), place);
      case DataType::kFloat16:
        return CheckRoundTrip<DataType::kFloat16>(precision(), place);
      case DataType::kBFloat16:
        return CheckRoundTrip<DataType::kBFloat16>(precision(), place);
    }
  }

  LayoutParams Params(int64_t head_dim) const {
    LayoutParams params;
    params.dtype = dtype();
    params.head_dim = head_dim;
    params.precision = precision();
    return params;
  }
};

INSTANTIATE_TEST_SUITE_P(All, QuantizeHeadsTest,
                         ::testing::Combine(::testing::ValuesIn(kDataTypes),
                                            ::testing::ValuesIn(kPrecisions)),
                         [](const auto& info) {
                           return std::string(Name(std::get<0>(info.param))) +
                                  "_" +
                                  std::string(Name(std::get<1>(info.param)));
                         });

TEST_P(QuantizeHeadsTest, FollowsTheFormulaForEveryHeadDim) {
  for (int64_t head_dim = 1; head_dim <= 256; ++head_dim) {
    Check({.tokens = 4, .heads = 1, .head_dim = head_dim});
    if (HasFatalFailure()) FAIL() << "head_dim " << head_dim;
  }
}

TEST_P(QuantizeHeadsTest, FollowsTheFormulaThroughStridesAndBatches) {
  for (const int64_t head_dim : {1, 40, 64, 72, 128}) {
    for (const int64_t heads : {1, 2, 5}) {
      Check({.batch = 2,
             .tokens = 6,
             .heads = heads,
             .head_dim = head_dim,
             .extra_heads = 3,
             .extra_tokens = 2,
             .first = head_dim});
      if (HasFatalFailure()) FAIL() << head_dim << " " << heads;
    }
  }
}

// Rows of `values` there and back, as numbers.
template <DataType T>
std::vector<double> TypedThereAndBack(const LayoutParams& params,
                                      const std::vector<float>& values) {
  using Storage = typename Element<T>::Storage;
  const auto rows = static_cast<int64_t>(values.size()) / params.head_dim;
  std::vector<Storage> tensor;
  tensor.reserve(values.size());
  for (const float value : values) tensor.push_back(Element<T>::Round(value));
  std::vector<uint8_t> payload(values.size());
  std::vector<float> scales(rows);
  QuantizeJob quantize;
  quantize.src = {tensor.data(), params.head_dim, 0};
  quantize.payload = payload.data();
  quantize.scales = scales.data();
  quantize.tokens = rows;
  quantize.heads = 1;
  QuantizeHeadsCpu(params, {&quantize, 1});
  DequantizeJob dequantize;
  dequantize.payload = payload.data();
  dequantize.scales = scales.data();
  dequantize.dst = {tensor.data(), params.head_dim, 0};
  dequantize.tokens = rows;
  dequantize.heads = 1;
  DequantizeHeadsCpu(params, {&dequantize, 1});
  std::vector<double> back;
  back.reserve(tensor.size());
  for (const Storage bits : tensor) back.push_back(ElementValue(T, bits));
  return back;
}

std::vector<double> ThereAndBack(const LayoutParams& params,
                                 const std::vector<float>& values) {
  switch (params.dtype) {
    case DataType::kFloat16:
      return TypedThereAndBack<DataType::kFloat16>(params, values);
    case DataType::kBFloat16:
      return TypedThereAndBack<DataType::kBFloat16>(params, values);
    case DataType::kFloat32:
      break;
  }
  return TypedThereAndBack<DataType::kFloat32>(params, values);
}

TEST_P(QuantizeHeadsTest, NothingFiniteComesOfARowThatIsNot) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr int64_t kHeadDim = 72;
  for (const double poison : {kInfinity, -kInfinity, std::nan("")}) {
    for (const int64_t at : {0, 31, 71}) {
      // A row with the poison between two good rows.
      std::vector<float> values(3 * kHeadDim, 1.5f);
      values[kHeadDim + at] = static_cast<float>(poison);
      values[kHeadDim + (at + 1) % kHeadDim] = 0;
      const std::vector<double> back = ThereAndBack(Params(kHeadDim), values);
      for (int64_t d = 0; d < kHeadDim; ++d) {
        EXPECT_NEAR(back[d], 1.5, 0.01);
        EXPECT_FALSE(std::isfinite(back[kHeadDim + d])) << d;
        EXPECT_NEAR(back[2 * kHeadDim + d], 1.5, 0.01);
      }
      if (std::isinf(poison)) {
        EXPECT_EQ(back[kHeadDim + at], poison);
      } else {
        EXPECT_TRUE(std::isnan(back[kHeadDim + at]));
      }
    }
  }
}

TEST_P(QuantizeHeadsTest, TinyAndHugeRowsStayFinite) {
  const float largest = dtype() == DataType::kFloat32    ? 0x1.fffffep127f
                        : dtype() == DataType::kBFloat16 ? 0x1.fep127f
                                                         : 65504.0f;
  for (const float wanted : {0x1p-149f, 0x1p-144f, 0x1p-143f, 0x1p-133f,
                             0x1p-120f, 0x1p-24f, 6e4f, 1e30f, largest}) {
    const float value = std::min(wanted, largest);
    std::vector<float> values(16, value);
    values[3] = -value;
    values[5] = 0;
    const std::vector<double> back = ThereAndBack(Params(16), values);
    for (const double element : back) {
      EXPECT_TRUE(std::isfinite(element)) << value;
    }
    EXPECT_EQ(back[5], 0.0);
  }
}

TEST_P(QuantizeHeadsTest, EveryBFloat16FollowsTheFormula) {
  if (dtype() != DataType::kBFloat16) GTEST_SKIP() << "bfloat16 alone";
  // Each finite value in a row with 1, with itself, and with 448 of itself.
  for (uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const float value = std::bit_cast<float>(bits << 16);
    for (const float other : {1.0f, value, value * 448}) {
      const std::vector<uint16_t> row = {
          static_cast<uint16_t>(bits), static_cast<uint16_t>(bits | 0x8000),
          Element<DataType::kBFloat16>::Round(other)};
      const double amax =
          std::max<double>(value, ElementValue(DataType::kBFloat16, row[2]));
      if (!std::isfinite(amax)) continue;
      std::vector<uint8_t> payload(3);
      float scale = -1;
      QuantizeJob job;
      job.src = {row.data(), 3, 3};
      job.payload = payload.data();
      job.scales = &scale;
      job.tokens = 1;
      job.heads = 1;
      QuantizeHeadsCpu(Params(3), {&job, 1});
      ASSERT_EQ(scale, ReferenceScale(precision(), amax)) << value;
      if (scale == 0) continue;
      ASSERT_EQ(payload[0], ReferenceCode(precision(), value / scale)) << value;
      ASSERT_EQ(payload[1], ReferenceCode(precision(), -value / scale))
          << value;
    }
  }
}

}  // namespace
}  // namespace ithaca::kernels
