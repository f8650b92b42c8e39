// chunk_step with the big products on AMX tiles: bf16 operands, fp32 sums.
//
// What is rounded: rows of Q and the state as they are read, once, to bf16, which is what outputs
// of bf16 take anyway. Keys, R and whatever else reaches the state are sums of two bf16 numbers, so
// the state keeps fp32's accuracy to within 2^-16 of an update, and the error of reading a rounded
// state is taken back by the delta rule itself (docs/kernels/cpu.md).
//
// Tokens of a chunk fill two tiles of 16 rows; what lies past the last token is zeros.
#if defined(__AMX_BF16__)

constexpr int64_t kTileSide = 16;
constexpr int64_t kTileTokens = 32;

// Layout of `tiles`, all of it dense tiles or rows of them. The last five are of a panel of
// columns.
struct TileWork {
  static constexpr int64_t kColumns = kTileVecs * kWidth;

  uint32_t *key_high, *key_low, *query;  // [kTileTokens, dim_k] of bf16
  uint32_t *right_high, *right_low;      // Kr: [dim_k, kTileTokens] of bf16
  uint32_t* state;                       // [columns / 16, dim_k / 2, 16] pairs of rows
  uint32_t *update_high, *update_low;    // R: [columns / 16, kTileTokens / 2, 16] pairs of rows
  float *key_read, *query_read;          // Ka S, Qa S: [columns / 16, kTileTokens, 16]

  TileWork(void* tiles, int64_t dim_k) {
    char* at = static_cast<char*>(tiles);
    const auto take = [&at]<class T>(T*& place, int64_t count) {
      place = reinterpret_cast<T*>(at);
      at += count * static_cast<int64_t>(sizeof(T));
    };
    const int64_t keys = kTileTokens * dim_k / 2;
    take(key_high, keys), take(key_low, keys), take(query, keys);
    take(right_high, keys), take(right_low, keys);
    take(state, dim_k / 2 * kColumns);
    take(update_high, kTileTokens / 2 * kColumns), take(update_low, kTileTokens / 2 * kColumns);
    take(key_read, kTileTokens * kColumns), take(query_read, kTileTokens * kColumns);
  }
};
static_assert(TileWork::kColumns == kPanelColumns && kWidth == kTileSide);

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// In memory for good: g++ takes ldtilecfg for a read of eight bytes and drops what it does not see
// used.
constexpr TileConfig kTileConfig;
inline void load_tile_config() { _tile_loadconfig(&kTileConfig); }

// Between what the program writes and what tiles load, of which the compiler knows nothing either.
inline void tile_fence() { __asm__ volatile("" ::: "memory"); }

inline __m512 raw(Vec x) { return static_cast<__m512>(x); }

// 32 floats as bf16 in order, or (`pairs`) two rows lane by lane, the first in the low halves.
inline __m512i to_bf16(Vec first, Vec second) {
  return std::bit_cast<__m512i>(_mm512_cvtne2ps_pbh(raw(second), raw(first)));
}
inline __m512i pairs(Vec first, Vec second) {
  alignas(64) static constexpr auto order = [] {
    struct {
      uint16_t lane[32];
    } o{};
    for (uint16_t i = 0; i < 16; ++i) o.lane[2 * i] = i, o.lane[2 * i + 1] = i + 16;
    return o;
  }();
  return _mm512_permutexvar_epi16(_mm512_load_si512(&order), to_bf16(first, second));
}
inline Vec low_halves(__m512i x) { return Vec(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16))); }
inline Vec high_halves(__m512i x) {
  return Vec(_mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536))));
}
inline void store_words(__m512i x, uint32_t* to) { _mm512_store_si512(to, x); }

// 32 floats to bf16 and, unless `low` is null, what is left of them.
inline void split_row(Vec first, Vec second, uint32_t* high, uint32_t* low) {
  const __m512i h = to_bf16(first, second);
  store_words(h, high);
  if (low == nullptr) return;
  const auto half = [](__m256i x) { return low_halves(_mm512_cvtepu16_epi32(x)); };
  store_words(to_bf16(first - half(_mm512_castsi512_si256(h)),
                      second - half(_mm512_extracti64x4_epi64(h, 1))),
              low);
}

