// Products of keys with keys, summed in double. A repeated key meets itself with the same rounding
// in every token, and at beta 2 without decay (a reflection) what is left of it grows with the
// length of the sequence: an fp32 chain of 128 terms is off by 2e-7, which is 3e-4 after 2048
// tokens.
using DoubleVec = stdx::native_simd<double>;
constexpr int64_t kDoubleWidth = DoubleVec::size();
static_assert(2 * kDoubleWidth == kWidth);

inline void widen(const float* in, int64_t n, double* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = in[i];
}

// c = a b for rows of doubles a.
template <int MR>
inline void precise_tile(int64_t k, const double* a, int64_t a_row, const float* b, int64_t b_row,
                         float* c, int64_t c_row) {
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
  LINATTN_UNROLL
  for (int i = 0; i < MR; ++i) {
    low[i].copy_to(c + i * c_row, stdx::element_aligned);
    high[i].copy_to(c + i * c_row + kDoubleWidth, stdx::element_aligned);
  }
}

// n columns in whole vectors.
inline void precise_product(int64_t m, int64_t n, int64_t k, const double* a, int64_t a_row,
                            const float* b, int64_t b_row, float* c, int64_t c_row) {
  for (int64_t j = 0; j < n; j += kWidth)
    for_row_tiles(m, [&]<int MR>(int64_t i) {
      precise_tile<MR>(k, a + i * a_row, a_row, b + j, b_row, c + i * c_row + j, c_row);
    });
}

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
  void write(float* to) const {
    for (int64_t i = 0; i < kWidth; ++i) to[i] = static_cast<float>(lanes[i]);
  }
};
