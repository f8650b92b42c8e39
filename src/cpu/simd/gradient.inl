// Decay products and their gradients. The unit of work is a cache line of columns, held in
// registers down all rows.

constexpr int kLineVecs = kLanes / kWidth;

struct Line {
  Vec x[kLineVecs];
};

template <class F>
inline Line line_of(F f) {
  Line y;
  LINATTN_UNROLL
  for (int i = 0; i < kLineVecs; ++i) y.x[i] = f(i);
  return y;
}
inline Line read_line(const float* p) {
  return line_of([=](int i) { return load(p + i * kWidth); });
}
// The products write whole vectors, not whole lines: what lies past them may be NaN.
inline Line read_line_part(const float* p, int64_t columns) {
  return line_of([=](int i) { return i * kWidth < columns ? load(p + i * kWidth) : Vec(0.0f); });
}
inline void write_line(const Line& y, float* p) {
  LINATTN_UNROLL
  for (int i = 0; i < kLineVecs; ++i) store(y.x[i], p + i * kWidth);
}
inline Line splat(float s) {
  return line_of([=](int) { return Vec(s); });
}
inline Line operator*(const Line& a, const Line& b) {
  return line_of([&](int i) { return a.x[i] * b.x[i]; });
}
inline Line operator+(const Line& a, const Line& b) {
  return line_of([&](int i) { return a.x[i] + b.x[i]; });
}
inline Line operator*(float s, const Line& b) {
  return line_of([&](int i) { return Vec(s) * b.x[i]; });
}
inline Line multiply_add(const Line& a, const Line& b, const Line& c) {
  return line_of([&](int i) { return a.x[i] * b.x[i] + c.x[i]; });
}
inline Line multiply_add(float s, const Line& b, const Line& c) {
  return line_of([&](int i) { return Vec(s) * b.x[i] + c.x[i]; });
}

template <bool kTwo>
void prefix_rows_of(const PrefixRows& r) {
  for (int64_t c = 0; c < r.columns; c += kLanes) {
    Line decay = splat(1.0f);
    for (int64_t i = 0; i < r.rows; ++i) {
      const int64_t at = i * r.ld + c;
      decay = decay * read_line(r.a + at);
      write_line(decay * read_line(r.x[0] + at), r.out[0] + at);
      if constexpr (kTwo) write_line(decay * read_line(r.x[1] + at), r.out[1] + at);
    }
  }
}

void prefix_rows(const PrefixRows& r) {
  r.x[1] != nullptr ? prefix_rows_of<true>(r) : prefix_rows_of<false>(r);
}

void suffix_rows(const SuffixRows& r) {
  for (int64_t c = 0; c < r.columns; c += kLanes) {
    Line decay = splat(1.0f);
    for (int64_t i = r.rows - 1; i >= 0; --i) {
      const int64_t at = i * r.ld + c;
      write_line(decay * read_line(r.x + at), r.out + at);
      decay = decay * read_line(r.a + at);
    }
    if (r.total != nullptr) write_line(decay, r.total + c);
  }
}

template <bool kTwo>
void prefix_gradient_of(const PrefixGradient& g) {
  Line decay[kMaxChunk];
  for (int64_t c = 0; c < g.columns; c += kLanes) {
    Line product = splat(1.0f);
    for (int64_t i = 0; i < g.rows; ++i) {
      product = product * read_line(g.a + i * g.ld + c);
      decay[i] = product;
    }
    Line crossing = splat(0.0f);
    for (int64_t i = g.rows - 1; i >= 0; --i) {
      const int64_t at = i * g.ld + c;
      LINATTN_UNROLL
      for (int s = 0; s < (kTwo ? 2 : 1); ++s) {
        const Line dx = decay[i] * read_line(g.dy[s] + at);
        crossing = multiply_add(dx, read_line(g.x[s] + at), crossing);
        write_line(g.set ? dx : dx + read_line(g.dx[s] + at), g.dx[s] + at);
      }
      if (g.dlog != nullptr)
        write_line(g.set ? crossing : crossing + read_line(g.dlog + at), g.dlog + at);
    }
  }
}

void prefix_gradient(const PrefixGradient& g) {
  g.x[1] != nullptr ? prefix_gradient_of<true>(g) : prefix_gradient_of<false>(g);
}

void suffix_gradient(const SuffixGradient& g) {
  Line decay[kMaxChunk];
  for (int64_t c = 0; c < g.columns; c += kLanes) {
    Line product = splat(1.0f);
    for (int64_t i = g.rows - 1; i >= 0; --i) {
      decay[i] = product;
      product = product * read_line(g.a + i * g.ld + c);
    }
    Line crossing = g.through != nullptr ? read_line(g.through + c) : splat(0.0f);
    for (int64_t i = 0; i < g.rows; ++i) {
      const int64_t at = i * g.ld + c;
      if (g.dlog != nullptr) write_line(crossing + read_line(g.dlog + at), g.dlog + at);
      const Line dx = decay[i] * read_line(g.dy + at);
      crossing = multiply_add(dx, read_line(g.x + at), crossing);
      write_line(dx + read_line(g.dx + at), g.dx + at);
    }
  }
}

