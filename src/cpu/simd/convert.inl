// bf16 and f16 rows to fp32 and back, rounding to nearest even, independent of the denormal mode.

inline Vec load_as(const float* p) { return load(p); }

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

inline UVec load_bits(const uint16_t* p) { return UVec(p, stdx::element_aligned); }
// The low halves of lanes below 2^16. g++ 12 narrows lane by lane.
inline void store_bits(UVec x, uint16_t* p) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(std::bit_cast<__m512i>(x)));
#elif defined(__AVX2__)
  const __m256i bits = std::bit_cast<__m256i>(x);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1)));
#else
  x.copy_to(p, stdx::element_aligned);
#endif
}

inline Vec load_as(const Bf16* p) { return std::bit_cast<Vec>(load_bits(&p->bits) << 16); }

inline void store_as(Vec x, float* p) { store(x, p); }
inline void store_as(Vec x, Bf16* p) {
  const UVec bits = std::bit_cast<UVec>(x);
  UVec rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  stdx::where((bits & 0x7fffffffu) > 0x7f800000u, rounded) = (bits >> 16) | 0x40u;
  store_bits(rounded, &p->bits);
}

#if defined(__AVX512F__)
inline Vec load_as(const F16* p) {
  return Vec(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
}
inline void store_as(Vec x, F16* p) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(static_cast<__m512>(x), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__)
inline Vec load_as(const F16* p) {
  return Vec(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline void store_as(Vec x, F16* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(static_cast<__m256>(x), _MM_FROUND_TO_NEAREST_INT));
}
#else
inline Vec load_as(const F16* p) {
  const UVec bits = load_bits(&p->bits);
  const UVec sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, mantissa = bits & 0x3ffu;
  UVec y = ((exponent + 112u) << 23) | (mantissa << 13);
  const Vec small = stdx::static_simd_cast<Vec>(std::bit_cast<IVec>(mantissa)) * 0x1p-24f;
  stdx::where(exponent == 0u, y) = std::bit_cast<UVec>(small);
  stdx::where(exponent == 31u, y) = (mantissa << 13) | 0x7f800000u;
  return std::bit_cast<Vec>(y | sign);
}
inline void store_as(Vec x, F16* p) {
  const UVec bits = std::bit_cast<UVec>(x), magnitude = bits & 0x7fffffffu;
  UVec y = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const Vec small = std::bit_cast<Vec>(magnitude) + 0.5f;  // its spacing there is f16's, 2^-24
  stdx::where(magnitude < 0x38800000u, y) = std::bit_cast<UVec>(small) - 0x3f000000u;
  stdx::where(magnitude >= 0x477ff000u, y) = UVec(0x7c00u);
  stdx::where(magnitude > 0x7f800000u, y) = ((magnitude >> 13) & 0x3ffu) | 0x7e00u;
  store_bits(y | ((bits >> 16) & 0x8000u), &p->bits);
}
#endif

template <class T>
inline Vec load_part_as(const T* p, int64_t stride, int64_t n) {
  T buffer[kWidth] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = p[i * stride];
  return load_as(buffer);
}
template <class T>
inline void store_part_as(Vec x, T* p, int64_t stride, int64_t n) {
  T buffer[kWidth];
  store_as(x, buffer);
  for (int64_t i = 0; i < n; ++i) p[i * stride] = buffer[i];
}

template <class T>
void load_rows_of(const T* source, int64_t row_stride, int64_t column_stride, int64_t rows,
                  int64_t columns, float* out, int64_t ld) {
  const int64_t end = padded(columns);
  for (int64_t i = 0; i < rows; ++i) {
    const T* in = source + i * row_stride;
    float* row = out + i * ld;
    int64_t c = 0;
    if (column_stride == 1)
      for (; c + kWidth <= columns; c += kWidth) store(load_as(in + c), row + c);
    for (; c < columns; c += kWidth)
      store(load_part_as(in + c * column_stride, column_stride, smaller(columns - c, kWidth)),
            row + c);
    for (; c < end; c += kWidth) store(Vec(0.0f), row + c);
  }
}

template <class T>
void store_rows_of(const float* rows_in, int64_t ld, int64_t rows, int64_t columns, T* out,
                   int64_t row_stride, int64_t column_stride) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = rows_in + i * ld;
    T* to = out + i * row_stride;
    int64_t c = 0;
    if (column_stride == 1)
      for (; c + kWidth <= columns; c += kWidth) store_as(load(row + c), to + c);
    for (; c < columns; c += kWidth) {
      const int64_t n = smaller(columns - c, kWidth);
      store_part_as(load_part(row + c, n), to + c * column_stride, column_stride, n);
    }
  }
}

void load_rows(const void* source, Element type, int64_t row_stride, int64_t column_stride,
               int64_t rows, int64_t columns, float* out, int64_t ld) {
  if (type == Element::f32)
    load_rows_of(static_cast<const float*>(source), row_stride, column_stride, rows, columns, out,
                 ld);
  else if (type == Element::bf16)
    load_rows_of(static_cast<const Bf16*>(source), row_stride, column_stride, rows, columns, out,
                 ld);
  else
    load_rows_of(static_cast<const F16*>(source), row_stride, column_stride, rows, columns, out,
                 ld);
}

void store_rows(const float* rows_in, int64_t ld, int64_t rows, int64_t columns, void* out,
                Element type, int64_t row_stride, int64_t column_stride) {
  if (type == Element::f32)
    store_rows_of(rows_in, ld, rows, columns, static_cast<float*>(out), row_stride, column_stride);
  else if (type == Element::bf16)
    store_rows_of(rows_in, ld, rows, columns, static_cast<Bf16*>(out), row_stride, column_stride);
  else
    store_rows_of(rows_in, ld, rows, columns, static_cast<F16*>(out), row_stride, column_stride);
}

// Four rows at a time: no vector type of the library shuffles, and 16-byte ones exist everywhere.
using Quad = float __attribute__((vector_size(16)));

inline Quad load_quad(const float* p) {
  Quad x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}
inline void store_quad(Quad x, float* p) { __builtin_memcpy(p, &x, sizeof(x)); }

inline void transpose_quads(const float* in, int64_t ld_in, float* out, int64_t ld_out) {
  const Quad a = load_quad(in), b = load_quad(in + ld_in), c = load_quad(in + 2 * ld_in),
             d = load_quad(in + 3 * ld_in);
  const Quad ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Quad ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Quad cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Quad cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  store_quad(__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5), out);
  store_quad(__builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7), out + ld_out);
  store_quad(__builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5), out + 2 * ld_out);
  store_quad(__builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7), out + 3 * ld_out);
}

void transpose(const float* in, int64_t ld_in, int64_t rows, int64_t columns, float* out,
               int64_t ld_out) {
  for (int64_t i = 0; i < padded(rows); i += kWidth)
    transpose_band(in + i * ld_in, ld_in, rows - i, columns, out + i, ld_out);
}
