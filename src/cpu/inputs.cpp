#include "cpu/inputs.h"

#include <cmath>

#include "recurrence/element.h"

namespace linattn::cpu {

void load_token_rows(const TokenView& view, const void* data, const ChunkPlace& place, int64_t head,
                     int64_t column, int64_t columns, float* out, int64_t ld) {
  kernels().load_rows(element_at(data, view.type, view.at(place.batch, place.first, head, column)),
                      element(view.type), view.t, view.d, place.count, columns, out, ld);
}

void store_token_rows(const float* rows, int64_t ld, const TokenView& view, void* data,
                      const ChunkPlace& place, int64_t head, int64_t column, int64_t columns) {
  kernels().store_rows(rows, ld, place.count, columns,
                       element_at(data, view.type, view.at(place.batch, place.first, head, column)),
                       element(view.type), view.t, view.d);
}

RowsAhead rows_ahead(const TokenView& view, const void* data, const ChunkPlace& place, int64_t head,
                     int64_t column, int64_t columns) {
  if (view.d != 1) return {};
  const int64_t size = size_of(view.type);
  const int64_t first = view.at(place.batch, place.first, head, column);
  return {static_cast<const char*>(element_at(data, view.type, first)), view.t * size,
          columns * size, place.count};
}

void load_kq(const Problem& p, const linattn_args& args, const ChunkPlace& place, float* out,
             int64_t ld_k, float* inverse_norms) {
  const Kernels& f = kernels();
  const int64_t head = place.head / p.group();
  float* k = out;
  float* q = out + ld_k;
  load_token_rows(p.k, args.k, place, head, 0, p.dim_k, k, 2 * ld_k);
  load_token_rows(p.q, args.q, place, head, 0, p.dim_k, q, 2 * ld_k);
  const float scale = static_cast<float>(p.scale);
  if (!p.qk_norm) {
    if (scale != 1) f.scale_rows(q, 2 * ld_k, place.count, p.dim_k, nullptr, scale);
    return;
  }
  float local[2 * kMaxChunk];
  float* norms = inverse_norms == nullptr ? local : inverse_norms;
  f.inverse_norms(k, 2 * ld_k, place.count, p.dim_k, norms);
  f.inverse_norms(q, 2 * ld_k, place.count, p.dim_k, norms + place.count);
  f.scale_rows(k, 2 * ld_k, place.count, p.dim_k, norms, 1);
  f.scale_rows(q, 2 * ld_k, place.count, p.dim_k, norms + place.count, scale);
}

namespace {

// One value a token of a [B,T,HV] tensor, as a row.
void load_token_scalars(const TokenView& view, const void* data, const ChunkPlace& place,
                        float* out) {
  kernels().load_rows(element_at(data, view.type, view.at(place.batch, place.first, place.head)),
                      element(view.type), 0, view.t, 1, place.count, out, padded(place.count));
}

}  // namespace

void load_beta(const Problem& p, const linattn_args& args, const ChunkPlace& place, float* out) {
  if (!p.beta.present()) {
    for (int64_t i = 0; i < padded(place.count); ++i) out[i] = 1;
    return;
  }
  load_token_scalars(p.beta, args.beta, place, out);
  if (p.beta_form == BetaForm::value) return;
  kernels().sigmoid(out, place.count, out);
  if (p.beta_form == BetaForm::sigmoid2)
    kernels().scale_rows(out, place.count, 1, place.count, nullptr, 2);
}

void load_gates(const Problem& p, const linattn_args& args, const ChunkPlace& place, float* out,
                int64_t ld_k, float* bias) {
  const bool channel = p.gate == Gate::channel;
  const int64_t rows = channel ? place.count : 1, columns = channel ? p.dim_k : place.count;
  if (p.gate == Gate::none || p.gate == Gate::head_constant) {
    const float g = p.gate == Gate::none
                        ? 0
                        : static_cast<const float*>(args.g_gamma)[place.head * p.g_gamma.h];
    for (int64_t i = 0; i < padded(place.count); ++i) out[i] = g;
    return;
  }
  if (channel)
    load_token_rows(p.g, args.g, place, place.head, 0, p.dim_k, out, ld_k);
  else
    load_token_scalars(p.g, args.g, place, out);
  if (p.gate_form == GateForm::given) return;
  const Kernels& f = kernels();
  const float* row = nullptr;
  float head_bias = 0;
  if (p.dt_bias.present() && channel) {
    f.load_rows(element_at(args.dt_bias, p.dt_bias.type, place.head * p.dt_bias.h),
                element(p.dt_bias.type), 0, p.dt_bias.k, 1, p.dim_k, bias, ld_k);
    row = bias;
  } else if (p.dt_bias.present()) {
    head_bias =
        static_cast<float>(load_element(p.dt_bias.type, args.dt_bias, place.head * p.dt_bias.h));
    for (int64_t i = 0; i < place.count; ++i) out[i] += head_bias;
  }
  const float factor = p.A_log.present()
                           ? std::exp(static_cast<const float*>(args.A_log)[place.head * p.A_log.h])
                           : 1;
  if (p.gate_form == GateForm::softplus)
    f.gate_softplus(out, ld_k, rows, columns, row, factor);
  else
    f.gate_bounded(out, ld_k, rows, columns, row, factor, static_cast<float>(p.lower_bound));
}

}  // namespace linattn::cpu