// C = A B with sums in double (precise.inl has the reason).
void precise_gemm(const Gemm& g) {
  constexpr int64_t kMost = 256;
  double wide[kTileRows * kMost];
  for_row_tiles(g.m, [&]<int MR>(int64_t i) {
    for (int r = 0; r < MR; ++r) widen(g.a + (i + r) * g.a_row, g.k, wide + r * kMost);
    for (int64_t j = 0; j < g.n; j += kWidth)
      precise_tile<MR>(g.k, wide, kMost, g.b + j, g.b_row, g.c + i * g.c_row + j, g.c_row);
  });
}

// Column j of a pair block: rows j .. j + kRows - 1. Keys with keys: a few terms in fp32, then
// double.
template <int kRows, bool kFirst, bool kSecond>
void pair_column(const PairBlock& p, int64_t j) {
  constexpr int64_t kTerms = 4 * kWidth;
  Vec sum[kRows];
  PreciseSum precise[kSecond ? kRows : 1];
  LINATTN_UNROLL
  for (int i = 0; i < kRows; ++i) sum[i] = 0.0f;
  const float* a = p.a + j * p.ld;
  const float* k = p.k + j * p.ld;
  const float* x0 = kFirst ? p.x[0] + j * p.ld : nullptr;
  const float* x1 = kSecond ? p.x[1] + j * p.ld : nullptr;
  const int64_t end = padded(p.columns);
  for (int64_t first = 0; first < end; first += kTerms) {
    Vec part[kRows];
    LINATTN_UNROLL
    for (int i = 0; i < kRows; ++i) part[i] = 0.0f;
    const int64_t last = smaller(first + kTerms, end);
    for (int64_t c = first; c < last; c += kWidth) {
      Vec w = load(k + c);
      LINATTN_UNROLL
      for (int i = 0; i < kRows; ++i) {
        if (i > 0) w = w * load(a + i * p.ld + c);
        if constexpr (kFirst) sum[i] = sum[i] + w * load(x0 + i * p.ld + c);
        if constexpr (kSecond) part[i] = part[i] + w * load(x1 + i * p.ld + c);
      }
    }
    if constexpr (kSecond)
      for (int i = 1; i < kRows; ++i) precise[i].add(part[i]);
  }
  LINATTN_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const int64_t at = (j + i) * p.ld_out + j;
    if constexpr (kFirst) p.out[0][at] = stdx::reduce(sum[i]);
    if constexpr (kSecond)
      if (i > 0) p.out[1][at] = precise[i].total();
  }
}

template <bool kFirst, bool kSecond>
void pair_block_of(const PairBlock& p) {
  static_assert(kPairRows == 8);
  for (int64_t j = 0; j < p.rows; ++j) switch (p.rows - j) {
      case 1:
        pair_column<1, kFirst, kSecond>(p, j);
        break;
      case 2:
        pair_column<2, kFirst, kSecond>(p, j);
        break;
      case 3:
        pair_column<3, kFirst, kSecond>(p, j);
        break;
      case 4:
        pair_column<4, kFirst, kSecond>(p, j);
        break;
      case 5:
        pair_column<5, kFirst, kSecond>(p, j);
        break;
      case 6:
        pair_column<6, kFirst, kSecond>(p, j);
        break;
      case 7:
        pair_column<7, kFirst, kSecond>(p, j);
        break;
      default:
        pair_column<8, kFirst, kSecond>(p, j);
        break;
    }
}

void pair_block(const PairBlock& p) {
  if (p.x[0] != nullptr && p.x[1] != nullptr)
    pair_block_of<true, true>(p);
  else if (p.x[0] != nullptr)
    pair_block_of<true, false>(p);
  else
    pair_block_of<false, true>(p);
}

