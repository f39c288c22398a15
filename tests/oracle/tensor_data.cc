#include "tests/oracle/tensor_data.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace ithaca::oracle {

namespace {

// A binary interchange format: value = fraction * 2^exponent.
struct Format {
  int fraction_bits;
  int exponent_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int bytes() const { return (1 + exponent_bits + fraction_bits) / 8; }
};

Format FormatOf(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return {10, 5};
    case DataType::kBFloat16:
      return {7, 8};
    case DataType::kFloat32:
      break;
  }
  return {23, 8};
}

uint32_t EncodeOne(const Format& format, double value) {
  const uint32_t sign = std::signbit(value) ? 1 : 0;
  const uint32_t top_exponent = (1u << format.exponent_bits) - 1;
  const auto assemble = [&](uint32_t exponent, uint32_t fraction) {
    return (((sign << format.exponent_bits) | exponent)
            << format.fraction_bits) |
           fraction;
  };
  if (std::isnan(value)) {
    return assemble(top_exponent, 1u << (format.fraction_bits - 1));
  }
  if (std::isinf(value)) return assemble(top_exponent, 0);
  if (value == 0) return assemble(0, 0);
  // In steps of the last place at the value's own exponent, or of the
  // subnormals'. nearbyint rounds half to even.
  const int exponent = std::max(std::ilogb(value), 1 - format.bias());
  const double steps = std::nearbyint(
      std::ldexp(std::fabs(value), format.fraction_bits - exponent));
  // Adding the steps to the exponent field carries as it should: into the
  // exponent when rounding reaches a power of two, and up to infinity.
  const int64_t one = int64_t{1} << format.fraction_bits;
  const int64_t bits =
      (exponent + format.bias() - 1) * one + static_cast<int64_t>(steps);
  if (bits >= top_exponent * one) return assemble(top_exponent, 0);
  return assemble(0, 0) | static_cast<uint32_t>(bits);
}

double DecodeOne(const Format& format, uint32_t bits) {
  const uint32_t top_exponent = (1u << format.exponent_bits) - 1;
  const uint32_t fraction = bits & ((1u << format.fraction_bits) - 1);
  const uint32_t exponent = (bits >> format.fraction_bits) & top_exponent;
  const bool negative =
      (bits >> (format.fraction_bits + format.exponent_bits)) & 1;
  double value = 0;
  if (exponent == top_exponent) {
    value = fraction ? std::numeric_limits<double>::quiet_NaN()
                     : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(fraction, 1 - format.bias() - format.fraction_bits);
  } else {
    value = std::ldexp(
        fraction + (1u << format.fraction_bits),
        static_cast<int>(exponent) - format.bias() - format.fraction_bits);
  }
  return negative ? -value : value;
}

std::string Fill(const AttentionShape& shape, int64_t tokens, int64_t heads,
                 const ElementFunction& fn) {
  std::vector<double> values;
  values.reserve(shape.batch * tokens * heads * shape.head_dim);
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          values.push_back(fn(b, t, h, d));
        }
      }
    }
  }
  return Encode(shape.dtype, values);
}

// The index within the text of row t of a token axis with `text_tokens` text
// tokens beside the image; negative or at least text_tokens for an image row.
int64_t TextIndex(const AttentionShape& shape, int64_t t) {
  return shape.order == TokenOrder::kTextFirst ? t : t - shape.image_tokens;
}

bool IsText(const AttentionShape& shape, int64_t t) {
  const int64_t index = TextIndex(shape, t);
  return index >= 0 && index < shape.text_tokens;
}

// Standard normal values by Box-Muller over mt19937_64, whose output the
// standard fixes (std::normal_distribution's it does not).
class NormalSource {
 public:
  explicit NormalSource(uint64_t seed) : bits_(seed) {}

  double Next() {
    constexpr double kTwoPi = 6.283185307179586;
    const double radius = std::sqrt(-2 * std::log(Uniform()));
    return radius * std::cos(kTwoPi * Uniform());
  }

 private:
  // In (0, 1).
  double Uniform() {
    return (static_cast<double>(bits_() >> 11) + 0.5) * 0x1p-53;
  }

  std::mt19937_64 bits_;
};

}  // namespace

