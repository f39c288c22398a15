#ifndef ITHACA_CLIENT_ELEMENT_CONVERSION_H_
#define ITHACA_CLIENT_ELEMENT_CONVERSION_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "ithaca/v1/attention.pb.h"

// Elements of the API's dtypes from and to the machine's own numbers.
// Widening is exact. Narrowing rounds to nearest, ties to even; what is too
// large becomes an infinity; a NaN stays a NaN.

namespace ithaca::client {

float Float16ToFloat(uint16_t bits);
float BFloat16ToFloat(uint16_t bits);
uint16_t FloatToFloat16(float value);
uint16_t FloatToBFloat16(float value);

// `from` holds to.size() elements of dtype. REQUIRES: dtype is a known one.
void Widen(ithaca::v1::DataType dtype, std::span<const std::byte> from,
           std::span<double> to);
void Narrow(ithaca::v1::DataType dtype, std::span<const float> from,
            std::span<std::byte> to);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_ELEMENT_CONVERSION_H_
