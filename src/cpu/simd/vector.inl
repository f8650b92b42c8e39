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
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

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
