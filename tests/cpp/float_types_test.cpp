// Every 16-bit pattern, every tie between neighbours, and the edges of both types.
#include "core/float_types.h"

#include <cmath>
#include <limits>

#include "check.h"

using namespace linattn;

namespace {

// The value of a 16-bit pattern from the definition of the format.
double value(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

template <class T>
void every_pattern(int exponent_bits, int mantissa_bits) {
  for (int i = 0; i < 65536; ++i) {
    const uint16_t bits = static_cast<uint16_t>(i);
    const float x = to_float(T{bits});
    const double wanted = value(bits, exponent_bits, mantissa_bits);
    const uint16_t back = from_float<T>(x).bits, back_double = from_double<T>(x).bits;
    if (std::isnan(wanted)) {
      CHECK_THAT(std::isnan(x) && std::isnan(to_float(T{back})) && (back ^ bits) < 0x8000 &&
                     std::isnan(to_float(T{back_double})),
                 "NaN pattern %04x", i);
    } else {
      CHECK_THAT(static_cast<double>(x) == wanted && std::signbit(x) == std::signbit(wanted),
                 "pattern %04x is %a, not %a", i, wanted, x);
      CHECK_THAT(back == bits && back_double == bits, "pattern %04x came back as %04x, %04x", i,
                 back, back_double);
    }
  }
}

// Between finite neighbours: the tie goes to the even one, a hair to either side to that side. The
// hair is one that a first rounding to float would lose.
template <class T>
void every_tie(int exponent_bits, int mantissa_bits) {
  const int infinity = ((1 << exponent_bits) - 1) << mantissa_bits;
  for (int low = 0; low < infinity; ++low) {
    const double below = value(static_cast<uint16_t>(low), exponent_bits, mantissa_bits);
    const double above =
        low + 1 < infinity
            ? value(static_cast<uint16_t>(low + 1), exponent_bits, mantissa_bits)
            : below + (below - value(static_cast<uint16_t>(low - 1), exponent_bits, mantissa_bits));
    const double tie = (below + above) / 2;
    const int even = low % 2 == 0 ? low : low + 1;
    for (int negative = 0; negative < 2; ++negative) {
      const double sign = negative ? -1 : 1;
      const int sign_bit = negative << 15;
      const int at_tie = from_double<T>(sign * tie).bits;
      const int float_tie = from_float<T>(static_cast<float>(sign * tie)).bits;
      const int under = from_double<T>(sign * std::nextafter(tie, 0)).bits;
      const int over = from_double<T>(sign * std::nextafter(tie, INFINITY)).bits;
      CHECK_THAT(at_tie == (even | sign_bit), "tie after %04x gave %04x", low, at_tie);
      CHECK_THAT(float_tie == (even | sign_bit), "float tie after %04x gave %04x", low, float_tie);
      CHECK_THAT(under == (low | sign_bit), "under the tie after %04x gave %04x", low, under);
      CHECK_THAT(over == ((low + 1) | sign_bit), "over the tie after %04x gave %04x", low, over);
    }
  }
}

void edges() {
  CHECK(to_f16(65504.0f).bits == 0x7bff);
  CHECK(to_f16(std::nextafter(65520.0f, 0.0f)).bits == 0x7bff);
  CHECK(to_f16(65520.0f).bits == 0x7c00);
  CHECK(to_f16(-1e30f).bits == 0xfc00);
  CHECK(to_f16(std::numeric_limits<float>::denorm_min()).bits == 0);
  CHECK(to_f16(-0.0f).bits == 0x8000);
  CHECK(to_bf16(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(to_bf16(-0.0f).bits == 0x8000);
  CHECK(from_double<Bf16>(1e300).bits == 0x7f80);
  CHECK(from_double<Bf16>(-1e300).bits == 0xff80);
  CHECK(from_double<F16>(1e300).bits == 0x7c00);
  CHECK(from_double<Bf16>(1e-300).bits == 0);
  CHECK(from_double<float>(1e300) == std::numeric_limits<float>::infinity());
  CHECK(std::isnan(from_double<float>(std::nan(""))));
}

}  // namespace

int main() {
  every_pattern<Bf16>(8, 7);
  every_pattern<F16>(5, 10);
  every_tie<Bf16>(8, 7);
  every_tie<F16>(5, 10);
  edges();
  return check::finish();
}
