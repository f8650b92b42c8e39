// From a chunk's rows to its record: decayed operands, A, P and the chunk's own decay.
// No difference of cumulated gates occurs and no exponential above one for a gate below zero:
// decays over a few tokens are products, over more they are exponentials of sums, so a gate of
// -inf is a factor 0 like any other.

// Tokens of a diagonal block: the finest blocks that fill a vector.
constexpr int kBlock = kWidth > 8 ? static_cast<int>(kWidth) : 8;
constexpr int kBlockVecs = kBlock / static_cast<int>(kWidth);

template <int N, int... I>
inline Vec first_lanes(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return std::bit_cast<Vec>(__builtin_shufflevector(std::bit_cast<Raw>(a), std::bit_cast<Raw>(b),
                                                    (I < N ? I : I + static_cast<int>(kWidth))...));
}
// Lanes below N from a, the others from b.
template <int N>
inline Vec first_lanes(Vec a, Vec b) {
  if constexpr (N <= 0)
    return b;
  else if constexpr (N >= static_cast<int>(kWidth))
    return a;
  else
    return first_lanes<N>(a, b, std::make_integer_sequence<int, static_cast<int>(kWidth)>());
}

// Factors of A's rows and columns, in double; `unit` is written.
struct KeyScales {
  double *rows, *columns;

  KeyScales(const ChunkRecord& c)
      : rows(reinterpret_cast<double*>(c.work)), columns(rows + kMaxChunk) {
    if (!c.delta) return;
    for (int64_t i = 0; i < c.tokens; ++i) {
      const double square = sum_of_squares(c.kq + i * 2 * c.ld_k, c.dim_k);
      double wanted = square, factor = 1;
      if (c.inverse_norms != nullptr) {
        const double inverse = c.inverse_norms[i];
        wanted = 1 - 1e-6 * inverse * inverse;
        if (square > 0) factor = __builtin_sqrt(wanted / square);
      }
      c.unit[i] = mantissa(wanted);
      rows[i] = factor / c.unit[i];
      columns[i] = factor;
    }
    for (int64_t i = c.tokens; i < padded(c.tokens); ++i) columns[i] = 1;
  }
  static float* rest_of(float* work) { return work + 4 * kMaxChunk; }
};

// Rows FIRST.. of a diagonal block against all tokens of the block, one vector of tokens at a time
// (lane j is token j): keys decay as the row moves on, and are left decayed to the last row.
// Lane j of row i is right for j <= i; beyond it lies a future token that nobody reads.
template <bool DELTA, int FIRST, int ROWS, int VEC>
inline void diagonal_rows(const ChunkRecord& c, const PreciseScale& scale, const float* q,
                          const float* k, const float* d, float* kr, float* ap) {
  constexpr int lane = VEC * static_cast<int>(kWidth);
  constexpr int64_t kTerms = 4;  // of A in fp32 before they go to the sum in double
  PreciseSum sum[ROWS];
  Vec p[ROWS];
  LINATTN_UNROLL
  for (int i = 0; i < ROWS; ++i) p[i] = 0.0f;
  for (int64_t first = 0; first < c.dim_k; first += kTerms) {
    Vec a[ROWS];
    LINATTN_UNROLL
    for (int i = 0; i < ROWS; ++i) a[i] = 0.0f;
    const int64_t end = smaller(first + kTerms, c.dim_k);
    for (int64_t x = first; x < end; ++x) {
      Vec key = load(kr + x * c.ld_c + lane);
      [&]<int... I>(std::integer_sequence<int, I...>) {
        (
            [&] {
              constexpr int row = FIRST + I;
              key = first_lanes<row - lane>(key * d[row * c.ld_k + x], key);
              if constexpr (DELTA) a[I] = a[I] + k[row * 2 * c.ld_k + x] * key;
              p[I] = p[I] + q[row * 2 * c.ld_k + x] * key;
            }(),
            ...);
      }(std::make_integer_sequence<int, ROWS>());
      store(key, kr + x * c.ld_c + lane);
    }
    if constexpr (DELTA)
      for (int i = 0; i < ROWS; ++i) sum[i].add(a[i]);
  }
  LINATTN_UNROLL
  for (int i = 0; i < ROWS; ++i) {
    float* row = ap + (FIRST + i) * 2 * c.ld_c + lane;
    if constexpr (DELTA) sum[i].write(row, scale.rows[FIRST + i], scale.columns + lane);
    store(p[i], row + c.ld_c);
  }
}

