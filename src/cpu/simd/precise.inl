// Products of keys with keys, summed in double. A repeated key meets itself with the same rounding
// in every token, and at beta 2 without decay (a reflection) what is left of it grows with the
// length of the sequence: an fp32 chain of 128 terms is off by 2e-7, which is 3e-4 after 2048
// tokens.
using DoubleVec = stdx::native_simd<double>;
constexpr int64_t kDoubleWidth = DoubleVec::size();
static_assert(2 * kDoubleWidth == kWidth);

// As the one of single precision.
inline DoubleVec fused(DoubleVec a, DoubleVec b, DoubleVec c) {
#if defined(__AVX512F__)
  return DoubleVec(
      _mm512_fmadd_pd(static_cast<__m512d>(a), static_cast<__m512d>(b), static_cast<__m512d>(c)));
#elif defined(__FMA__)
  return DoubleVec(
      _mm256_fmadd_pd(static_cast<__m256d>(a), static_cast<__m256d>(b), static_cast<__m256d>(c)));
#elif defined(__aarch64__)
  return std::bit_cast<DoubleVec>(vfmaq_f64(
      std::bit_cast<float64x2_t>(c), std::bit_cast<float64x2_t>(a), std::bit_cast<float64x2_t>(b)));
#else
  return a * b + c;
#endif
}

inline void widen(const float* in, int64_t n, double* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = in[i];
}

// Factors of a product's rows and columns, applied before it is rounded.
struct PreciseScale {
  const double *rows = nullptr, *columns = nullptr;
};

// c = a b for rows of doubles a.
template <int MR>
inline void precise_tile(int64_t k, const double* a, int64_t a_row, const float* b, int64_t b_row,
                         float* c, int64_t c_row, const PreciseScale& scale = {}) {
  DoubleVec low[MR], high[MR];
  LINATTN_UNROLL
  for (int i = 0; i < MR; ++i) low[i] = high[i] = 0.0;
  for (int64_t p = 0; p < k; ++p) {
    const DoubleVec b_low(b + p * b_row, stdx::element_aligned);
    const DoubleVec b_high(b + p * b_row + kDoubleWidth, stdx::element_aligned);
    LINATTN_UNROLL
    for (int i = 0; i < MR; ++i) {
      const DoubleVec s = a[i * a_row + p];
      low[i] = low[i] + s * b_low;
      high[i] = high[i] + s * b_high;
    }
  }
  if (scale.rows != nullptr) {
    const DoubleVec left(scale.columns, stdx::element_aligned);
    const DoubleVec right(scale.columns + kDoubleWidth, stdx::element_aligned);
    LINATTN_UNROLL
    for (int i = 0; i < MR; ++i) {
      low[i] = low[i] * scale.rows[i] * left;
      high[i] = high[i] * scale.rows[i] * right;
    }
  }
  LINATTN_UNROLL
  for (int i = 0; i < MR; ++i) {
    low[i].copy_to(c + i * c_row, stdx::element_aligned);
    high[i].copy_to(c + i * c_row + kDoubleWidth, stdx::element_aligned);
  }
}

// n columns in whole vectors.
inline void precise_product(int64_t m, int64_t n, int64_t k, const double* a, int64_t a_row,
                            const float* b, int64_t b_row, float* c, int64_t c_row,
                            const PreciseScale& scale) {
  for (int64_t j = 0; j < n; j += kWidth)
    for_row_tiles(m, [&]<int MR>(int64_t i) {
      precise_tile<MR>(k, a + i * a_row, a_row, b + j, b_row, c + i * c_row + j, c_row,
                       {scale.rows + i, scale.columns + j});
    });
}

// Of a row with zeros up to whole vectors.
inline double sum_of_squares(const float* x, int64_t n) {
  DoubleVec low = 0.0, high = 0.0;
  for (int64_t i = 0; i < n; i += kWidth) {
    const DoubleVec a(x + i, stdx::element_aligned);
    const DoubleVec b(x + i + kDoubleWidth, stdx::element_aligned);
    low = low + a * a;
    high = high + b * b;
  }
  return stdx::reduce(low + high);
}

void inverse_norms(const float* x, int64_t ld, int64_t rows, int64_t columns, float* out) {
  for (int64_t i = 0; i < rows; ++i)
    out[i] = static_cast<float>(1 / __builtin_sqrt(sum_of_squares(x + i * ld, columns) + 1e-6));
}

// x but for its power of two: in [1, 2).
inline double mantissa(double x) {
  constexpr uint64_t kFraction = 0x000fffffffffffffu, kOne = 0x3ff0000000000000u;
  return std::bit_cast<double>((std::bit_cast<uint64_t>(x) & kFraction) | kOne);
}

// The lanes of a vector as doubles. g++ 12 converts in halves where it is left to itself.
struct WideVec {
  DoubleVec low, high;

#if defined(__AVX512F__)
  explicit WideVec(Vec x)
      : low(_mm512_cvtps_pd(_mm512_castps512_ps256(static_cast<__m512>(x)))),
        high(_mm512_cvtps_pd(_mm512_extractf32x8_ps(static_cast<__m512>(x), 1))) {}

  Vec rounded() const {
    const __m512 first = _mm512_castps256_ps512(_mm512_cvtpd_ps(static_cast<__m512d>(low)));
    return Vec(_mm512_insertf32x8(first, _mm512_cvtpd_ps(static_cast<__m512d>(high)), 1));
  }
#elif defined(__AVX__)
  explicit WideVec(Vec x)
      : low(_mm256_cvtps_pd(_mm256_castps256_ps128(static_cast<__m256>(x)))),
        high(_mm256_cvtps_pd(_mm256_extractf128_ps(static_cast<__m256>(x), 1))) {}

  Vec rounded() const {
    return Vec(_mm256_set_m128(_mm256_cvtpd_ps(static_cast<__m256d>(high)),
                               _mm256_cvtpd_ps(static_cast<__m256d>(low))));
  }
#else
  explicit WideVec(Vec x) {
    float lanes[kWidth];
    store(x, lanes);
    low.copy_from(lanes, stdx::element_aligned);
    high.copy_from(lanes + kDoubleWidth, stdx::element_aligned);
  }

  Vec rounded() const {
    float lanes[kWidth];
    low.copy_to(lanes, stdx::element_aligned);
    high.copy_to(lanes + kDoubleWidth, stdx::element_aligned);
    return load(lanes);
  }
#endif
};

// A sum of vectors kept in double, in memory.
struct PreciseSum {
  double lanes[kWidth] = {};

  void add(Vec x) {
    float from[kWidth];
    store(x, from);
    for (int64_t i = 0; i < kWidth; i += kDoubleWidth) {
      const DoubleVec sum =
          DoubleVec(lanes + i, stdx::element_aligned) + DoubleVec(from + i, stdx::element_aligned);
      sum.copy_to(lanes + i, stdx::element_aligned);
    }
  }
  float total() const {
    double sum = 0;
    for (double lane : lanes) sum += lane;
    return static_cast<float>(sum);
  }
  void write(float* to, double row, const double* columns) const {
    for (int64_t i = 0; i < kWidth; ++i) to[i] = static_cast<float>(lanes[i] * row * columns[i]);
  }
};
