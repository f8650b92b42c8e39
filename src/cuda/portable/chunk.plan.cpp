#include "cuda/portable/chunk.plan.h"

#include "core/status.h"
#include "cuda/portable/chunk.params.h"

namespace linattn::cuda {

int64_t chunks_a_sequence(const Problem& p) { return (p.num_tokens + kChunk - 1) / kChunk; }

int64_t chunk_slots(const Problem& p) {
  return p.varlen() ? p.num_tokens / kChunk + p.num_sequences : p.batch * chunks_a_sequence(p);
}

std::string scattered_channels(const Problem& p) {
  const struct {
    const char* name;
    const TokenView& view;
    int64_t size;
  } rows[] = {{"q", p.q, p.dim_k},
              {"k", p.k, p.dim_k},
              {"v", p.v, p.dim_v},
              {"o", p.o, p.dim_v},
              {"g", p.g, p.gate == Gate::channel ? p.dim_k : 1}};
  for (const auto& row : rows)
    if (row.view.present() && row.size > 1 && row.view.d != 1)
      return format_text("takes contiguous channels, %s has stride %lld on its last axis", row.name,
                         static_cast<long long>(row.view.d));
  return "";
}

bool rows_aligned(const TokenView& view, const void* data, const Problem& p, int64_t elements) {
  const auto multiple = [&](int64_t size, int64_t stride) {
    return size <= 1 || stride % elements == 0;
  };
  return reinterpret_cast<uintptr_t>(data) % (elements * size_of(view.type)) == 0 &&
         multiple(p.batch, view.b) && multiple(p.num_tokens, view.t) && multiple(p.heads_v, view.h);
}

}  // namespace linattn::cuda