std::string Encode(DataType dtype, const std::vector<double>& values) {
  const Format format = FormatOf(dtype);
  const size_t size = format.bytes();
  std::string bytes(values.size() * size, '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = EncodeOne(format, values[i]);
    std::memcpy(bytes.data() + i * size, &bits, size);
  }
  return bytes;
}

std::vector<double> Decode(DataType dtype, std::string_view bytes) {
  const Format format = FormatOf(dtype);
  const size_t size = format.bytes();
  std::vector<double> values(bytes.size() / size);
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + i * size, size);
    values[i] = DecodeOne(format, bits);
  }
  return values;
}

int64_t QueryElements(const AttentionShape& shape) {
  return shape.batch * shape.query_tokens() * shape.num_heads * shape.head_dim;
}

int64_t KeyElements(const AttentionShape& shape) {
  return shape.batch * shape.key_tokens() * shape.num_kv_heads * shape.head_dim;
}

std::string FillQuery(const AttentionShape& shape, const ElementFunction& fn) {
  return Fill(shape, shape.query_tokens(), shape.num_heads, fn);
}

std::string FillKey(const AttentionShape& shape, const ElementFunction& fn) {
  return Fill(shape, shape.key_tokens(), shape.num_kv_heads, fn);
}

CallInputs RandomInputs(const AttentionShape& shape, uint64_t seed) {
  NormalSource source(seed);
  const ElementFunction next = [&](int64_t, int64_t, int64_t, int64_t) {
    return source.Next();
  };
  CallInputs inputs;
  inputs.query = FillQuery(shape, next);
  inputs.key = FillKey(shape, next);
  inputs.value = FillKey(shape, next);
  return inputs;
}

CallInputs ZeroInputs(const AttentionShape& shape,
                      const ElementFunction& value) {
  const ElementFunction zero = [](int64_t, int64_t, int64_t, int64_t) {
    return 0.0;
  };
  return {FillQuery(shape, zero), FillKey(shape, zero), FillKey(shape, value)};
}

CallInputs PickInputs(const AttentionShape& shape,
                      const ElementFunction& value) {
  const auto unit = [&](int64_t token, int64_t d) {
    return token % shape.head_dim == d ? 32.0 : 0.0;
  };
  CallInputs inputs;
  inputs.query =
      FillQuery(shape, [&](int64_t b, int64_t i, int64_t, int64_t d) {
        return unit(PickedKey(shape, b, i), d);
      });
  inputs.key = FillKey(shape, [&](int64_t, int64_t t, int64_t, int64_t d) {
    return unit(t, d);
  });
  inputs.value = FillKey(shape, value);
  return inputs;
}

int64_t PickedKey(const AttentionShape& shape, int64_t b, int64_t i) {
  const int64_t kept = shape.image_tokens + shape.valid_text_tokens[b];
  int64_t wanted = (i + 1) % kept;
  for (int64_t t = 0; t < shape.key_tokens(); ++t) {
    if (KeyIsKept(shape, b, t) && wanted-- == 0) return t;
  }
  return -1;
}

double Tag(const AttentionShape& shape, int64_t b, int64_t t, int64_t g) {
  return static_cast<double>(shape.key_tokens() * (shape.num_kv_heads * b + g) +
                             t);
}

std::vector<double> PickTagOutput(const AttentionShape& shape) {
  std::vector<double> output;
  output.reserve(QueryElements(shape));
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t i = 0; i < shape.query_tokens(); ++i) {
      for (int64_t h = 0; h < shape.num_heads; ++h) {
        const int64_t g = h * shape.num_kv_heads / shape.num_heads;
        const double tag = QueryIsPadding(shape, b, i)
                               ? 0.0
                               : Tag(shape, b, PickedKey(shape, b, i), g);
        output.insert(output.end(), shape.head_dim, tag);
      }
    }
  }
  return output;
}

bool KeyIsKept(const AttentionShape& shape, int64_t b, int64_t t) {
  return !IsText(shape, t) || TextIndex(shape, t) < shape.valid_text_tokens[b];
}

bool QueryIsPadding(const AttentionShape& shape, int64_t b, int64_t i) {
  // Query rows without text are the image's alone.
  return !shape.image_queries_only && !KeyIsKept(shape, b, i);
}

}  // namespace ithaca::oracle
