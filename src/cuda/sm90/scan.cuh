// Scan, K = V = 128. A CTA carries the state of one chain through the chunks of a piece of it.
#pragma once

#include "cuda/portable/chunk_place.cuh"
#include "cuda/ptx/launch.cuh"
#include "cuda/sm90/scan.help.cuh"
#include "cuda/sm90/scan.state.cuh"

namespace linattn::cuda {
namespace sm90 {

// Outputs that no live sequence owns.
__device__ __forceinline__ void zero_outputs(const ScanParams& p, const Chain& c, int64_t row,
                                             int64_t row_end) {
  constexpr int kColumns = Layout<false>::kColumns;
  const Problem& problem = p.problem;
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  for (int64_t i = thread; i < c.range.length() * kColumns; i += threads)
    store_element(
        problem.o.type, p.args.o,
        problem.o.at(c.range.batch, c.range.begin + i / kColumns, c.hv, c.v0 + i % kColumns), 0.0f);
  const StateView& view = problem.intermediate_states;
  for (; row < row_end; ++row)
    for (int i = thread; i < kDim * kColumns; i += threads)
      store_element(view.type, p.args.intermediate_states,
                    view.at(c.range.batch, c.hv, i / kColumns, c.v0 + i % kColumns) + row * view.r,
                    0.0f);
}

// First chunk from which on a state of any size would be forgotten before chunk c.own; all lanes of
// a warp. Products of norms bound the norm of the product, so nothing that counts is dropped.
template <bool kChannel>
__device__ __forceinline__ int first_remembered(const ScanParams& p, const Chain& c, int lane) {
  float left = 1.0f;
#pragma unroll 1
  for (int behind = c.own; behind > 0; behind -= 32) {
    const int chunk = behind - 1 - lane;
    float bound = chunk >= 0 ? record_of<kChannel>(p, c, chunk)->bound : 1.0f;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float before = __shfl_up_sync(ptx::kAllLanes, bound, step);
      if (lane >= step) bound *= before;
    }
    const unsigned forgotten =
        __ballot_sync(ptx::kAllLanes, chunk >= 0 && left * bound < kForgotten);
    if (forgotten != 0) return behind - __ffs(static_cast<int>(forgotten));
    left *= ptx::shuffle(bound, 31);
  }
  return 0;
}

}  // namespace sm90

// grid: (N, and one more with cu_seqlens) * HV * pieces * parts of V, the part fastest.
template <bool kBf16, bool kDelta, bool kChannel>
__global__ void __launch_bounds__(sm90::Layout<kChannel>::kThreads, 1)
    chunk_scan_sm90(const __grid_constant__ sm90::ScanParams p) {
  using namespace sm90;
  using chunk::divide, chunk::first_row;
  using Layout = Layout<kChannel>;
  char* unaligned = ptx::dynamic_shared();
  char* shared = unaligned + (tile::kAlignment - ptx::shared_address(unaligned)) % tile::kAlignment;
  const Problem& problem = p.problem;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const uint32_t part = divide(blockIdx.x, p.parts), head = divide(part, p.pieces);
  const uint32_t n = divide(head, p.heads_v);
  const int piece = static_cast<int>(part - head * p.pieces.divisor);
  Chain c;
  c.n = n;
  c.hv = head - n * p.heads_v.divisor;
  c.h = divide(static_cast<uint32_t>(c.hv), p.group);
  c.v0 = static_cast<int>(blockIdx.x - part * p.parts.divisor) * Layout::kColumns;
  const bool has_rows = problem.intermediate_states.present();
  if (n >= problem.num_sequences) {
    if (piece > 0) return;
    const TokenRange last = bounded_range(problem, p.args, problem.num_sequences - 1);
    c.range = {0, last.end, problem.num_tokens};
    return zero_outputs(p, c, first_row(p, problem.num_sequences, lane),
                        has_rows ? problem.intermediate_rows : 0);
  }
  c.range = bounded_range(problem, p.args, n);
  c.first_chunk = chunk::first_chunk(p, n);
  const int64_t length = c.range.length();
  c.slot = problem.pool() ? start_slot(problem, p.args, n) : n;
  c.row = first_row(p, n, lane);
  if (c.slot < 0) {
    if (piece > 0) return;
    return zero_outputs(
        p, c, c.row,
        c.row + (has_rows ? (length + problem.state_every - 1) / problem.state_every : 0));
  }
  const int chunks = static_cast<int>((length + kChunk - 1) / kChunk);
  // A final state in place of the initial one: no piece may write before the first has read.
  const bool whole = p.args.initial_state != nullptr && p.args.initial_state == p.args.final_state;
  c.own = piece * p.piece;
  if (piece > 0 && (whole || c.own >= chunks)) return;
  c.end = whole || chunks - c.own < p.piece ? chunks : c.own + p.piece;
  c.last = c.end == chunks;

  const uint32_t barriers = ptx::shared_address(shared + Layout::kBarriersAt);
  Chain& chain = *reinterpret_cast<Chain*>(shared + Layout::kChainAt);
  ptx::wait_for_previous_grid();
  c.begin = first_remembered<kChannel>(p, c, lane);
  c.loads = c.begin == 0 && starts_from_state(problem, p.args, n);
  if (thread == 0) {
    chain = c;
    for (int i = 0; i < Layout::kStages; ++i) {
      ptx::init_barrier(barriers + 8 * (Layout::kFull + i), 1);
      ptx::init_barrier(barriers + 8 * (Layout::kReady + i), 1);
      ptx::init_barrier(barriers + 8 * (Layout::kEmpty + i), Layout::kSlabs);
      for (int slab = 0; slab < Layout::kSlabs; ++slab)
        ptx::init_barrier(barriers + 8 * (Layout::kWritten + slab * Layout::kStages + i), 4);
    }
    ptx::init_barrier(barriers + 8 * Layout::kLanded, 1);
    ptx::fence_barrier_init();
  }
  __syncthreads();
  if (thread >= kWarpgroup) {
    ptx::raise_registers<Layout::kStateRegisters>();
    scan_chunks<kBf16, kDelta, kChannel>(p, chain, shared, barriers);
  } else {
    ptx::lower_registers<Layout::kLoadRegisters>();
    const int warp = ptx::opaque(thread / 32);
    if (warp == 0)
      load_chunks<kChannel>(p, chain, shared, barriers);
    else if (warp >= 2)
      store_outputs<kChannel>(p, chain, warp - 2, shared, barriers);
    else if constexpr (!kChannel)
      gather_decays<kBf16>(chain, shared, barriers);
  }
}

}  // namespace linattn::cuda
