// One token of the recurrence on a state in memory. A call is bound by memory: what matters is that
// the state streams through once in address order and that the next one is on its way meanwhile.

// Keeps a stream of prefetches a step ahead: `advance` bytes at a time, to the second-level cache.
struct Prefetcher {
  const char *at, *end;

  explicit Prefetcher(const DecodeStep& d)
      : at(static_cast<const char*>(d.next)), end(at == nullptr ? at : at + d.next_bytes) {}

  void advance(int64_t bytes) {
    for (; bytes > 0 && at < end; bytes -= 64, at += 64) __builtin_prefetch(at, 0, 2);
  }
};

template <class T>
inline Vec load_lanes(const T* p, int64_t n) {
  return n >= kWidth ? load_as(p) : load_part_as(p, 1, n);
}
template <class T>
inline void store_lanes(Vec x, T* p, int64_t n) {
  n >= kWidth ? store_as(x, p) : store_part_as(x, p, 1, n);
}

// K-first: rows of V. Four rows at a time, so that u and o are touched once for four rows of S.
constexpr int kDecodeRows = 4;

template <class T, int ROWS>
inline void read_rows(const DecodeStep& d, const T* s, int64_t k, float* read) {
  Vec w[ROWS];
  LINATTN_UNROLL
  for (int i = 0; i < ROWS; ++i) w[i] = d.k[k + i] * d.decay[k + i];
  for (int64_t j = 0; j < d.columns; j += kWidth) {
    Vec sum = load(read + j);
    LINATTN_UNROLL
    for (int i = 0; i < ROWS; ++i)
      sum = sum + w[i] * load_lanes(s + (k + i) * d.ld_in + j, d.columns - j);
    store(sum, read + j);
  }
}

template <class T, int ROWS>
inline void write_rows(const DecodeStep& d, const T* from, T* to, int64_t k, const float* u) {
  Vec decay[ROWS], key[ROWS], query[ROWS];
  LINATTN_UNROLL
  for (int i = 0; i < ROWS; ++i)
    decay[i] = d.decay[k + i], key[i] = d.k[k + i], query[i] = d.q[k + i];
  for (int64_t j = 0; j < d.columns; j += kWidth) {
    const Vec x = load(u + j);
    Vec sum = load(d.o + j);
    LINATTN_UNROLL
    for (int i = 0; i < ROWS; ++i) {
      const Vec held = load_lanes(from + (k + i) * d.ld_in + j, d.columns - j) * decay[i];
      const Vec s = fused(key[i], x, held);
      store_lanes(s, to + (k + i) * d.ld_out + j, d.columns - j);
      sum = sum + query[i] * s;
    }
    store(sum, d.o + j);
  }
}

template <class T>
void decode_k_first(const DecodeStep& d) {
  const T* from = static_cast<const T*>(d.s_in);
  T* to = static_cast<T*>(d.s_out);
  Prefetcher next(d);
  const int64_t share = d.next_bytes * kDecodeRows / d.dim_k + 64;
  const int64_t whole = d.dim_k / kDecodeRows * kDecodeRows;
  float u[256];
  for (int64_t j = 0; j < d.columns; j += kWidth) store(Vec(0.0f), u + j);
  if (d.delta) {
    for (int64_t k = 0; k < whole; k += kDecodeRows) read_rows<T, kDecodeRows>(d, from, k, u);
    for (int64_t k = whole; k < d.dim_k; ++k) read_rows<T, 1>(d, from, k, u);
  }
  for (int64_t j = 0; j < d.columns; j += kWidth) {
    const Vec v = load(d.v + j);
    store(d.delta ? (v - load(u + j)) * d.beta : v, u + j);
    store(Vec(0.0f), d.o + j);  // o may be v's memory
  }
  for (int64_t k = 0; k < whole; k += kDecodeRows) {
    write_rows<T, kDecodeRows>(d, from, to, k, u);
    next.advance(share);
  }
  for (int64_t k = whole; k < d.dim_k; ++k) write_rows<T, 1>(d, from, to, k, u);
}

// V-first: rows of K. A row is read, solved and written while it lies in the first-level cache.
template <class T, int ROWS>
inline void decode_columns(const DecodeStep& d, const T* from, T* to, int64_t v) {
  Vec sum[ROWS];
  float u[ROWS];
  LINATTN_UNROLL
  for (int i = 0; i < ROWS; ++i) u[i] = d.v[v + i], sum[i] = 0.0f;
  if (d.delta) {
    for (int64_t k = 0; k < d.dim_k; k += kWidth) {
      const Vec w = load(d.k + k) * load(d.decay + k);
      LINATTN_UNROLL
      for (int i = 0; i < ROWS; ++i)
        sum[i] = sum[i] + w * load_lanes(from + (v + i) * d.ld_in + k, d.dim_k - k);
    }
    LINATTN_UNROLL
    for (int i = 0; i < ROWS; ++i) u[i] = (u[i] - stdx::reduce(sum[i])) * d.beta, sum[i] = 0.0f;
  }
  for (int64_t k = 0; k < d.dim_k; k += kWidth) {
    const Vec decay = load(d.decay + k), key = load(d.k + k), query = load(d.q + k);
    LINATTN_UNROLL
    for (int i = 0; i < ROWS; ++i) {
      const Vec held = load_lanes(from + (v + i) * d.ld_in + k, d.dim_k - k) * decay;
      const Vec s = fused(key, u[i], held);
      store_lanes(s, to + (v + i) * d.ld_out + k, d.dim_k - k);
      sum[i] = sum[i] + query * s;
    }
  }
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
