// The state's part of a chunk, one column panel at a time: the panel of S, the chunk's R and the
// accumulators of a row tile stay close while the operands of the chunk stream past.

void chunk_step(const ChunkStep& c) {
  for_panels(c.columns, [&]<int NV>(int64_t j) {
    float* s = c.s + j;
    float* r = c.r + j;
    if (c.a != nullptr)
      for_row_tiles(c.tokens, [&]<int MR>(int64_t i) {
        Tile<MR, NV> t;
        t.zero();
        t.multiply(c.dim_k, c.ka + i * c.ld_k, c.ld_k, 1, s, c.ld_v);
        const float* a = c.a + i * c.ld_a;
        t.multiply(i, a, c.ld_a, 1, r, c.ld_v);
        LINATTN_UNROLL
        for (int p = 0; p < MR; ++p) {
          const Vec beta = c.beta[i + p];
          Vec x[NV];
          LINATTN_UNROLL
          for (int v = 0; v < NV; ++v) {
            float* to = r + (i + p) * c.ld_v + v * kWidth;
            x[v] = (load(to) - t.x[p][v]) * beta;
            store(x[v], to);
          }
          LINATTN_UNROLL
          for (int q = p + 1; q < MR; ++q) {
            const Vec w = a[q * c.ld_a + i + p];
            LINATTN_UNROLL
            for (int v = 0; v < NV; ++v) t.x[q][v] = t.x[q][v] + w * x[v];
          }
        }
      });
    if (c.o != nullptr)
      for_row_tiles(c.tokens, [&]<int MR>(int64_t i) {
        Tile<MR, NV> t;
        t.zero();
        t.multiply(c.dim_k, c.qa + i * c.ld_k, c.ld_k, 1, s, c.ld_v);
        const float* p = c.p + i * c.ld_a;
        t.multiply(i, p, c.ld_a, 1, r, c.ld_v);
        LINATTN_UNROLL
        for (int u = 0; u < MR; ++u) LINATTN_UNROLL
        for (int q = u; q < MR; ++q) t.multiply_row(q, p[q * c.ld_a + i + u], r + (i + u) * c.ld_v);
        t.write(c.o + i * c.ld_v + j, c.ld_v);
      });
    for_row_tiles(c.dim_k, [&]<int MR>(int64_t i) {
      Tile<MR, NV> t;
      t.zero();
      t.multiply(c.tokens, c.kr + i * c.ld_c, c.ld_c, 1, r, c.ld_v);
      t.add_to_scaled(s + i * c.ld_v, c.ld_v, c.gamma + i);
    });
  });
}
