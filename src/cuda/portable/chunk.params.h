// What the chunk kernels are given, and the record that hands a chunk from preparation to scan.
#pragma once

#include <cstdint>

#include "cuda/portable/decode.params.h"
#include "recurrence/problem.h"

namespace linattn::cuda {

inline constexpr int kChunk = 32;  // tokens; two blocks of 16
inline constexpr int kBlock = 16;
inline constexpr int kMaxScanStages = 4;  // chunks in the scan's shared memory

// Threads of the preparation.
LINATTN_HOST_DEVICE constexpr int chunk_prepare_threads(int dim, bool channel) {
  return !channel ? dim : dim == 256 ? 256 : 128;
}

// Value heads of one q/k head whose records one CTA makes, sharing what does not depend on their
// gates; each is finished by a warp.
LINATTN_HOST_DEVICE constexpr int chunk_prepare_heads(int dim, bool channel) {
  return channel ? 1 : dim == 64 ? 2 : 4;
}

// One chunk of one value head, in the byte image of the scan's shared memory, rows of `dim`
// channels and squares of 32x32 swizzled (chunk.cuh, chunk_operand.cuh). Every byte is written, and
// none is padding. Scalars exist for gates that are one number a token; operands then are q and k
// as the caller has them.
struct ChunkRecord {
  int dim;       // K rounded up: 64, 128, 256
  bool channel;  // gate per key channel
  bool delta;
  int bytes_each = 2;  // of a number of q's type

  LINATTN_HOST_DEVICE constexpr int rows_bytes() const { return kChunk * dim * bytes_each; }
  LINATTN_HOST_DEVICE constexpr int square_bytes() const { return kChunk * kChunk * bytes_each; }
  // [32,32] each. The delta update has them as sums of two numbers, because their rounding adds up
  // over repeated keys; of fp32 only T.
  LINATTN_HOST_DEVICE constexpr int most_p() const { return bytes_each == 2 ? 2 : 1; }
  LINATTN_HOST_DEVICE constexpr int p() const { return 0; }  // tril(Q~ K^T)
  LINATTN_HOST_DEVICE constexpr int p_low() const { return square_bytes(); }
  // (I+A)^-1 diag(beta), delta
  LINATTN_HOST_DEVICE constexpr int t() const { return most_p() * square_bytes(); }
  LINATTN_HOST_DEVICE constexpr int t_low() const { return t() + square_bytes(); }
  // channel: decay of the chunk [dim]; else read_k, read_q, write_k [32] each, decay [4]
  LINATTN_HOST_DEVICE constexpr int scalars() const {
    return square_bytes() * (delta ? most_p() + 2 : 1);
  }
  LINATTN_HOST_DEVICE constexpr int q() const {
    return scalars() + (channel ? dim * 4 : 3 * kChunk * 4 + 16);
  }  // Q~ [32,dim]
  LINATTN_HOST_DEVICE constexpr int update() const {
    return q() + rows_bytes();
  }  // k to the chunk's end [32,dim]
  LINATTN_HOST_DEVICE constexpr int k() const {
    return update() + rows_bytes();
  }  // K~ [32,dim], delta
  LINATTN_HOST_DEVICE constexpr int bytes() const {
    return !channel ? q() : update() + rows_bytes() * (delta ? 2 : 1);
  }
};

struct ChunkParams {
  Problem problem;
  linattn_args args;
  char* records;              // [chunk slots, HV] of record_bytes
  int64_t* chunk_begin;       // [N+1], chunks before each sequence; null: all sequences alike
  int64_t chunks_a_sequence;  // without cu_seqlens
  int64_t record_bytes;
  float scale;
  FastDivisor heads_v, group;                   // HV, HV / H
  FastDivisor prepare_batches, prepare_blocks;  // of value heads: of a q/k head, of a chunk
  FastDivisor slabs;                            // of V, one CTA each
  int32_t dim_k, dim_v;
  int32_t scan_stages;  // 1 to kMaxScanStages
  bool delta;
  bool qk_vectors, v_vectors;  // rows may be read 16 bytes at a time
  bool vectors;                // channels of q, k, g may be read as the preparation's lanes do
  bool o_pairs;                // o may be written two neighbours at a time
};

static_assert(sizeof(ChunkParams) <= 2048, "kernel parameters are read through a small cache");

}  // namespace linattn::cuda