// For a column j: w_i = k_j a_{j+1} .. a_i runs down the rows, and h_i, the gradient that reaches
// row i's side of the path, runs up them: h_i = c_i + a_{i+1} h_{i+1}, c_i = dp_ij q_i + da_ij k_i.
// Then dk_j = h_j, and log a_i gets w_i h_i for i > j.
// Rows past the block's end count as zero, so that every loop has a constant length.
template <bool kDelta>
void pair_gradient_of(const PairGradient& g) {
  constexpr int kRows = kPairRows;
  const int rows = static_cast<int>(g.rows);
  float dp[kRows][kRows] = {}, da[kRows][kRows] = {};
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j <= i; ++j) {
      dp[i][j] = g.dp[i * g.ld_p + j];
      if (kDelta && j < i) da[i][j] = g.da[i * g.ld_p + j];
    }
  const int64_t end = padded(g.columns);
  for (int64_t c = 0; c < end; c += kWidth) {
    Vec q[kRows], k[kRows], a[kRows], dq[kRows], dk[kRows], dlog[kRows];
    LINATTN_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const int64_t at = i * g.ld + c;
      const bool there = i < rows;
      q[i] = there ? load(g.q + at) : Vec(0.0f);
      k[i] = there ? load(g.k + at) : Vec(0.0f);
      a[i] = there ? load(g.a + at) : Vec(0.0f);
      dq[i] = dk[i] = dlog[i] = 0.0f;
    }
    LINATTN_UNROLL
    for (int j = 0; j < kRows; ++j) {
      Vec w[kRows];
      w[j] = k[j];
      const Vec same = dp[j][j];
      dq[j] = dq[j] + same * k[j];
      LINATTN_UNROLL
      for (int i = j + 1; i < kRows; ++i) {
        w[i] = w[i - 1] * a[i];
        dq[i] = dq[i] + Vec(dp[i][j]) * w[i];
        if constexpr (kDelta) dk[i] = dk[i] + Vec(da[i][j]) * w[i];
      }
      Vec h = 0.0f;
      LINATTN_UNROLL
      for (int i = kRows - 1; i > j; --i) {
        h = h + Vec(dp[i][j]) * q[i];
        if constexpr (kDelta) h = h + Vec(da[i][j]) * k[i];
        dlog[i] = dlog[i] + w[i] * h;
        h = h * a[i];
      }
      dk[j] = dk[j] + (h + same * q[j]);
    }
    LINATTN_UNROLL
    for (int i = 0; i < kRows; ++i) {
      if (i >= rows) break;
      const int64_t at = i * g.ld + c;
      store(load(g.dq + at) + dq[i], g.dq + at);
      store(load(g.dk + at) + dk[i], g.dk + at);
      if (g.dlog != nullptr) store(load(g.dlog + at) + dlog[i], g.dlog + at);
    }
  }
}

void pair_gradient(const PairGradient& g) {
  g.da != nullptr ? pair_gradient_of<true>(g) : pair_gradient_of<false>(g);
}

// A zero gradient stays zero whatever it is multiplied by: an underflown decay has log decay -inf.
inline Vec chain(Vec gradient, Vec derivative) {
  Vec y = gradient * derivative;
  stdx::where(gradient == 0.0f, y) = 0.0f;
  return y;
}

float gate_gradient(const GateGradient& g) {
  const bool softplus = g.lower_bound == 0.0f;
  Vec by_factor = 0.0f;
  for (int64_t c = 0; c < g.columns; c += kWidth) {
    const Vec bias = g.bias != nullptr ? load(g.bias + c) : Vec(0.0f);
    Vec by_bias = load(g.dbias + c);
    for (int64_t i = 0; i < g.rows; ++i) {
      const Vec x = load(g.x + i * g.ld + c) + bias;
      const Vec dlog = load(g.dlog + i * g.ld + c);
      Vec dx;
      if (softplus) {
        dx = chain(dlog, sigmoid_of(x) * -g.factor);
        by_factor = by_factor + chain(dlog, softplus_of(x) * -g.factor);
      } else {
        const Vec z = x * g.factor;
        const Vec slope = sigmoid_of(z) * sigmoid_of(-z) * g.lower_bound;
        const Vec dz = chain(dlog, slope);
        dx = chain(dz, Vec(g.factor));
        by_factor = by_factor + chain(dz, z);
      }
      by_bias = by_bias + dx;
      store(dx, g.dlog + i * g.ld + c);
    }
    store(by_bias, g.dbias + c);
  }
  return stdx::reduce(by_factor);
}

void row_dots(const float* x, const float* y, int64_t ld, int64_t rows, int64_t columns,
              float* out) {
  for (int64_t i = 0; i < rows; ++i) {
    Line sum = splat(0.0f);
    for (int64_t c = 0; c < columns; c += kLanes)
      sum = multiply_add(read_line_part(x + i * ld + c, columns - c),
                         read_line_part(y + i * ld + c, columns - c), sum);
    float total = 0;
    for (int j = 0; j < kLineVecs; ++j) total += stdx::reduce(sum.x[j]);
    out[i] = total;
  }
}

void scaled_copy(const float* x, int64_t ld, int64_t rows, int64_t columns, const float* scale,
                 float factor, float* out, int64_t ld_out, bool add) {
  for (int64_t i = 0; i < rows; ++i) {
    const float s = scale == nullptr ? factor : scale[i] * factor;
    for (int64_t c = 0; c < columns; c += kLanes) {
      float* to = out + i * ld_out + c;
      const Line in = read_line(x + i * ld + c);
      write_line(add ? multiply_add(s, in, read_line(to)) : s * in, to);
    }
  }
}

void norm_gradient(const float* x, const float* inverse_norms, int64_t ld, int64_t rows,
                   int64_t columns, float* dy) {
  for (int64_t i = 0; i < rows; ++i) {
    Line sum = splat(0.0f);
    for (int64_t c = 0; c < columns; c += kLanes)
      sum = multiply_add(read_line_part(x + i * ld + c, columns - c),
                         read_line_part(dy + i * ld + c, columns - c), sum);
    float along = 0;
    for (int j = 0; j < kLineVecs; ++j) along += stdx::reduce(sum.x[j]);
    const float r = inverse_norms[i], back = -along * r * r * r;
    for (int64_t c = 0; c < columns; c += kLanes) {
      float* to = dy + i * ld + c;
      write_line(multiply_add(back, read_line(x + i * ld + c), r * read_line(to)), to);
    }
  }
}
