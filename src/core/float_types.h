// bf16 and f16 on the host as bit patterns, with conversions that round once, to nearest even.
// g++ 12 has neither type. No conversion of a denormal depends on the caller's FTZ/DAZ mode, except
// where a denormal float itself is the double argument.
#pragma once

#include <bit>
#include <cstdint>

namespace linattn {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

inline float to_float(float x) { return x; }

inline float to_float(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

inline float to_float(F16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 31u, mantissa = x.bits & 0x3ffu;
  uint32_t magnitude = 0;
  if (exponent == 31)
    magnitude = 0x7f800000u | mantissa << 13;
  else if (exponent == 0)
    magnitude = std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);
  else
    magnitude = (exponent + 112) << 23 | mantissa << 13;
  return std::bit_cast<float>(sign | magnitude);
}

// NaN stays NaN (quiet, sign and upper payload kept); finite values past the range become inf.
inline Bf16 to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>(bits >> 16 | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

inline F16 to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  uint32_t result = 0;
  if (magnitude > 0x7f800000u)
    result = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  else if (magnitude >= 0x477ff000u)  // 65520, half way past the largest finite
    result = 0x7c00u;
  else if (magnitude < 0x38800000u)  // below 2^-14: the spacing of floats at 0.5 is f16's, 2^-24
    result = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  else
    result = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  return {static_cast<uint16_t>((bits >> 16 & 0x8000u) | result)};
}

// Rounds to odd: rounding the result once more, to fewer than 23 mantissa bits, is rounding once.
inline float round_to_odd(double x) {
  const float nearest = static_cast<float>(x);
  const uint32_t bits = std::bit_cast<uint32_t>(nearest);
  const double back = nearest;
  if (back == x || x != x || (bits & 1u) != 0) return nearest;
  const bool short_of_x = (back < 0 ? -back : back) < (x < 0 ? -x : x);
  return std::bit_cast<float>(short_of_x ? bits + 1 : bits - 1);
}

template <class T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline Bf16 from_float<Bf16>(float x) {
  return to_bf16(x);
}
template <>
inline F16 from_float<F16>(float x) {
  return to_f16(x);
}

template <class T>
T from_double(double x) {
  return from_float<T>(round_to_odd(x));
}
template <>
inline float from_double<float>(double x) {
  return static_cast<float>(x);
}

}  // namespace linattn
