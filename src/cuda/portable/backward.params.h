// What the kernels of the token-by-token backward are given.
#pragma once

#include <cstdint>

#include "cuda/portable/decode.params.h"
#include "recurrence/problem.h"

namespace linattn::cuda {

inline constexpr int kTokenWarps = 8;  // a CTA; each owns some columns of V and every key channel
// Columns of V a warp has where a lane has `channels` key channels: S and dS take 64 registers.
LINATTN_HOST_DEVICE constexpr int token_columns(int channels) { return 32 / channels; }
LINATTN_HOST_DEVICE constexpr int token_slab(int channels) {
  return kTokenWarps * token_columns(channels);
}

inline constexpr int kFinishTokens = 32;  // a CTA of the finish kernel

struct BackwardParams {
  Problem problem;
  linattn_args args;
  // What a CTA finds, before sums over slabs of V, over the value heads of a group (dq, dk) and the
  // chain rules of norm, gate and sigmoid. Null where nobody asked.
  float* dq;     // [slabs,B,T,HV,K], of q as the recurrence reads it
  float* dk;     // likewise
  float* dg;     // [slabs,B,T,HV,K], or without K for a head gate: of the log decay
  float* dbeta;  // [slabs,B,T,HV]
  // dt_bias's gradient and, last, A_log's, of kFinishTokens tokens: [blocks,HV,gate_dim + 1].
  float* gate_sums;
  float* states;  // [workers,state slots,warps,columns,lanes,channels]
  int64_t tasks, workers;
  int64_t segment, checkpoints;  // tokens between two checkpoints, and how many there are
  int64_t gate_blocks;           // rows of gate_sums
  int64_t rows;                  // B * T
  float scale;
  int32_t slabs, gate_dim;
};

static_assert(sizeof(BackwardParams) <= 2048, "kernel parameters are read through a small cache");

}  // namespace linattn::cuda
