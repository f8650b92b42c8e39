// One token of the recurrence on a state in memory. A call is bound by memory: what matters is that
// the state streams through once in address order, with the next lines on their way meanwhile.

constexpr int64_t kPrefetchBytes = 2048;  // ahead of the rows being read
constexpr int kDecodeRows = 4;            // worked together

// Whole vectors, or (PART) the last n lanes of a row whose end must not be passed.
template <bool PART, class T>
inline Vec load_lanes(const T* p, int64_t n) {
  if constexpr (PART) return load_part_as(p, 1, n);
  return load_as(p);
}
template <bool PART, class T>
inline void store_lanes(Vec x, T* p, int64_t n) {
  if constexpr (PART) return store_part_as(x, p, 1, n);
  store_as(x, p);
}

// f.template operator()<part>(first lane, lanes) over a row of n elements.
template <class F>
inline void for_lanes(int64_t n, F f) {
  int64_t j = 0;
  for (; j + kWidth <= n; j += kWidth) f.template operator()<false>(j, kWidth);
  if (j < n) f.template operator()<true>(j, n - j);
}

template <class T>
inline void prefetch(const T* p) {
  // At most one request for a line of 64 bytes.
  if constexpr (kWidth * sizeof(T) >= 64)
    __builtin_prefetch(reinterpret_cast<const char*>(p) + kPrefetchBytes, 1, 3);
  else if ((reinterpret_cast<uintptr_t>(p) & 63) < kWidth * sizeof(T))
    __builtin_prefetch(reinterpret_cast<const char*>(p) + kPrefetchBytes, 1, 3);
}

// K-first: rows of V. Columns go in bands, so that what the first pass reads the second still finds
// in the first-level cache; or near enough in the second one of processors with AVX-512, 1 MB and
// more, for which longer stretches of memory are worth more.
#if defined(__AVX512F__)
constexpr int64_t kBandBytes = 512;
#else
constexpr int64_t kBandBytes = 128;
#endif
template <class T>
constexpr int64_t kBandColumns = kBandBytes / sizeof(T);

template <class T, int ROWS>
inline void read_rows(const DecodeStep& d, const T* s, int64_t k, int64_t columns, int64_t next,
                      float* read) {
  Vec w[ROWS];
  LINATTN_UNROLL
  for (int i = 0; i < ROWS; ++i) w[i] = d.k[k + i] * d.decay[k + i];
  const int64_t ld = d.ld_in;
  s += k * ld;
  LINATTN_UNROLL
  for (int i = 0; i < ROWS; ++i) {
    const char* line = reinterpret_cast<const char*>(s + i * ld + next);
    LINATTN_UNROLL
    for (int b = 0; b < kBandBytes; b += 64) __builtin_prefetch(line + b, 1, 2);
  }
  for_lanes(columns, [&]<bool PART>(int64_t j, int64_t n) {
    Vec sum = load(read + j);
    LINATTN_UNROLL
    for (int i = 0; i < ROWS; ++i) sum = sum + w[i] * load_lanes<PART>(s + i * ld + j, n);
    store(sum, read + j);
  });
}

template <class T, int ROWS>
inline void write_rows(const DecodeStep& d, const T* from, T* to, int64_t k, int64_t columns,
                       const float* u, float* o) {
  Vec decay[ROWS], key[ROWS], query[ROWS];
  LINATTN_UNROLL
  for (int i = 0; i < ROWS; ++i)
    decay[i] = d.decay[k + i], key[i] = d.k[k + i], query[i] = d.q[k + i];
  const int64_t ld_in = d.ld_in, ld_out = d.ld_out;
  from += k * ld_in, to += k * ld_out;
  for_lanes(columns, [&]<bool PART>(int64_t j, int64_t n) {
    const Vec x = load(u + j);
    Vec sum = load(o + j);
    LINATTN_UNROLL
    for (int i = 0; i < ROWS; ++i) {
      const Vec held = load_lanes<PART>(from + i * ld_in + j, n) * decay[i];
      const Vec s = fused(key[i], x, held);
      store_lanes<PART>(s, to + i * ld_out + j, n);
      sum = sum + query[i] * s;
    }
    store(sum, o + j);
  });
}