inline void keys_to_tiles(const ChunkStep& c, const TileWork& w) {
  const int64_t words = c.dim_k / 2;
  const auto rows = [&](const float* from, uint32_t* high, uint32_t* low) {
    for (int64_t i = 0; i < kTileTokens; ++i)
      for (int64_t x = 0; x < c.dim_k; x += 32) {
        const bool owned = i < c.tokens;
        const float* row = from + i * c.ld_k + x;
        split_row(owned ? load(row) : Vec(0.0f), owned ? load(row + kWidth) : Vec(0.0f),
                  high + i * words + x / 2, low == nullptr ? nullptr : low + i * words + x / 2);
      }
  };
  if (c.a != nullptr) rows(c.ka, w.key_high, w.key_low);
  rows(c.qa, w.query, nullptr);
  for (int64_t x = 0; x < c.dim_k; ++x) {
    const float* row = c.kr + x * c.ld_c;
    split_row(load(row), c.tokens > kWidth ? load(row + kWidth) : Vec(0.0f),
              w.right_high + x * kTileTokens / 2, w.right_low + x * kTileTokens / 2);
  }
}

// NV tiles of columns of the state from s on, for the chunk's reads, and their decay over the
// chunk.
template <int NV>
inline void state_to_tiles(const ChunkStep& c, const TileWork& w, float* s, AheadCursor& ahead) {
  for (int64_t x = 0; x < c.dim_k; x += 2) {
    if (x % 16 == 0) ahead.next();
    float *first = s + x * c.ld_v, *second = first + c.ld_v;
    const Vec decay = c.gamma[x], next_decay = c.gamma[x + 1];
    LINATTN_UNROLL
    for (int v = 0; v < NV; ++v) {
      const Vec a = load(first + v * kWidth), b = load(second + v * kWidth);
      store_words(pairs(a, b), w.state + (v * c.dim_k / 2 + x / 2) * kTileSide);
      store(a * decay, first + v * kWidth);
      store(b * next_decay, second + v * kWidth);
    }
  }
}

// key_read = Ka S, query_read = Qa S for one tile of columns.
template <bool DELTA, bool EXACT>
inline void read_state(const ChunkStep& c, const TileWork& w, int v, AheadCursor& ahead) {
  const int64_t row = c.dim_k * 2, half = kTileSide * c.dim_k / 2;
  _tile_zero(2);
  _tile_zero(3);
  if constexpr (DELTA) {
    _tile_zero(0);
    _tile_zero(1);
  }
  for (int64_t x = 0; x < c.dim_k / 2; x += kTileSide) {
    ahead.next();
    _tile_loadd(7, w.state + (v * c.dim_k / 2 + x) * kTileSide, 64);
    if constexpr (DELTA) {
      _tile_loadd(4, w.key_high + x, row);
      _tile_dpbf16ps(0, 4, 7);
      _tile_loadd(5, w.key_high + half + x, row);
      _tile_dpbf16ps(1, 5, 7);
    }
    _tile_loadd(6, w.query + x, row);
    _tile_dpbf16ps(2, 6, 7);
    _tile_loadd(6, w.query + half + x, row);
    _tile_dpbf16ps(3, 6, 7);
    if constexpr (DELTA && !EXACT) {
      _tile_loadd(4, w.key_low + x, row);
      _tile_dpbf16ps(0, 4, 7);
      _tile_loadd(5, w.key_low + half + x, row);
      _tile_dpbf16ps(1, 5, 7);
    }
  }
  float* to = w.query_read + v * kTileTokens * kTileSide;
  _tile_stored(2, to, 64);
  _tile_stored(3, to + kTileSide * kTileSide, 64);
  if constexpr (DELTA) {
    to = w.key_read + v * kTileTokens * kTileSide;
    _tile_stored(0, to, 64);
    _tile_stored(1, to + kTileSide * kTileSide, 64);
  }
}

// Whether R has more than bf16 holds: it is V itself for additive updates, but for factors.
inline bool is_split(const ChunkStep& c) { return c.a != nullptr || c.factors.key != nullptr; }

inline void update_to_tiles(const ChunkStep& c, const TileWork& w, const float* r, int v) {
  for (int64_t i = 0; i < kTileTokens; i += 2) {
    const float* row = r + i * c.ld_v + v * kWidth;
    Vec a = i < c.tokens ? load(row) : Vec(0.0f);
    Vec b = i + 1 < c.tokens ? load(row + c.ld_v) : Vec(0.0f);
    if (c.factors.key != nullptr) a = a * c.factors.right[i], b = b * c.factors.right[i + 1];
    const __m512i high = pairs(a, b);
    const int64_t at = (v * kTileTokens / 2 + i / 2) * kTileSide;
    store_words(high, w.update_high + at);
    if (is_split(c))
      store_words(pairs(a - low_halves(high), b - high_halves(high)), w.update_low + at);
  }
}

