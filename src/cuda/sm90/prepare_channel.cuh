// Preparation with a gate a channel: a CTA makes the record of one chunk of one value head.
#pragma once

#include "cuda/ptx/launch.cuh"
#include "cuda/sm90/prepare_channel.anchored.cuh"
#include "cuda/sm90/prepare_channel.exact.cuh"

namespace linattn::cuda {

// grid: chunk slots * HV. kAnchored: 16 tokens decay by no more than exp(-80).
template <bool kDelta, bool kAnchored>
__global__ void __launch_bounds__(sm90::kPrepareChannelThreads,
                                  kAnchored ? sm90::kPrepareChannelCtas : sm90::kPrepareExactCtas)
    chunk_prepare_channel_sm90(const __grid_constant__ sm90::ScanParams p) {
  using namespace sm90;
  auto& s = *reinterpret_cast<ChannelScratch*>(ptx::dynamic_shared_1024());
  // Unsigned, so that nothing computed from them needs a sign.
  const uint32_t number = threadIdx.x;
  const int thread = static_cast<int>(number % kPrepareChannelThreads);
  const int warp = static_cast<int>(number / 32 % 4), lane = static_cast<int>(number % 32);
  // The last chunks first: L2 then has the first ones, with which the scan begins.
  const uint32_t index = gridDim.x - 1 - blockIdx.x;
  const uint32_t slot = chunk::divide(index, p.heads_v);
  const Place place = chunk::find_place(p, slot, index - slot * p.heads_v.divisor);
  if (p.cuts.work != nullptr && blockIdx.x == 0 && thread < kSections) p.cuts.counts[thread] = 0;
  if (place.rows == 0) return;
  const Problem& problem = p.problem;
  const uint32_t landed = ptx::shared_address(s.landed);
  if (p.vectors && thread == 0) {
    ptx::init_barrier(landed, 1);
    ptx::fence_barrier_init();
    copy_inputs(p, place, s, landed);
  }
  if (!p.vectors) copy_input_elements(p, place, s, thread);
  const RawSide raw(p, place, kDelta && warp == 0, thread, lane);
  ptx::allow_next_grid();
  __syncthreads();
  if (p.vectors) ptx::wait(landed, 0);

  const int first = warp * kRows;
  if (first + kRows > place.rows) zero_missing(p, s, first, place.rows, lane);
  if (problem.q.type == Type::f16) narrow_rows(s, first, lane);
  square_rows(s, first, lane);
  if (kDelta && warp == 0)
    s.beta[lane] =
        lane < place.rows ? beta_of(problem, value_of(problem.beta.type, raw.beta)) : 0.0f;
  const GateSide side(problem, raw, kAnchored);
  if constexpr (kAnchored)
    make_anchored<kDelta>(p, s, side, place.rows, warp, lane);
  else
    make_exactly<kDelta>(p, *reinterpret_cast<ExactScratch*>(&s), side, place.rows, warp, lane);
  ptx::fence_async_proxy();
  __syncthreads();
  // The warp that solves, another one from CTA to CTA: a scheduler has the same warp of all.
  if (warp != static_cast<int>(blockIdx.x % 4)) return;
  if (p.cuts.work != nullptr && lane == 0)
    p.cuts.bounds[place.hv * p.cuts.slots + slot] = s.record.bound;
  auto* record = static_cast<ChannelRecord*>(p.records) + index;
  constexpr int kSquares = offsetof(ChannelRecord, t);
  if (lane == 0) {
    ptx::store_bytes(record, ptx::shared_address(&s.record), kSquares);
    ptx::commit_stores();
  }
  if constexpr (kDelta) {
    char* square = reinterpret_cast<char*>(s.record.t);
    const Inverse inverse = invert(square, lane);
    __syncwarp();
    store_t(square, inverse, lane, [&](int column) { return s.beta[column]; });
    ptx::fence_async_proxy();
    __syncwarp();
  }
  if (lane == 0) {
    ptx::store_bytes(reinterpret_cast<char*>(record) + kSquares,
                     ptx::shared_address(&s.record) + kSquares,
                     static_cast<int>(offsetof(ChannelRecord, bound)) + 16 - kSquares);
    ptx::commit_stores();
    ptx::wait_stores_read();
  }
}

}  // namespace linattn::cuda
