// A chunk's inputs as fp32 rows, with everything applied that the problem asks of them: norm,
// scale, raw gates, sigmoid. What no sequence owns is never read: rows are counted by the caller.
#pragma once

#include "core/ledger.h"
#include "cpu/kernels.h"
#include "recurrence/problem.h"

namespace linattn::cpu {

// Sizes and strides of a chunk's scratch.
struct ChunkShape {
  int64_t chunk = 0;  // most tokens
  int64_t ld_k = 0, ld_v = 0, ld_c = 0;

  ChunkShape() = default;
  ChunkShape(const Problem& p, int64_t chunk_tokens)
      : chunk(chunk_tokens),
        ld_k(leading(p.dim_k)),
        ld_v(leading(p.dim_v)),
        ld_c(leading(chunk_tokens)) {}
};

// Tokens [first, first + count) of batch row `batch`, value head `head`.
struct ChunkPlace {
  int64_t batch, first, count, head;
};

inline Element element(Type type) { return static_cast<Element>(type); }

inline const void* element_at(const void* data, Type type, int64_t offset) {
  return static_cast<const char*>(data) + offset * size_of(type);
}
inline void* element_at(void* data, Type type, int64_t offset) {
  return static_cast<char*>(data) + offset * size_of(type);
}

// Rows of one head of q, k, v, do: out [count, ld]. `column` and `columns` cut the head dimension.
void load_token_rows(const TokenView& view, const void* data, const ChunkPlace& place, int64_t head,
                     int64_t column, int64_t columns, float* out, int64_t ld);
void store_token_rows(const float* rows, int64_t ld, const TokenView& view, void* data,
                      const ChunkPlace& place, int64_t head, int64_t column, int64_t columns);

// Those rows before they are loaded; none where their elements do not lie side by side.
RowsAhead rows_ahead(const TokenView& view, const void* data, const ChunkPlace& place, int64_t head,
                     int64_t column, int64_t columns);

// k and q of the head's group: out [count, 2, ld_k], k first, q times the scale; both normalised
// where the problem asks for it. `inverse_norms` takes 2 x count factors (k's, then q's), or null.
void load_kq(const Problem& p, const linattn_args& args, const ChunkPlace& place, float* out,
             int64_t ld_k, float* inverse_norms);

// beta of the head, 1 where the problem has none: out [padded(count)].
void load_beta(const Problem& p, const linattn_args& args, const ChunkPlace& place, float* out);

// Log decays: channel gate out [count, ld_k], head gates out [padded(count)], zeros without gate.
// `bias` is scratch of padded(K) floats.
void load_gates(const Problem& p, const linattn_args& args, const ChunkPlace& place, float* out,
                int64_t ld_k, float* bias);

}  // namespace linattn::cpu