// S += Kr R for channels [x, x + 32) and NV tiles of columns from s on.
template <int NV>
inline void update_state(const ChunkStep& c, const TileWork& w, float* s, int64_t x) {
  constexpr bool TWO = NV == 2;
  const int64_t row = c.ld_v * 4, next = kTileSide * kTileTokens / 2;
  float *top = s + x * c.ld_v, *bottom = top + kTileSide * c.ld_v;
  const uint32_t *high = w.right_high + x * kTileTokens / 2,
                 *low = w.right_low + x * kTileTokens / 2;
  _tile_loadd(0, top, row);
  _tile_loadd(2, bottom, row);
  if constexpr (TWO) {
    _tile_loadd(1, top + kTileSide, row);
    _tile_loadd(3, bottom + kTileSide, row);
  }
  const auto multiply = [](const uint32_t* a, const uint32_t* b, int64_t next_b) {
    _tile_loadd(4, a, 64);
    _tile_loadd(5, a + kTileSide * kTileTokens / 2, 64);
    _tile_loadd(6, b, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (TWO) {
      _tile_loadd(7, b + next_b, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  };
  if (c.factors.key == nullptr) multiply(low, w.update_high, next);
  if (is_split(c)) multiply(high, w.update_low, next);
  multiply(high, w.update_high, next);
  _tile_stored(0, top, row);
  _tile_stored(2, bottom, row);
  if constexpr (TWO) {
    _tile_stored(1, top + kTileSide, row);
    _tile_stored(3, bottom + kTileSide, row);
  }
}

void chunk_step_tiles(const ChunkStep& c) {
  const TileWork w(c.tiles, c.dim_k);
  const bool exact = c.factors.key != nullptr;
  const int64_t row_tiles = ceil_div(c.tokens, kTileRows) * (c.a != nullptr ? 2 : 1);
  AheadCursor ahead(c.ahead, ceil_div(c.columns, TileWork::kColumns) *
                                 (c.dim_k / 16 + 2 * (c.dim_k / 32) + row_tiles + c.dim_k / 32));
  const auto read = c.a == nullptr ? read_state<false, true>
                    : exact        ? read_state<true, true>
                                   : read_state<true, false>;
  if (!exact) keys_to_tiles(c, w);
  load_tile_config();
  for_panels(c.columns, [&]<int NV>(int64_t j) {
    float *r = c.r + j, *s = c.s + j;
    const auto from = [&](const float* tiles, const float* factors, int64_t row, int v) {
      const Vec x = load(tiles + (v * kTileTokens + row) * kTileSide);
      return exact ? x * factors[row] : x;
    };
    state_to_tiles<NV>(c, w, s, ahead);
    tile_fence();
    for (int v = 0; v < NV; ++v) read(c, w, v, ahead);
    tile_fence();
    if (c.a != nullptr)
      for_row_tiles(c.tokens, [&]<int MR>(int64_t i) {
        Tile<MR, NV> t;
        LINATTN_UNROLL
        for (int p = 0; p < MR; ++p) LINATTN_UNROLL
        for (int v = 0; v < NV; ++v) t.x[p][v] = from(w.key_read, c.factors.key, i + p, v);
        ahead.next();
        solve_rows(c, i, t, r);
      });
    for_row_tiles(c.tokens, [&]<int MR>(int64_t i) {
      Tile<MR, NV> t;
      t.zero();
      ahead.next();
      add_earlier(c, i, r, t);
      LINATTN_UNROLL
      for (int p = 0; p < MR; ++p) LINATTN_UNROLL
      for (int v = 0; v < NV; ++v)
        t.x[p][v] = t.x[p][v] + from(w.query_read, c.factors.query, i + p, v);
      t.write(c.o + i * c.ld_v + j, c.ld_v);
    });
    for (int v = 0; v < NV; ++v) update_to_tiles(c, w, r, v);
    tile_fence();
    for (int64_t x = 0; x < c.dim_k; x += 2 * kTileSide) {
      ahead.next();
      update_state<NV>(c, w, s, x);
    }
    tile_fence();
  });
  _tile_release();
}

#endif
