// Where a chunk and its states lie. Slots of the workspace are numbered sequence by sequence.
// Params stands for ChunkParams, or what has the same problem, args, chunk_begin,
// chunks_a_sequence, group.
#pragma once

#include <cstdint>

#include "cuda/portable/chunk.cuh"

namespace linattn::cuda::chunk {

struct Place {
  int64_t n, hv, h, batch, begin;  // first token on the T axis
  int rows;                        // tokens of the chunk; 0: no such chunk
};

template <class Params>
__device__ __forceinline__ Place find_place(const Params& p, int64_t slot, int64_t hv) {
  const int64_t sequences = p.problem.num_sequences;
  int64_t n = 0;
  if (p.chunk_begin == nullptr) {
    // Both below 2^31, as the grid is.
    n = static_cast<uint32_t>(slot) / static_cast<uint32_t>(p.chunks_a_sequence);
  } else {
    // Last n with chunk_begin[n] <= slot.
    int64_t high = sequences;
    while (high - n > 1) {
      const int64_t middle = (n + high) / 2;
      if (p.chunk_begin[middle] <= slot)
        n = middle;
      else
        high = middle;
    }
    if (slot >= p.chunk_begin[sequences]) return {0, hv, 0, 0, 0, 0};
  }
  const TokenRange range = bounded_range(p.problem, p.args, n);
  const int64_t begin = range.begin + (slot - first_chunk(p, n)) * kChunk;
  const int64_t rows = range.end - begin;
  return {n,           hv,    divide(static_cast<uint32_t>(hv), p.group),
          range.batch, begin, static_cast<int>(rows < 0 ? 0 : rows > kChunk ? kChunk : rows)};
}

// First row of intermediate states of sequence n; all lanes add up the ones before it.
template <class Params>
__device__ __forceinline__ int64_t first_row(const Params& p, int64_t n, int lane) {
  const Problem& problem = p.problem;
  if (!problem.intermediate_states.present() || !problem.varlen()) return 0;
  long long rows = 0;
  for (int64_t i = lane; i < n; i += 32)
    rows += (bounded_range(problem, p.args, i).length() + problem.state_every - 1) /
            problem.state_every;
#pragma unroll
  for (int bit = 16; bit >= 1; bit >>= 1) rows += __shfl_xor_sync(ptx::kAllLanes, rows, bit);
  return rows;
}

}  // namespace linattn::cuda::chunk
