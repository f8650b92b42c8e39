#include "cpu/outputs.h"

#include <cstring>

#include "cpu/inputs.h"

namespace linattn::cpu {
namespace {

// All-zero bits are zero in every type.
void zero_row(void* data, Type type, int64_t offset, int64_t count, int64_t stride) {
  const size_t size = static_cast<size_t>(size_of(type));
  char* at = static_cast<char*>(element_at(data, type, offset));
  if (stride == 1) {
    std::memset(at, 0, size * static_cast<size_t>(count));
    return;
  }
  for (int64_t i = 0; i < count; ++i)
    std::memset(at + i * stride * static_cast<int64_t>(size), 0, size);
}

}  // namespace

void zero_tokens(const TokenView& view, void* data, int64_t batch, int64_t begin, int64_t end,
                 int64_t head, int64_t dim) {
  for (int64_t t = begin; t < end; ++t)
    zero_row(data, view.type, view.at(batch, t, head), dim, view.d);
}

void zero_unowned_tokens(const Problem& p, const linattn_args& args, const TokenView& view,
                         void* data, int64_t heads, int64_t dim) {
  if (!p.varlen() || !view.present()) return;
  const int64_t begin =
      read_index(p.cu_seqlens.type, args.cu_seqlens, p.num_sequences * p.cu_seqlens.n);
  for (int64_t head = 0; head < heads; ++head)
    zero_tokens(view, data, 0, begin, p.num_tokens, head, dim);
}

void zero_intermediate_rows(const Problem& p, const linattn_args& args, int64_t batch,
                            int64_t begin, int64_t end, int64_t head) {
  const StateView& view = p.intermediate_states;
  for (int64_t r = begin; r < end; ++r)
    for (int64_t k = 0; k < p.dim_k; ++k)
      zero_row(args.intermediate_states, view.type,
               batch * view.n + r * view.r + head * view.h + k * view.k, p.dim_v, view.v);
}

}  // namespace linattn::cpu