template <class T>
void decode_k_first(const DecodeStep& d) {
  const int64_t whole = d.dim_k / kDecodeRows * kDecodeRows;
  for (int64_t band = 0; band < d.columns; band += kBandColumns<T>) {
    const int64_t columns = smaller(kBandColumns<T>, d.columns - band);
    const T* from = static_cast<const T*>(d.s_in) + band;
    T* to = static_cast<T*>(d.s_out) + band;
    // The same rows of the next band, after the last those of a state that follows in memory.
    const int64_t next = band + columns < d.columns ? kBandColumns<T> : d.dim_k * d.ld_in - band;
    float u[kBandColumns<T>] = {}, o[kBandColumns<T>] = {};
    if (d.delta) {
      for (int64_t k = 0; k < whole; k += kDecodeRows)
        read_rows<T, kDecodeRows>(d, from, k, columns, next, u);
      for (int64_t k = whole; k < d.dim_k; ++k) read_rows<T, 1>(d, from, k, columns, next, u);
    }
    for (int64_t j = 0; j < columns; j += kWidth) {
      const Vec v = load(d.v + band + j);
      store(d.delta ? (v - load(u + j)) * d.beta : v, u + j);
    }
    for (int64_t k = 0; k < whole; k += kDecodeRows)
      write_rows<T, kDecodeRows>(d, from, to, k, columns, u, o);
    for (int64_t k = whole; k < d.dim_k; ++k) write_rows<T, 1>(d, from, to, k, columns, u, o);
    for (int64_t j = 0; j < columns; j += kWidth) store(load(o + j), d.o + band + j);
  }
}

// V-first: rows of K. A row is read, solved and written while it lies in the first-level cache.
template <class T, int ROWS>
inline void decode_columns(const DecodeStep& d, const T* from, T* to, int64_t v) {
  const int64_t ld_in = d.ld_in, ld_out = d.ld_out;
  from += v * ld_in, to += v * ld_out;
  Vec sum[ROWS];
  float u[ROWS];
  LINATTN_UNROLL
  for (int i = 0; i < ROWS; ++i) u[i] = d.v[v + i], sum[i] = 0.0f;
  if (d.delta) {
    for_lanes(d.dim_k, [&]<bool PART>(int64_t k, int64_t n) {
      const Vec w = load(d.k + k) * load(d.decay + k);
      LINATTN_UNROLL
      for (int i = 0; i < ROWS; ++i) {
        prefetch(from + i * ld_in + k);
        sum[i] = sum[i] + w * load_lanes<PART>(from + i * ld_in + k, n);
      }
    });
    LINATTN_UNROLL
    for (int i = 0; i < ROWS; ++i) u[i] = (u[i] - stdx::reduce(sum[i])) * d.beta, sum[i] = 0.0f;
  }
  Vec x[ROWS];
  LINATTN_UNROLL
  for (int i = 0; i < ROWS; ++i) x[i] = u[i];
  for_lanes(d.dim_k, [&]<bool PART>(int64_t k, int64_t n) {
    const Vec decay = load(d.decay + k), key = load(d.k + k), query = load(d.q + k);
    LINATTN_UNROLL
    for (int i = 0; i < ROWS; ++i) {
      const Vec held = load_lanes<PART>(from + i * ld_in + k, n) * decay;
      const Vec s = fused(key, x[i], held);
      store_lanes<PART>(s, to + i * ld_out + k, n);
      sum[i] = sum[i] + query * s;
    }
  });
  LINATTN_UNROLL
  for (int i = 0; i < ROWS; ++i) d.o[v + i] = stdx::reduce(sum[i]);
}

template <class T>
void decode_v_first(const DecodeStep& d) {
  const T* from = static_cast<const T*>(d.s_in);
  T* to = static_cast<T*>(d.s_out);
  const int64_t whole = d.columns / kDecodeRows * kDecodeRows;
  for (int64_t v = 0; v < whole; v += kDecodeRows) decode_columns<T, kDecodeRows>(d, from, to, v);
  for (int64_t v = whole; v < d.columns; ++v) decode_columns<T, 1>(d, from, to, v);
}

template <class T>
void decode_step_of(const DecodeStep& d) {
  d.v_first ? decode_v_first<T>(d) : decode_k_first<T>(d);
}

void decode_step(const DecodeStep& d) {
  if (d.type == Element::f32)
    decode_step_of<float>(d);
  else if (d.type == Element::bf16)
    decode_step_of<Bf16>(d);
  else
    decode_step_of<F16>(d);
}
