// The state's part of a chunk, one column panel at a time: the panel of S, the chunk's R and the
// accumulators of a row tile stay close while the operands of the chunk stream past.

inline int64_t ahead_turns(const ChunkStep& c) {
  const int64_t reads = (c.a != nullptr ? 2 : 1) * ceil_div(c.tokens, kTileRows);
  const int64_t updates = ceil_div(c.dim_k, kTileRows);
  return ceil_div(c.columns, kTileVecs * kWidth) *
         (reads * ceil_div(c.dim_k, kAheadTerms) + updates);
}

// Rows [i, i + MR) of R, in place of V: beta (V - Ka S - unit A R), where `read` is Ka S.
template <int MR, int NV>
inline void solve_rows(const ChunkStep& c, int64_t i, const Tile<MR, NV>& read, float* r) {
  Tile<MR, NV> t;
  t.zero();
  const float* a = c.a + i * c.ld_a;
  t.multiply(i, a, c.ld_a, 1, r, c.ld_v);
  LINATTN_UNROLL
  for (int p = 0; p < MR; ++p) {
    // In double and rounded once: with two roundings ties are so frequent where a key repeats at
    // beta 2 that their errors add up.
    const double beta = c.beta[i + p], factor = -beta * c.unit[i + p];
    Vec x[NV];
    LINATTN_UNROLL
    for (int v = 0; v < NV; ++v) {
      float* to = r + (i + p) * c.ld_v + v * kWidth;
      const WideVec value(load(to)), state(read.x[p][v]);
      WideVec sum(t.x[p][v]);
      sum.low = fused(sum.low, factor, (value.low - state.low) * beta);
      sum.high = fused(sum.high, factor, (value.high - state.high) * beta);
      x[v] = sum.rounded();
      store(x[v], to);
    }
    LINATTN_UNROLL
    for (int q = p + 1; q < MR; ++q) {
      const Vec w = a[q * c.ld_a + i + p];
      LINATTN_UNROLL
      for (int v = 0; v < NV; ++v) t.x[q][v] = t.x[q][v] + w * x[v];
    }
  }
}

// t += rows [i, i + MR) of tril(P) R.
template <int MR, int NV>
inline void add_earlier(const ChunkStep& c, int64_t i, const float* r, Tile<MR, NV>& t) {
  const float* p = c.p + i * c.ld_a;
  t.multiply(i, p, c.ld_a, 1, r, c.ld_v);
  LINATTN_UNROLL
  for (int u = 0; u < MR; ++u) LINATTN_UNROLL
  for (int q = u; q < MR; ++q) t.multiply_row(q, p[q * c.ld_a + i + u], r + (i + u) * c.ld_v);
}

void chunk_step(const ChunkStep& c) {
  AheadCursor ahead(c.ahead, ahead_turns(c));
  for_panels(c.columns, [&]<int NV>(int64_t j) {
    float* s = c.s + j;
    float* r = c.r + j;
    if (c.a != nullptr)
      for_row_tiles(c.tokens, [&]<int MR>(int64_t i) {
        Tile<MR, NV> t;
        t.zero();
        multiply_ahead(t, ahead, c.dim_k, c.ka + i * c.ld_k, c.ld_k, 1, s, c.ld_v);
        solve_rows(c, i, t, r);
      });
    for_row_tiles(c.tokens, [&]<int MR>(int64_t i) {
      Tile<MR, NV> t;
      t.zero();
      multiply_ahead(t, ahead, c.dim_k, c.qa + i * c.ld_k, c.ld_k, 1, s, c.ld_v);
      add_earlier(c, i, r, t);
      t.write(c.o + i * c.ld_v + j, c.ld_v);
    });
    for_row_tiles(c.dim_k, [&]<int MR>(int64_t i) {
      ahead.next();
      Tile<MR, NV> t;
      t.zero();
      t.multiply(c.tokens, c.kr + i * c.ld_c, c.ld_c, 1, r, c.ld_v);
      t.add_to_scaled(s + i * c.ld_v, c.ld_v, c.gamma + i);
    });
  });
}