// Rows whose accumulators for A and P fit the registers.
constexpr int kDiagonalRows = kTileRows > 6 ? 8 : 4;

template <bool DELTA, int VEC, int FIRST, int ROWS = kDiagonalRows>
inline void diagonal_from(const ChunkRecord& c, const PreciseScale& scale, int rows, const float* q,
                          const float* k, const float* d, float* kr, float* ap) {
  if constexpr (FIRST < kBlock && ROWS > 0) {
    if (rows - FIRST < ROWS)
      return diagonal_from<DELTA, VEC, FIRST, ROWS - 1>(c, scale, rows, q, k, d, kr, ap);
    // Rows above this vector's first token have nothing to do with it.
    if constexpr (FIRST + ROWS > VEC * static_cast<int>(kWidth))
      diagonal_rows<DELTA, FIRST, ROWS, VEC>(c, scale, q, k, d, kr, ap);
    if constexpr (ROWS == kDiagonalRows)
      diagonal_from<DELTA, VEC, FIRST + ROWS>(c, scale, rows, q, k, d, kr, ap);
  }
}

template <bool DELTA>
inline void diagonal_block(const ChunkRecord& c, const PreciseScale& scale, int rows,
                           const float* q, const float* k, const float* d, float* kr, float* ap) {
  diagonal_from<DELTA, 0, 0>(c, scale, rows, q, k, d, kr, ap);
  if constexpr (kBlockVecs > 1) diagonal_from<DELTA, 1, 0>(c, scale, rows, q, k, d, kr, ap);
  static_assert(kBlockVecs <= 2);
}

// Keys [first, first + count) as columns of kr, with zeros up to `lanes`.
inline void keys_to_columns(const ChunkRecord& c, int64_t first, int64_t count, int64_t lanes) {
  for (int64_t i = 0; i < lanes; i += kWidth)
    transpose_band(c.kq + (first + i) * 2 * c.ld_k, 2 * c.ld_k, count - i, c.dim_k,
                   c.kr + first + i, c.ld_c);
}

// Rows of A and P, n columns of them, from rows of k and q that take turns.
inline void products(const ChunkRecord& c, const PreciseScale& scale, int64_t rows, int64_t n,
                     const float* kq, double* wide, float* ap) {
  if (c.delta) {
    for (int64_t i = 0; i < rows; ++i) widen(kq + i * 2 * c.ld_k, c.dim_k, wide + i * c.ld_k);
    precise_product(rows, n, c.dim_k, wide, c.ld_k, c.kr, c.ld_c, ap, 2 * c.ld_c, scale);
  }
  gemm({.m = rows,
        .n = n,
        .k = c.dim_k,
        .a = kq + c.ld_k,
        .a_row = 2 * c.ld_k,
        .b = c.kr,
        .b_row = c.ld_c,
        .c = ap + c.ld_c,
        .c_row = 2 * c.ld_c});
}

void channel_record(const ChunkRecord& c) {
  const int64_t width = padded(c.dim_k);
  const KeyScales scales(c);
  float* block_decay = KeyScales::rest_of(c.work);  // [K] over the current block
  float* prefix = block_decay + c.ld_k;             // [K] over the blocks before it
  float* total = prefix + c.ld_k;                   // [K] sum of gates so far
  float* decayed = total + c.ld_k;                  // [2 kBlock, ld_k]: rows from the block's start
  double* wide = reinterpret_cast<double*>(decayed + 2 * kBlock * c.ld_k);
  for (int64_t x = 0; x < width; x += kWidth) {
    store(Vec(1.0f), prefix + x);
    store(Vec(0.0f), total + x);
  }
  for (int64_t first = 0; first < c.tokens; first += kBlock) {
    const int64_t rows = smaller(c.tokens - first, kBlock);
    float* d = c.g + first * c.ld_k;
    float* kq = c.kq + first * 2 * c.ld_k;
    for (int64_t x = 0; x < width; x += kWidth) {
      Vec sum = 0.0f, decay = 1.0f;
      for (int64_t i = 0; i < rows; ++i) {
        const Vec g = load(d + i * c.ld_k + x);
        sum = sum + g;
        const Vec e = exp_of(g);
        store(e, d + i * c.ld_k + x);
        decay = decay * e;
        float* from = kq + i * 2 * c.ld_k + x;
        float* to = decayed + i * 2 * c.ld_k + x;
        store(load(from) * decay, to);
        store(load(from + c.ld_k) * decay, to + c.ld_k);
      }
      store(exp_of(sum), block_decay + x);
      const Vec all = load(total + x) + sum;
      store(all, total + x);
      store(exp_of(all), c.gamma + x);
    }
    float* ap = c.ap + first * 2 * c.ld_c;
    if (first > 0) {
      products(c, {scales.rows + first, scales.columns}, rows, first, decayed, wide, ap);
      for (int64_t x = 0; x < c.dim_k; ++x) {
        const Vec s = block_decay[x];
        float* row = c.kr + x * c.ld_c;
        for (int64_t j = 0; j < first; j += kWidth) store(load(row + j) * s, row + j);
      }
    }
    keys_to_columns(c, first, rows, kBlock);
    const PreciseScale scale{scales.rows + first, scales.columns + first};
    const int count = static_cast<int>(rows);
    if (c.delta)
      diagonal_block<true>(c, scale, count, kq + c.ld_k, kq, d, c.kr + first, ap + first);
    else
      diagonal_block<false>(c, scale, count, kq + c.ld_k, kq, d, c.kr + first, ap + first);
    for (int64_t i = 0; i < 2 * rows; ++i)
      for (int64_t x = 0; x < width; x += kWidth)
        store(load(decayed + i * c.ld_k + x) * load(prefix + x), kq + i * c.ld_k + x);
    for (int64_t x = 0; x < width; x += kWidth) store(load(c.gamma + x), prefix + x);
  }
}

