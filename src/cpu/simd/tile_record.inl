// The record of a chunk for chunk_step_tiles where the gate is one of a head: keys and queries stay
// the bf16 numbers that they were, exact operands of the tiles, and all that a token's row is
// multiplied by (norm, scale, decay) is a factor of the sums.
#if defined(__AMX_BF16__)

inline float dot_self(const uint16_t* row, int64_t n) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t x = 0; x < n; x += 32) {
    const auto v = std::bit_cast<__m512bh>(_mm512_loadu_si512(row + x));
    sum = _mm512_dpbf16_ps(sum, v, v);
  }
  return _mm512_reduce_add_ps(sum);
}

// Rows of bf16 as they are, zeros behind the last token; factors: 1 or 1 / |row|, times `scale`.
inline void copy_rows(const TileRecord& c, const void* from, int64_t stride, float scale,
                      uint32_t* to, float* factor) {
  for (int64_t i = 0; i < kTileTokens; ++i) {
    const uint16_t* row = static_cast<const uint16_t*>(from) + i * stride;
    uint32_t* out = to + i * c.dim_k / 2;
    for (int64_t x = 0; x < c.dim_k; x += 32)
      store_words(i < c.tokens ? _mm512_loadu_si512(row + x) : _mm512_setzero_si512(), out + x / 2);
    if (i >= c.tokens)
      factor[i] = 0;
    else
      factor[i] = c.norm ? scale / __builtin_sqrtf(dot_self(row, c.dim_k) + 1e-6f) : scale;
  }
}

// Keys as columns: pairs of channels of a token in [dim_k / 2, kTileTokens] words, and its channels
// in [dim_k, kTileTokens] of bf16.
inline void turn_keys(const TileRecord& c, const TileWork& w, uint32_t* words) {
  const int64_t row = c.dim_k / 2;
  for (int64_t i = 0; i < kTileTokens; i += kWidth)
    transpose_band(reinterpret_cast<const float*>(w.key_high + i * row), row, kWidth, row,
                   reinterpret_cast<float*>(words + i), kTileTokens);
  alignas(64) static constexpr auto even = [] {
    struct {
      uint16_t lane[32];
    } o{};
    for (uint16_t i = 0; i < 32; ++i) o.lane[i] = static_cast<uint16_t>(2 * i);
    return o;
  }();
  const __m512i low = _mm512_load_si512(&even), high = _mm512_add_epi16(low, _mm512_set1_epi16(1));
  for (int64_t x = 0; x < row; ++x) {
    const __m512i a = _mm512_load_si512(words + x * kTileTokens);
    const __m512i b = _mm512_load_si512(words + x * kTileTokens + kWidth);
    store_words(_mm512_permutex2var_epi16(a, low, b), w.right_high + x * kTileTokens);
    store_words(_mm512_permutex2var_epi16(a, high, b),
                w.right_high + x * kTileTokens + kTileTokens / 2);
  }
}

struct alignas(64) TokenProducts {
  float of_keys[kTileTokens][kTileTokens], of_queries[kTileTokens][kTileTokens];
};

// Products of all rows with all keys, but for the upper right quarter.
inline void token_products(const TileRecord& c, const uint32_t* rows, const uint32_t* words,
                           float (*out)[kTileTokens]) {
  const int64_t stride = c.dim_k * 2, half = kTileSide * c.dim_k / 2;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  for (int64_t x = 0; x < c.dim_k / 2; x += kTileSide) {
    _tile_loadd(3, rows + x, stride);
    _tile_loadd(4, rows + half + x, stride);
    _tile_loadd(5, words + x * kTileTokens, kTileTokens * 4);
    _tile_loadd(6, words + x * kTileTokens + kTileSide, kTileTokens * 4);
    _tile_dpbf16ps(0, 3, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 6);
  }
  _tile_stored(0, out[0], kTileTokens * 4);
  _tile_stored(1, out[kTileSide], kTileTokens * 4);
  _tile_stored(2, out[kTileSide] + kTileSide, kTileTokens * 4);
}

void head_record_tiles(const TileRecord& c) {
  const TileWork w(c.tiles, c.dim_k);
  uint32_t* words = w.key_low;  // keys are exact
  copy_rows(c, c.k, c.k_stride, 1.0f, w.key_high, c.factors.key);
  copy_rows(c, c.q, c.q_stride, c.scale, w.query, c.factors.query);
  turn_keys(c, w, words);
  TokenProducts products;
  load_tile_config();
  tile_fence();
  token_products(c, w.query, words, products.of_queries);
  if (c.delta) token_products(c, w.key_high, words, products.of_keys);
  tile_fence();
  _tile_release();
  for (int64_t i = 0; i < c.tokens; ++i) {
    float* a = c.ap + i * 2 * c.ld_c;
    const Vec key = c.factors.key[i], query = c.factors.query[i];
    for (int64_t j = 0; j <= i; j += kWidth) {
      const Vec column = load(c.factors.key + j);
      if (c.delta) store(load(products.of_keys[i] + j) * key * column, a + j);
      store(load(products.of_queries[i] + j) * query * column, a + c.ld_c + j);
    }
    if (c.delta) c.unit[i] = 1;
  }
  float gamma = 1;
  for (int64_t i = 0; i < kTileTokens; i += kWidth)
    store(load(c.factors.key + i), c.factors.right + i);
  if (c.g != nullptr) {
    alignas(64) float from_start[kTileTokens] = {}, to_end[kTileTokens] = {};
    head_decays(c.tokens, c.g, c.delta, c.ap, c.ld_c, from_start, to_end);
    gamma = from_start[c.tokens - 1];
    for (int64_t i = 0; i < padded(c.tokens); i += kWidth) {
      const Vec start = load(from_start + i);
      store(load(c.factors.right + i) * load(to_end + i), c.factors.right + i);
      store(load(c.factors.key + i) * start, c.factors.key + i);
      store(load(c.factors.query + i) * start, c.factors.query + i);
    }
  }
  for (int64_t x = 0; x < c.dim_k; ++x) c.gamma[x] = gamma;
}

#endif
