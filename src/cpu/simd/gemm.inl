// Products and triangular solves on register tiles of MR rows and NV vectors. Column panels are the
// outer loop: a panel of B stays in the first-level cache while the rows of A stream past it.

template <int MR, int NV>
struct Tile {
  Vec x[MR][NV];

  void zero() {
    LINATTN_UNROLL
    for (int i = 0; i < MR; ++i) LINATTN_UNROLL
    for (int j = 0; j < NV; ++j) x[i][j] = 0.0f;
  }

  // x += A[0:MR, 0:k] B[0:k, 0:NV]
  void multiply(int64_t k, const float* a, int64_t a_row, int64_t a_col, const float* b,
                int64_t b_row) {
    for (int64_t p = 0; p < k; ++p) {
      Vec row[NV];
      LINATTN_UNROLL
      for (int j = 0; j < NV; ++j) row[j] = load(b + p * b_row + j * kWidth);
      LINATTN_UNROLL
      for (int i = 0; i < MR; ++i) {
        const Vec s = a[i * a_row + p * a_col];
        LINATTN_UNROLL
        for (int j = 0; j < NV; ++j) x[i][j] = x[i][j] + s * row[j];
      }
    }
  }

  void multiply_row(int i, float a, const float* b) {
    const Vec s = a;
    LINATTN_UNROLL
    for (int j = 0; j < NV; ++j) x[i][j] = x[i][j] + s * load(b + j * kWidth);
  }

  void write(float* c, int64_t c_row) const {
    LINATTN_UNROLL
    for (int i = 0; i < MR; ++i) LINATTN_UNROLL
    for (int j = 0; j < NV; ++j) store(x[i][j], c + i * c_row + j * kWidth);
  }

  void add_to(float* c, int64_t c_row) const {
    LINATTN_UNROLL
    for (int i = 0; i < MR; ++i) LINATTN_UNROLL
    for (int j = 0; j < NV; ++j) {
      float* p = c + i * c_row + j * kWidth;
      store(load(p) + x[i][j], p);
    }
  }

  void add_to_scaled(float* c, int64_t c_row, const float* scale) const {
    LINATTN_UNROLL
    for (int i = 0; i < MR; ++i) {
      const Vec s = scale[i];
      LINATTN_UNROLL
      for (int j = 0; j < NV; ++j) {
        float* p = c + i * c_row + j * kWidth;
        store(s * load(p) + x[i][j], p);
      }
    }
  }

  void subtract_from(float* c, int64_t c_row) const {
    LINATTN_UNROLL
    for (int i = 0; i < MR; ++i) LINATTN_UNROLL
    for (int j = 0; j < NV; ++j) {
      float* p = c + i * c_row + j * kWidth;
      store(load(p) - x[i][j], p);
    }
  }
};

// A small remainder is shared with the last whole tile: two rows alone would leave the multipliers
// waiting for their own results.
struct RowTiles {
  int64_t whole, first_part, second_part;

  explicit RowTiles(int64_t m) : whole(m / kTileRows), first_part(m % kTileRows), second_part(0) {
    if (whole > 0 && first_part > 0 && first_part <= kTileRows / 2) {
      const int64_t rows = kTileRows + first_part;
      --whole, first_part = (rows + 1) / 2, second_part = rows / 2;
    }
  }
};

template <class F>
inline void row_tile(int64_t rows, int64_t i, F f) {
  switch (rows) {
    case 1:
      f.template operator()<1>(i);
      break;
    case 2:
      f.template operator()<2>(i);
      break;
    case 3:
      f.template operator()<3>(i);
      break;
    case 4:
      f.template operator()<4>(i);
      break;
    case 5:
      f.template operator()<5>(i);
      break;
    case 6:
      if constexpr (kTileRows > 6) f.template operator()<6>(i);
      break;
    case 7:
      if constexpr (kTileRows > 6) f.template operator()<7>(i);
      break;
    default:
      break;
  }
}

// Calls f.template operator()<rows>(first row) for row tiles from the top, or from the bottom.
template <class F>
inline void for_row_tiles(int64_t m, F f) {
  const RowTiles tiles(m);
  const int64_t end = tiles.whole * kTileRows;
  for (int64_t i = 0; i < end; i += kTileRows) f.template operator()<kTileRows>(i);
  row_tile(tiles.first_part, end, f);
  row_tile(tiles.second_part, end + tiles.first_part, f);
}
template <class F>
inline void for_row_tiles_reversed(int64_t m, F f) {
  const RowTiles tiles(m);
  const int64_t end = tiles.whole * kTileRows;
  row_tile(tiles.second_part, end + tiles.first_part, f);
  row_tile(tiles.first_part, end, f);
  for (int64_t i = end; i > 0; i -= kTileRows) f.template operator()<kTileRows>(i - kTileRows);
}

// Calls f.template operator()<vectors>(first column) for column panels of whole vectors.
template <class F>
inline void for_panels(int64_t n, F f) {
  int64_t j = 0;
  for (; j + (kTileVecs - 1) * kWidth < n; j += kTileVecs * kWidth)
    f.template operator()<kTileVecs>(j);
  static_assert(kTileVecs == 2);
  if (j < n) f.template operator()<1>(j);
}

constexpr int64_t kAheadTerms = 32;  // of a product between two portions

template <int MR, int NV>
__attribute__((always_inline)) inline void multiply_ahead(Tile<MR, NV>& t, AheadCursor& ahead,
                                                          int64_t k, const float* a, int64_t a_row,
                                                          int64_t a_col, const float* b,
                                                          int64_t b_row) {
  for (int64_t p = 0; p < k; p += kAheadTerms) {
    ahead.next();
    t.multiply(smaller(kAheadTerms, k - p), a + p * a_col, a_row, a_col, b + p * b_row, b_row);
  }
}

