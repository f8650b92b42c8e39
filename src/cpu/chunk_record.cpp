#include "cpu/chunk_record.h"

namespace linattn::cpu {

namespace {

void make_tile_record(const Problem& p, const linattn_args& args, const ChunkShape& shape,
                      const ChunkPlace& place, const Record& record, const StepScratch& scratch) {
  const auto rows = [&](const TokenView& view, const void* data) {
    return element_at(data, view.type, view.at(place.batch, place.first, place.head / p.group()));
  };
  kernels().head_record_tiles({.tokens = place.count,
                               .dim_k = p.dim_k,
                               .delta = p.update == Update::delta,
                               .norm = p.qk_norm,
                               .k = rows(p.k, args.k),
                               .q = rows(p.q, args.q),
                               .k_stride = p.k.t,
                               .q_stride = p.q.t,
                               .scale = static_cast<float>(p.scale),
                               .g = p.gate == Gate::none ? nullptr : scratch.g,
                               .ap = record.ap,
                               .gamma = record.gamma,
                               .ld_c = shape.ld_c,
                               .unit = record.unit,
                               .factors = record.factors,
                               .tiles = scratch.tiles});
}

}  // namespace

void make_record(const Problem& p, const linattn_args& args, const ChunkShape& shape,
                 const ChunkPlace& place, const Record& record, const StepScratch& scratch) {
  const bool delta = p.update == Update::delta;
  if (delta) load_beta(p, args, place, record.beta);
  if (p.gate != Gate::none) load_gates(p, args, place, scratch.g, shape.ld_k, scratch.bias);
  if (keeps_keys(p)) return make_tile_record(p, args, shape, place, record, scratch);
  load_kq(p, args, place, record.kq, shape.ld_k, scratch.inverse_norms);
  const ChunkRecord c{.tokens = place.count,
                      .dim_k = p.dim_k,
                      .delta = delta,
                      .kq = record.kq,
                      .ld_k = shape.ld_k,
                      .g = p.gate == Gate::none ? nullptr : scratch.g,
                      .kr = record.kr,
                      .ap = record.ap,
                      .ld_c = shape.ld_c,
                      .unit = record.unit,
                      .inverse_norms = p.qk_norm ? scratch.inverse_norms : nullptr,
                      .gamma = record.gamma,
                      .work = scratch.work};
  p.gate == Gate::channel ? kernels().channel_record(c) : kernels().head_record(c);
}

void step_over(const Problem& p, const linattn_args& args, const ChunkShape& shape,
               const ChunkPlace& place, const Record& record, const StepScratch& scratch, float* s,
               int64_t column, int64_t columns, const ChunkPlace* next) {
  load_token_rows(p.v, args.v, place, place.head, column, columns, scratch.r, shape.ld_v);
  ChunkStep c{.tokens = place.count,
              .dim_k = p.dim_k,
              .columns = columns,
              .ka = record.kq,
              .qa = record.kq + shape.ld_k,
              .ld_k = 2 * shape.ld_k,
              .kr = record.kr,
              .ld_c = shape.ld_c,
              .a = p.update == Update::delta ? record.ap : nullptr,
              .p = record.ap + shape.ld_c,
              .ld_a = 2 * shape.ld_c,
              .unit = record.unit,
              .beta = record.beta,
              .gamma = record.gamma,
              .s = s,
              .r = scratch.r,
              .o = scratch.o,
              .ld_v = shape.ld_v};
  c.ahead[0] = rows_ahead(p.o, args.o, place, place.head, column, columns);
  if (next != nullptr) {
    const int64_t head = next->head / p.group();
    c.ahead[1] = rows_ahead(p.k, args.k, *next, head, 0, p.dim_k);
    c.ahead[2] = rows_ahead(p.q, args.q, *next, head, 0, p.dim_k);
    if (p.gate == Gate::channel)
      c.ahead[3] = rows_ahead(p.g, args.g, *next, next->head, 0, p.dim_k);
    c.ahead[4] = rows_ahead(p.v, args.v, *next, next->head, column, columns);
  }
  c.tiles = scratch.tiles;
  c.factors = record.factors;
  uses_tiles(p) ? kernels().chunk_step_tiles(c) : kernels().chunk_step(c);
  store_token_rows(scratch.o, shape.ld_v, p.o, args.o, place, place.head, column, columns);
}

}  // namespace linattn::cpu
