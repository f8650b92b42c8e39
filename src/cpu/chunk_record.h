// A prepared chunk and the step that a state makes over it, on scratch from the ledger.
#pragma once

#include "cpu/inputs.h"
#include "cpu/states.h"

namespace linattn::cpu {

// Tokens of a chunk by kind of gate (docs/kernels/cpu.md has the measurement). A constant of the
// kind: what a token computes may not depend on the length of its sequence.
inline constexpr int64_t kChunkChannel = 32;
inline constexpr int64_t kChunkHead = 32;

constexpr int64_t chunk_tokens(Gate gate) {
  return gate == Gate::channel ? kChunkChannel : kChunkHead;
}

// Whether a step may round to bf16 what is multiplied by the state: a matter of the problem alone.
inline bool uses_tiles(const Problem& p) {
  return kernels().chunk_step_tiles != nullptr && p.q.type == Type::bf16 && p.dim_k % 32 == 0 &&
         p.dim_v % 16 == 0;
}

// Whether keys and queries may stay as they are, all that a token is multiplied by outside.
inline bool keeps_keys(const Problem& p) {
  return uses_tiles(p) && p.gate != Gate::channel && p.k.d == 1 && p.q.d == 1;
}

struct Record {
  float *kq, *kr, *ap, *beta, *gamma;
  double* unit;
  TokenFactors factors{};

  void lay_out(Ledger* ledger, const Problem& p, const ChunkShape& shape) {
    kq = ledger->take<float>(shape.chunk * 2 * shape.ld_k);
    kr = ledger->take<float>(p.dim_k * shape.ld_c);
    ap = ledger->take<float>(shape.chunk * 2 * shape.ld_c);
    if (keeps_keys(p))
      for (float** place : {&factors.key, &factors.query, &factors.right})
        *place = ledger->take<float>(kMaxChunk);
    unit = ledger->take<double>(p.update == Update::delta ? shape.chunk : 0);
    beta = ledger->take<float>(padded(shape.chunk));
    gamma = ledger->take<float>(shape.ld_k);
  }
};

struct StepScratch {
  float *g, *work, *bias, *inverse_norms;  // making a record
  float *r, *o, *state;                    // stepping over it
  char* tiles;

  void lay_out(Ledger* ledger, const Problem& p, const ChunkShape& shape) {
    g = ledger->take<float>(p.gate == Gate::channel ? shape.chunk * shape.ld_k
                                                    : padded(shape.chunk));
    work = ledger->take<float>(record_work(shape.ld_k));
    bias = ledger->take<float>(shape.ld_k);
    inverse_norms = ledger->take<float>(p.qk_norm ? 2 * shape.chunk : 0);
    r = ledger->take<float>(shape.chunk * shape.ld_v);
    o = ledger->take<float>(shape.chunk * shape.ld_v);
    state = ledger->take<float>(state_work(p.dim_k));
    tiles = ledger->take<char>(uses_tiles(p) ? tile_work_bytes(p.dim_k) : 0);
  }
};

void make_record(const Problem& p, const linattn_args& args, const ChunkShape& shape,
                 const ChunkPlace& place, const Record& record, const StepScratch& scratch);

// s: columns [column, column + columns) of the state, row stride ld_v. Writes o. `next`: the chunk
// that this thread will prepare and step over afterwards, or null.
void step_over(const Problem& p, const linattn_args& args, const ChunkShape& shape,
               const ChunkPlace& place, const Record& record, const StepScratch& scratch, float* s,
               int64_t column, int64_t columns, const ChunkPlace* next);

}  // namespace linattn::cpu
