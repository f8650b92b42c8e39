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
  const uint32_t slot = chunk::divide(blockIdx.x, p.heads_v);
  const Place place = chunk::find_place(p, slot, blockIdx.x - slot * p.heads_v.divisor);
  if (place.rows == 0) return;
  const Problem& problem = p.problem;
  const uint32_t landed = ptx::shared_address(s.landed);
  if (p.vectors && thread == 0) {
    ptx::init_barrier(landed, 1);
    ptx::fence_barrier_init();
    copy_inputs(p, place, s, landed);
  }
  if (!p.vectors) copy_input_elements(p, place, s, thread);
  // What find_log_decays and find_decays expect.
  float factor = 1.0f;
  if (problem.gate_form != GateForm::given) {
    factor = gate_factor(problem, p.args, place.hv) * (kAnchored ? -kLog2E : 1.0f);
    const HeadView& bias = problem.dt_bias;
    s.bias()[thread] = !bias.present() ? 0.0f
                                       : (kAnchored ? factor : 1.0f) *
                                             load_element(bias.type, p.args.dt_bias,
                                                          place.hv * bias.h + thread * bias.k);
  }
  if (kDelta && thread < kChunk)
    s.beta[thread] = thread < place.rows
                         ? load_beta(problem, p.args, place.batch, place.begin + thread, place.hv)
                         : 0.0f;
  ptx::allow_next_grid();
  __syncthreads();
  if (p.vectors) ptx::wait(landed, 0);

  const int first = warp * kRows;
  if (first + kRows > place.rows) zero_missing(p, s, first, place.rows, lane);
  if (problem.q.type == Type::f16) narrow_rows(s, first, lane);
  if (problem.qk_norm || p.pieces.divisor > 1) square_rows(s, first, lane);
  if constexpr (kAnchored)
    make_anchored<kDelta>(p, s, factor, place.rows, warp, lane);
  else
    make_exactly<kDelta>(p, *reinterpret_cast<ExactScratch*>(&s), factor, place.rows, warp, lane);
  ptx::fence_async_proxy();
  __syncthreads();
  // The warp that solves, another one from CTA to CTA: a scheduler has the same warp of all.
  if (warp != static_cast<int>(blockIdx.x % 4)) return;
  auto* record = static_cast<ChannelRecord*>(p.records) + blockIdx.x;
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
