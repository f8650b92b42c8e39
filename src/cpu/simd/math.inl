// exp, log1p and what gates are made of. Coefficients: interpolation at Chebyshev nodes of the
// stated function, in double, then rounded; the polynomial's own error is below 1e-9.

// exp(x) = 2^n exp(r), |r| <= ln2/2, exp(r) = 1 + r + r^2 p(r).
inline Vec exp_of(Vec x) {
  const Vec magic =
      12582912.0f;  // 1.5 * 2^23: adding it leaves the rounded integer in the low bits
  const Vec shifted = x * 1.44269504088896341f + magic;
  const Vec n = shifted - magic;
  Vec r = x - n * 0.693359375f;  // ln2 in two parts, the first exact in a product with n
  r = r - n * -2.12194440054713771e-4f;
  Vec p = 1.9891080470e-4f;
  p = p * r + 1.3933730716e-3f;
  p = p * r + 8.3333108446e-3f;
  p = p * r + 4.1666464197e-2f;
  p = p * r + 1.6666666682e-1f;
  p = p * r + 5.0000000135e-1f;
  const Vec rr = r * r;
  const Vec y = (p * rr + r) + 1.0f;
  // 2^n in two factors: n = 128 is a legal exponent of the result, not of one factor.
  // Unsigned, since x far outside (-inf, NaN) leaves any bits here; the ends below replace them.
  const IVec i = std::bit_cast<IVec>(std::bit_cast<UVec>(shifted) - 0x4b400000u);
  const IVec half = i >> 1;
  const Vec low = std::bit_cast<Vec>((half + 127) << 23);
  const Vec high = std::bit_cast<Vec>((i - half + 127) << 23);
  Vec result = y * low * high;
  stdx::where(x < -87.3365448f, result) = 0.0f;  // below the least normal number
  stdx::where(x > 88.7228394f, result) = __builtin_inff();
  return result;
}

// log(1 + u) for u in [0, 1]: 2 atanh(s), s = u / (2 + u), atanh(s) = s + s^3 p(s^2).
inline Vec log1p_of_unit(Vec u) {
  const Vec s = u / (u + 2.0f);
  const Vec z = s * s;
  Vec p = 1.0394162625e-1f;
  p = p * z + 8.7322613895e-2f;
  p = p * z + 1.1132363550e-1f;
  p = p * z + 1.4285152573e-1f;
  p = p * z + 2.0000005389e-1f;
  p = p * z + 3.3333333325e-1f;
  const Vec twice = s + s;
  return twice * z * p + twice;
}

inline Vec sigmoid_of(Vec x) { return 1.0f / (exp_of(-x) + 1.0f); }

inline Vec softplus_of(Vec x) {
  Vec magnitude = x;
  stdx::where(x > 0.0f, magnitude) = -x;
  Vec positive = x;
  stdx::where(x < 0.0f, positive) = 0.0f;  // a NaN stays
  Vec y = positive + log1p_of_unit(exp_of(magnitude));
  stdx::where(x > 20.0f, y) = x;
  return y;
}

void exp_array(const float* in, int64_t n, float* out) {
  map(in, n, out, [](Vec x) { return exp_of(x); });
}
void sigmoid_array(const float* in, int64_t n, float* out) {
  map(in, n, out, [](Vec x) { return sigmoid_of(x); });
}
void softplus_array(const float* in, int64_t n, float* out) {
  map(in, n, out, [](Vec x) { return softplus_of(x); });
}

template <class F>
inline void map_gate(float* x, int64_t ld, int64_t rows, int64_t columns, const float* bias, F f) {
  for (int64_t i = 0; i < rows; ++i) {
    float* row = x + i * ld;
    int64_t c = 0;
    for (; c + kWidth <= columns; c += kWidth) {
      Vec y = load(row + c);
      if (bias != nullptr) y = y + load(bias + c);
      store(f(y), row + c);
    }
    if (c < columns) {
      Vec y = load_part(row + c, columns - c);
      if (bias != nullptr) y = y + load_part(bias + c, columns - c);
      store_part(f(y), row + c, columns - c);
    }
  }
}

void gate_softplus(float* x, int64_t ld, int64_t rows, int64_t columns, const float* bias,
                   float factor) {
  map_gate(x, ld, rows, columns, bias, [=](Vec y) { return softplus_of(y) * -factor; });
}
void gate_bounded(float* x, int64_t ld, int64_t rows, int64_t columns, const float* bias,
                  float factor, float lower_bound) {
  map_gate(x, ld, rows, columns, bias, [=](Vec y) { return sigmoid_of(y * factor) * lower_bound; });
}

void scale_rows(float* x, int64_t ld, int64_t rows, int64_t columns, const float* scale,
                float factor) {
  for (int64_t i = 0; i < rows; ++i) {
    const float s = scale == nullptr ? factor : scale[i] * factor;
    map(x + i * ld, columns, x + i * ld, [s](Vec y) { return y * s; });
  }
}
