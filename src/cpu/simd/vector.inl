// Vector type of the target and the few operations on it that the kernels share.
namespace stdx = std::experimental;

using Vec = stdx::native_simd<float>;
using IVec = stdx::rebind_simd_t<int32_t, Vec>;
using UVec = stdx::rebind_simd_t<uint32_t, Vec>;
constexpr int64_t kWidth = Vec::size();
static_assert(kLanes % kWidth == 0);

// Register tile of a product: rows x vectors of accumulators, the rest for operands.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kTileRows = 8, kTileVecs = 2;
#else
constexpr int kTileRows = 6, kTileVecs = 2;
#endif

inline Vec load(const float* p) { return Vec(p, stdx::element_aligned); }
inline void store(Vec x, float* p) { x.copy_to(p, stdx::element_aligned); }
// a b + c rounded once, whatever else the compiler might contract instead: where c is a product
// itself, two instances of a template could otherwise differ in a bit.
inline Vec fused(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return std::bit_cast<Vec>(_mm512_fmadd_ps(std::bit_cast<__m512>(a), std::bit_cast<__m512>(b),
                                            std::bit_cast<__m512>(c)));
#elif defined(__FMA__)
  return std::bit_cast<Vec>(_mm256_fmadd_ps(std::bit_cast<__m256>(a), std::bit_cast<__m256>(b),
                                            std::bit_cast<__m256>(c)));
#elif defined(__aarch64__)
  return std::bit_cast<Vec>(vfmaq_f32(std::bit_cast<float32x4_t>(c), std::bit_cast<float32x4_t>(a),
                                      std::bit_cast<float32x4_t>(b)));
#else
  return a * b + c;  // no such instruction: nothing is contracted
#endif
}
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The same lanes as the compiler's own vector, for shuffles.
typedef float Raw __attribute__((vector_size(kWidth * sizeof(float))));

template <int... I>
inline void interleave(Vec& a, Vec& b, std::integer_sequence<int, I...>) {
  const Raw x = std::bit_cast<Raw>(a), y = std::bit_cast<Raw>(b);
  constexpr int width = sizeof...(I);
  a = std::bit_cast<Vec>(__builtin_shufflevector(x, y, (I / 2 + I % 2 * width)...));
  b = std::bit_cast<Vec>(__builtin_shufflevector(x, y, (width / 2 + I / 2 + I % 2 * width)...));
}

// Transposes kWidth vectors: each stage interleaves the lower with the upper half of the rows.
inline void transpose_block(Vec (&rows)[kWidth]) {
  constexpr int width = static_cast<int>(kWidth), half = width / 2;
  LINATTN_UNROLL
  for (int stage = 1; stage < width; stage *= 2) {
    Vec next[kWidth];
    LINATTN_UNROLL
    for (int i = 0; i < half; ++i) {
      next[2 * i] = rows[i], next[2 * i + 1] = rows[i + half];
      interleave(next[2 * i], next[2 * i + 1], std::make_integer_sequence<int, width>());
    }
    LINATTN_UNROLL
    for (int i = 0; i < width; ++i) rows[i] = next[i];
  }
}

// out[j][0 : kWidth] = in[0 : kWidth][j] for j < columns, rows at and past `rows` as zeros. Reads
// whole vectors of the rows.
inline void transpose_band(const float* in, int64_t ld_in, int64_t rows, int64_t columns,
                           float* out, int64_t ld_out) {
  for (int64_t j = 0; j < columns; j += kWidth) {
    Vec block[kWidth];
    for (int64_t i = 0; i < kWidth; ++i) block[i] = i < rows ? load(in + i * ld_in + j) : Vec(0.0f);
    transpose_block(block);
    const int64_t end = smaller(columns - j, kWidth);
    for (int64_t i = 0; i < end; ++i) store(block[i], out + (j + i) * ld_out);
  }
}

inline Vec load_part(const float* p, int64_t n) {
  float buffer[kWidth] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
  return load(buffer);
}
inline void store_part(Vec x, float* p, int64_t n) {
  float buffer[kWidth];
  store(x, buffer);
  for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
}

template <class F>
inline void map(const float* in, int64_t n, float* out, F f) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(f(load(in + i)), out + i);
  if (i < n) store_part(f(load_part(in + i, n - i)), out + i, n - i);
}