// Head gates: A and P come under the decays between their tokens. Out are each token's decays from
// the chunk's start and to its end, with zeros behind the last in whole vectors.
inline void head_decays(int64_t tokens, const float* g, bool delta, float* ap, int64_t ld_c,
                        float* from_start, float* to_end) {
  const int64_t width = padded(tokens);
  float* since = to_end;  // sum of the gates after token j up to the current row
  for (int64_t j = 0; j < width; j += kWidth) store(Vec(0.0f), since + j);
  float start = 0.0f;
  for (int64_t i = 0; i < tokens; ++i) {
    start += g[i];
    const int64_t end = i + 1;
    for (int64_t j = 0; j < end; j += kWidth) store(load(since + j) + g[i], since + j);
    since[i] = 0.0f;
    float* a = ap + i * 2 * ld_c;
    float* p = a + ld_c;
    for (int64_t j = 0; j < end; j += kWidth) {
      const Vec w = exp_of(load(since + j));
      if (delta) store(load(a + j) * w, a + j);
      store(load(p + j) * w, p + j);
    }
    from_start[i] = start;
  }
  exp_array(from_start, tokens, from_start);
  exp_array(since, tokens, to_end);
  for (int64_t j = tokens; j < width; ++j) from_start[j] = to_end[j] = 0.0f;
}

void head_record(const ChunkRecord& c) {
  const int64_t width = padded(c.tokens);
  const KeyScales scales(c);
  float* work = KeyScales::rest_of(c.work);
  double* wide = reinterpret_cast<double*>(work + 2 * kMaxChunk);
  transpose(c.kq, 2 * c.ld_k, c.tokens, c.dim_k, c.kr, c.ld_c);
  for (int64_t first = 0; first < c.tokens; first += kTileRows) {
    const int64_t rows = smaller(c.tokens - first, kTileRows);
    products(c, {scales.rows + first, scales.columns}, rows, first + rows,
             c.kq + first * 2 * c.ld_k, wide, c.ap + first * 2 * c.ld_c);
  }
  if (c.g == nullptr) {
    for (int64_t x = 0; x < c.dim_k; ++x) c.gamma[x] = 1.0f;
    return;
  }
  float *from_start = work, *to_end = work + kMaxChunk;
  head_decays(c.tokens, c.g, c.delta, c.ap, c.ld_c, from_start, to_end);
  for (int64_t i = 0; i < c.tokens; ++i) {
    const Vec w = from_start[i];
    float* row = c.kq + i * 2 * c.ld_k;
    for (int64_t x = 0; x < padded(c.dim_k); x += kWidth) {
      if (c.delta) store(load(row + x) * w, row + x);
      store(load(row + c.ld_k + x) * w, row + c.ld_k + x);
    }
  }
  const float gamma = from_start[c.tokens - 1];
  for (int64_t x = 0; x < c.dim_k; ++x) {
    c.gamma[x] = gamma;
    for (int64_t j = 0; j < width; j += kWidth) {
      float* at = c.kr + x * c.ld_c + j;
      store(load(at) * load(to_end + j), at);
    }
  }
}
