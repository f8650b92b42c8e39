// Preparation: a CTA makes the records of one chunk of one value head, or of a few that share q and
// k. Nothing here depends on the state, so all chunks run at once.
#pragma once

#include <type_traits>

#include "cuda/portable/chunk_prepare.channel.cuh"
#include "cuda/portable/chunk_prepare.scalar.cuh"

namespace linattn::cuda {

// CTAs an SM that the registers must allow. What measured best on sm_90 spills on other targets,
// whose compilers choose.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
inline constexpr bool kPrepareTuned = false;
#else
inline constexpr bool kPrepareTuned = true;
#endif
constexpr int prepare_ctas(Type type, int dim, bool channel) {
  if (!kPrepareTuned) return 1;
  if (type == Type::f32) return channel ? 2 : 256 / dim;
  return !channel ? 640 / dim : dim == 256 ? 1 : 3;
}

// grid: chunk slots * H * batches of a q/k head's value heads; block: chunk_prepare_threads().
template <Type kType, int kDim, bool kChannel>
__global__ void __launch_bounds__(chunk_prepare_threads(kDim, kChannel),
                                  prepare_ctas(kType, kDim, kChannel))
    chunk_prepare_portable(const __grid_constant__ ChunkParams p) {
  char* shared = ptx::dynamic_shared();
  using Shared = std::conditional_t<kChannel, chunk::PrepareChannelShared<kType, kDim>,
                                    chunk::PrepareScalarShared<kType, kDim>>;
  auto& s = *reinterpret_cast<Shared*>(shared);
  constexpr int kHeads = chunk_prepare_heads(kDim, kChannel);
  const uint32_t slot = chunk::divide(blockIdx.x, p.prepare_blocks);
  const uint32_t block = blockIdx.x - slot * p.prepare_blocks.divisor;
  const uint32_t h = chunk::divide(block, p.prepare_batches);
  const int of_group = static_cast<int>(block - h * p.prepare_batches.divisor) * kHeads;
  const int64_t hv = static_cast<int64_t>(h) * p.group.divisor + of_group;  // the first
  const chunk::Place place = chunk::find_place(p, slot, hv);
  if (place.rows == 0) return;
  char* record = p.records + (static_cast<int64_t>(slot) * p.heads_v.divisor + hv) * p.record_bytes;
  if constexpr (!kChannel) {
    const int left = static_cast<int>(p.group.divisor) - of_group;
    chunk::prepare_scalar<kType, kDim>(p, place, left < kHeads ? left : kHeads, record, s);
  } else {
    chunk::clear_p<kType>(record, {kDim, true, p.delta, chunk::kBytes<kType>},
                          static_cast<int>(threadIdx.x));
    chunk::prepare_channel<kType, kDim>(p, place, record, s);
    if (!p.delta) return;
    __syncthreads();
    if (threadIdx.x < 32) chunk::solve<kType>(s.a, s.beta, record, static_cast<int>(threadIdx.x));
  }
}

}  // namespace linattn::cuda