void gemm(const Gemm& g) {
  AheadCursor ahead(g.ahead, ceil_div(g.n, kTileVecs * kWidth) * ceil_div(g.m, kTileRows) *
                                 ceil_div(g.k, kAheadTerms));
  for_panels(g.n, [&]<int NV>(int64_t j) {
    for_row_tiles(g.m, [&]<int MR>(int64_t i) {
      Tile<MR, NV> t;
      t.zero();
      const float* a = g.a + i * g.a_row;
      if (g.ahead == nullptr)
        t.multiply(g.k, a, g.a_row, g.a_col, g.b + j, g.b_row);
      else
        multiply_ahead(t, ahead, g.k, a, g.a_row, g.a_col, g.b + j, g.b_row);
      float* c = g.c + i * g.c_row + j;
      if (g.into == Into::set)
        t.write(c, g.c_row);
      else if (g.into == Into::subtract)
        t.subtract_from(c, g.c_row);
      else if (g.row_scale != nullptr)
        t.add_to_scaled(c, g.c_row, g.row_scale + i);
      else
        t.add_to(c, g.c_row);
    });
  });
}

void lower_product(const Triangular& g) {
  for_panels(g.n, [&]<int NV>(int64_t j) {
    for_row_tiles(g.m, [&]<int MR>(int64_t i) {
      Tile<MR, NV> t;
      t.zero();
      const float* a = g.a + i * g.a_row;
      t.multiply(i, a, g.a_row, g.a_col, g.b + j, g.b_row);
      LINATTN_UNROLL
      for (int p = 0; p < MR; ++p) LINATTN_UNROLL
      for (int r = p; r < MR; ++r)
        t.multiply_row(r, a[r * g.a_row + (i + p) * g.a_col], g.b + (i + p) * g.b_row + j);
      float* c = g.c + i * g.c_row + j;
      g.into == Into::set ? t.write(c, g.c_row) : t.add_to(c, g.c_row);
    });
  });
}

void upper_product(const Triangular& g) {
  for_panels(g.n, [&]<int NV>(int64_t j) {
    for_row_tiles(g.m, [&]<int MR>(int64_t i) {
      Tile<MR, NV> t;
      t.zero();
      const float* a = g.a + i * g.a_row;
      LINATTN_UNROLL
      for (int p = 0; p < MR; ++p) LINATTN_UNROLL
      for (int r = 0; r <= p; ++r)
        t.multiply_row(r, a[r * g.a_row + (i + p) * g.a_col], g.b + (i + p) * g.b_row + j);
      t.multiply(g.m - i - MR, a + (i + MR) * g.a_col, g.a_row, g.a_col,
                 g.b + (i + MR) * g.b_row + j, g.b_row);
      float* c = g.c + i * g.c_row + j;
      g.into == Into::set ? t.write(c, g.c_row) : t.add_to(c, g.c_row);
    });
  });
}

// t holds what the rows above (below) contribute; finishes the tile's own rows against each other.
template <int MR, int NV>
inline void solve_tile_lower(Tile<MR, NV>& t, const float* a, int64_t a_row, int64_t a_col,
                             float* c, int64_t c_row) {
  LINATTN_UNROLL
  for (int p = 0; p < MR; ++p) {
    Vec x[NV];
    LINATTN_UNROLL
    for (int j = 0; j < NV; ++j) {
      float* to = c + p * c_row + j * kWidth;
      x[j] = load(to) - t.x[p][j];
      store(x[j], to);
    }
    LINATTN_UNROLL
    for (int r = p + 1; r < MR; ++r) {
      const Vec s = a[r * a_row + p * a_col];
      LINATTN_UNROLL
      for (int j = 0; j < NV; ++j) t.x[r][j] = t.x[r][j] + s * x[j];
    }
  }
}

template <int MR, int NV>
inline void solve_tile_upper(Tile<MR, NV>& t, const float* a, int64_t a_row, int64_t a_col,
                             float* c, int64_t c_row) {
  LINATTN_UNROLL
  for (int p = MR - 1; p >= 0; --p) {
    Vec x[NV];
    LINATTN_UNROLL
    for (int j = 0; j < NV; ++j) {
      float* to = c + p * c_row + j * kWidth;
      x[j] = load(to) - t.x[p][j];
      store(x[j], to);
    }
    LINATTN_UNROLL
    for (int r = 0; r < p; ++r) {
      const Vec s = a[r * a_row + p * a_col];
      LINATTN_UNROLL
      for (int j = 0; j < NV; ++j) t.x[r][j] = t.x[r][j] + s * x[j];
    }
  }
}

void lower_solve(const Triangular& g) {
  for_panels(g.n, [&]<int NV>(int64_t j) {
    for_row_tiles(g.m, [&]<int MR>(int64_t i) {
      Tile<MR, NV> t;
      t.zero();
      const float* a = g.a + i * g.a_row;
      t.multiply(i, a, g.a_row, g.a_col, g.c + j, g.c_row);
      solve_tile_lower(t, a + i * g.a_col, g.a_row, g.a_col, g.c + i * g.c_row + j, g.c_row);
    });
  });
}

void upper_solve(const Triangular& g) {
  for_panels(g.n, [&]<int NV>(int64_t j) {
    for_row_tiles_reversed(g.m, [&]<int MR>(int64_t i) {
      Tile<MR, NV> t;
      t.zero();
      const float* a = g.a + i * g.a_row;
      t.multiply(g.m - i - MR, a + (i + MR) * g.a_col, g.a_row, g.a_col,
                 g.c + (i + MR) * g.c_row + j, g.c_row);
      solve_tile_upper(t, a + i * g.a_col, g.a_row, g.a_col, g.c + i * g.c_row + j, g.c_row);
    });
  });
}
