// Scan, K = V = 128. A CTA carries the state of one
// sequence and value head through its chunks, or some of them.
#pragma once

#include "cuda/portable/chunk_place.cuh"
#include "cuda/ptx/launch.cuh"
#include "cuda/sm90/scan.help.cuh"
#include "cuda/sm90/scan.state.cuh"

namespace linattn::cuda {
namespace sm90 {

using chunk::divide, chunk::first_row;

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

// The CTA's entry of the list of work.
__device__ __forceinline__ bool find_work(const ScanParams& p, Work* work) {
  uint32_t i = blockIdx.x;
#pragma unroll
  for (int section = 0; section < kSections; ++section) {
    const uint32_t count = p.cuts.counts[section];
    if (i < count) {
      *work = p.cuts.work[p.cuts.first[section] + i];
      return true;
    }
    i -= count;
  }
  return false;
}

// End of the run of segments whose states a merge makes: the next one starts from none of them.
__device__ __forceinline__ int end_of_run(const ScanParams& p, const Work& work, int lane) {
#pragma unroll 1
  for (int segment = work.own;; segment += 32) {
    const int64_t place =
        work.place + static_cast<int64_t>(segment + lane - work.begin + 1) * p.heads_v.divisor;
    const bool ends = segment + lane >= work.end || p.cuts.handed[place] == 0;
    const unsigned all = __ballot_sync(ptx::kAllLanes, ends);
    if (all != 0) return segment + __ffs(static_cast<int>(all)) - 2;
  }
}

// A CTA of the list, and what it works on; false: there is no work for it.
__device__ __forceinline__ bool listed_chain(const ScanParams& p, Chain& c, Task* task, int* slab,
                                             int lane) {
  Work work;
  if (!find_work(p, &work)) return false;
  *task = work.task, *slab = work.slab;
  c.n = c.slot = work.n;
  c.hv = work.hv;
  c.v0 = 0;
  c.begin = work.begin, c.own = work.own, c.end = work.end;
  c.place = work.place;
  c.map = work.task == Task::map, c.handed = work.handed, c.leaves = work.leaves;
  if (work.task == Task::merge) {
    c.end = end_of_run(p, work, lane);
    return c.begin < c.end;
  }
  c.range = bounded_range(p.problem, p.args, c.n);
  c.first_chunk = chunk::first_chunk(p, c.n);
  c.row = chunk::first_row(p, c.n, lane);
  c.loads = work.task == Task::outputs && !c.handed && c.begin == 0 &&
            starts_from_state(p.problem, p.args, c.n);
  c.last = static_cast<int64_t>(c.end) * kChunk >= c.range.length();
  return true;
}

// Without cuts: a sequence. False: the CTA only writes zeros.
__device__ __forceinline__ bool whole_chain(const ScanParams& p, Chain& c, uint32_t block,
                                            int lane) {
  const Problem& problem = p.problem;
  const uint32_t head = divide(block, p.parts), n = divide(head, p.heads_v);
  c.n = n;
  c.hv = head - n * p.heads_v.divisor;
  c.v0 = static_cast<int>(block - head * p.parts.divisor) * kDim;
  const bool has_rows = problem.intermediate_states.present();
  if (n >= problem.num_sequences) {
    const TokenRange last = bounded_range(problem, p.args, problem.num_sequences - 1);
    c.range = {0, last.end, problem.num_tokens};
    zero_outputs(p, c, first_row(p, problem.num_sequences, lane),
                 has_rows ? problem.intermediate_rows : 0);
    return false;
  }
  c.range = bounded_range(problem, p.args, n);
  c.first_chunk = chunk::first_chunk(p, n);
  c.slot = problem.pool() ? start_slot(problem, p.args, n) : n;
  c.row = first_row(p, n, lane);
  const int64_t length = c.range.length();
  if (c.slot < 0) {
    zero_outputs(p, c, c.row,
                 c.row + (has_rows ? (length + problem.state_every - 1) / problem.state_every : 0));
    return false;
  }
  c.begin = c.own = 0;
  c.end = static_cast<int>((length + kChunk - 1) / kChunk);
  c.map = c.handed = c.leaves = false;
  c.loads = starts_from_state(problem, p.args, n);
  c.last = true;
  return true;
}

// Of a scan; see Layout.
template <class Layout>
__device__ __forceinline__ void init_barriers(uint32_t barriers) {
  for (int i = 0; i < Layout::kStages; ++i) {
    ptx::init_barrier(barriers + 8 * (Layout::kFull + i), 1);
    ptx::init_barrier(barriers + 8 * (Layout::kReady + i), 1);
    ptx::init_barrier(barriers + 8 * (Layout::kEmpty + i), Layout::kSlabs);
    for (int slab = 0; slab < Layout::kSlabs; ++slab)
      ptx::init_barrier(barriers + 8 * (Layout::kWritten + slab * Layout::kStages + i), 4);
  }
  ptx::init_barrier(barriers + 8 * Layout::kLanded, 1);
}

}  // namespace sm90

// grid: with cuts as many as the list has entries at most. Then (N, and one more with cu_seqlens) *
// HV * parts of V, the part fastest; of these with cuts the last sequence alone, whose CTAs write
// zeros where no sequence is.
template <bool kBf16, bool kDelta, bool kChannel>
__global__ void __launch_bounds__(sm90::Layout<kChannel>::kThreads, 1)
    chunk_scan_sm90(const __grid_constant__ sm90::ScanParams p) {
  using namespace sm90;
  using Layout = Layout<kChannel>;
  char* unaligned = ptx::dynamic_shared();
  char* shared = unaligned + (tile::kAlignment - ptx::shared_address(unaligned)) % tile::kAlignment;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  Chain c;
  Task task = Task::outputs;
  int slab = 0;
  if (blockIdx.x < p.cuts.grid) {
    ptx::wait_for_previous_grid();
    if (!listed_chain(p, c, &task, &slab, lane)) return;
  } else {
    if (!whole_chain(p, c, blockIdx.x - p.cuts.grid + p.cuts.skipped, lane)) return;
    ptx::wait_for_previous_grid();
  }
  c.h = divide(static_cast<uint32_t>(c.hv), p.group);

  const uint32_t barriers = ptx::shared_address(shared + Layout::kBarriersAt);
  Chain& chain = *reinterpret_cast<Chain*>(shared + Layout::kChainAt);
  if (thread == 0) {
    chain = c;
    if (task == Task::merge)
      for (int i = 0; i < kMergeStages; ++i) MergeStage(0, barriers, i).init();
    else
      init_barriers<Layout>(barriers);
    ptx::fence_barrier_init();
  }
  __syncthreads();
  if (thread >= kWarpgroup) {
    ptx::raise_registers<Layout::kStateRegisters>();
    if (task != Task::merge) {
      scan_chunks<kBf16, kDelta, kChannel>(p, chain, shared, barriers);
    } else if (thread < 2 * kWarpgroup) {
      if constexpr (kDelta)
        merge_maps(p, chain, slab, shared, barriers);
      else
        merge_decays(p, chain, slab);
    }
  } else {
    ptx::lower_registers<Layout::kLoadRegisters>();
    const int warp = ptx::opaque(thread / 32);
    if (task == Task::merge) {
      if (kDelta && warp == 0) load_maps(p, chain, slab, ptx::shared_address(shared), barriers);
      if (kDelta && warp == 1) tell_merged(p, chain, slab, 0, barriers);
    } else if (warp == 0) {
      load_chunks<kChannel>(p, chain, shared, barriers);
    } else if (warp >= 2) {
      store_outputs<kChannel>(p, chain, warp - 2, shared, barriers);
    } else if constexpr (!kChannel) {
      gather_decays<kBf16>(chain, shared, barriers);
    }
  }
}

}  // namespace linattn::cuda
