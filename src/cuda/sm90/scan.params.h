// What the Hopper chunk kernels are given.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/portable/chunk.params.h"
#include "cuda/sm90/scan.cuts.h"

namespace linattn::cuda::sm90 {

struct ScanParams {
  Problem problem;
  linattn_args args;
  void* records;              // [chunk slots, HV] of Record, or of ChannelRecord
  int64_t* chunk_begin;       // [N+1], chunks before each sequence; null: all sequences alike
  int64_t chunks_a_sequence;  // without cu_seqlens
  float scale;
  FastDivisor heads_v, group;  // HV, HV / H
  FastDivisor parts;           // of V, one CTA each
  Cuts cuts;
  bool vectors;  // rows of q, k, v, o start at multiples of 16 bytes
  // Boxes of a chunk's tokens by 64 channels of one head; without `vectors` not filled in.
  CUtensorMap q_map, k_map, v_map;
  CUtensorMap g_map;  // of channel gates; fp32 as pairs of 16-bit columns
};

static_assert(sizeof(ScanParams) <= 4096, "kernels have 4 KB of parameters");

}  // namespace linattn::cuda::sm90
