#ifndef ITHACA_TESTS_ORACLE_TENSOR_DATA_H_
#define ITHACA_TESTS_ORACLE_TENSOR_DATA_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/attention_call.h"
#include "core/data_type.h"

// Tensors for tests: dense, row-major, little-endian bytes in a std::string, as
// the public API carries them. Conversions are written for clarity and share
// nothing with the code under test.

namespace ithaca::oracle {

// Each value rounded once, to nearest even; beyond the largest finite value by
// half a step or more becomes infinity; a NaN stays one.
std::string Encode(DataType dtype, const std::vector<double>& values);

// REQUIRES: whole elements. Exact.
std::vector<double> Decode(DataType dtype, std::string_view bytes);

// Element counts of one call's tensors.
int64_t QueryElements(const AttentionShape& shape);  // B * Nq * Hq * D
int64_t KeyElements(const AttentionShape& shape);    // B * (S + T) * Hkv * D

// fn(b, t, h, d) for each element of [B, tokens, heads, D], t in the caller's
// order.
using ElementFunction =
    std::function<double(int64_t b, int64_t t, int64_t h, int64_t d)>;
std::string FillQuery(const AttentionShape& shape, const ElementFunction& fn);
std::string FillKey(const AttentionShape& shape, const ElementFunction& fn);

struct CallInputs {
  std::string query;  // [B, Nq, Hq, D]
  std::string key;    // [B, S + T, Hkv, D]
  std::string value;  // [B, S + T, Hkv, D]
};

// Standard normal values. The same seed gives the same bytes on every host.
CallInputs RandomInputs(const AttentionShape& shape, uint64_t seed);

// ZERO: query and key are 0, so every kept key weighs the same and the output
// is the mean of the kept values.
CallInputs ZeroInputs(const AttentionShape& shape,
                      const ElementFunction& value);

// PICK: key t is 32 * e_(t mod D), and query row i is 32 * e_(p mod D) for p =
// PickedKey(b, i). The softmax is saturated: the output row is value row p,
// exactly, in every dtype; but for D > 96 a value of 0 may show what is left of
// the other keys, under 1e-25 of them. REQUIRES: S + T <= D, 1/sqrt(D) as
// softmax scale and a kept key in each batch element.
CallInputs PickInputs(const AttentionShape& shape,
                      const ElementFunction& value);

// The kept key number (i + 1) mod (number of kept keys), counted in the
// caller's order; with nothing padded, (i + 1) mod (S + T).
int64_t PickedKey(const AttentionShape& shape, int64_t b, int64_t i);

// TAG: the value of every d of (b, t, g): N * (Hkv * b + g) + t, N = S + T. It
// names its row, and is exact in bfloat16 up to 256.
double Tag(const AttentionShape& shape, int64_t b, int64_t t, int64_t g);

// The exact output of PickInputs(shape, Tag): [B, Nq, Hq, D], 0 in padded text
// rows.
std::vector<double> PickTagOutput(const AttentionShape& shape);

// Whether row t of key and value is kept, and row i of query is padded text.
bool KeyIsKept(const AttentionShape& shape, int64_t b, int64_t t);
bool QueryIsPadding(const AttentionShape& shape, int64_t b, int64_t i);

}  // namespace ithaca::oracle

#endif  // ITHACA_TESTS_ORACLE_TENSOR_DATA_H_
