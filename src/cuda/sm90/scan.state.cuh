// A state warpgroup: 64 value columns of one chain, S^T in its accumulators from the first chunk to
// the last:
//   X_k = S^T K^T, X_q = S^T Q^T,  Z = V - read_k X_k,  R = Z T^T,  O = read_q X_q + R P^T,
//   S^T = decay S^T + (write_k R) K.
// Only X_k, Z, R and S^T wait for each other from chunk to chunk. X_q runs while R is rounded; P
// and what becomes of O while the next chunk's X_k runs. Thread (warp w, lane l) holds value
// columns 16w + l/4 and + 8.
#pragma once

#include "cuda/portable/chunk.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/special.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/ptx/tf32.cuh"
#include "cuda/ptx/warp.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/scan.hand.cuh"

namespace linattn::cuda::sm90 {

using chunk::pack;
using chunk::unpack;

// S^T as A operands of k = 16.
template <bool kBf16>
__device__ __forceinline__ void pack_state(uint32_t (&a)[8][4], const float (&s)[64]) {
#pragma unroll
  for (int step = 0; step < 8; ++step)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      a[step][e] = pack<kBf16>(s[8 * step + 2 * e], s[8 * step + 2 * e + 1]);
}

// x = S^T rows^T for rows first.. of the [K; Q] tile.
template <bool kBf16>
__device__ __forceinline__ void read_state(float (&x)[16], const uint32_t (&a)[8][4], uint64_t keys,
                                           int first) {
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const uint64_t rows = keys + tile::k_major<RowsTile>(0, first, step);
    if (step == 0)
      ptx::wgmma_k16<kBf16, false>(x, a[step], rows);
    else
      ptx::wgmma_k16<kBf16, true>(x, a[step], rows);
  }
  ptx::commit_wgmma();
}

// x = z T^T, both sums of two bf16 numbers, of which the products of the smaller ones are left out.
__device__ __forceinline__ void multiply_t(float (&x)[16], const uint32_t (&high)[2][4],
                                           const uint32_t (&low)[2][4], uint64_t t) {
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const uint64_t high_t = t + tile::k_major<SplitTile>(0, 0, step);
    const uint64_t low_t = t + tile::k_major<SplitTile>(0, 0, 2 + step);
    if (step == 0)
      ptx::wgmma_k16<true, false>(x, low[step], high_t);
    else
      ptx::wgmma_k16<true, true>(x, low[step], high_t);
    ptx::wgmma_k16<true, true>(x, high[step], low_t);
    ptx::wgmma_k16<true, true>(x, high[step], high_t);
  }
  ptx::commit_wgmma();
}

// x (+)= y square^T for the square at `offset` in the stage. The tensor cores cut the lower 13 bits
// of y off.
template <bool kAccumulate>
__device__ __forceinline__ void multiply_square(float (&x)[16], const uint32_t (&y)[4][4],
                                                uint64_t stage, int offset) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint64_t rows = stage + tile::k_major<SquareTile>(offset, 0, step);
    if (step == 0)
      ptx::wgmma_k8_tf32<kAccumulate>(x, y[step], rows);
    else
      ptx::wgmma_k8_tf32<true>(x, y[step], rows);
  }
  ptx::commit_wgmma();
}

// Four accumulators of a tile as an A operand of fp32 numbers; see square_column.
__device__ __forceinline__ void operand(uint32_t (&a)[4], float x0, float x1, float x2, float x3) {
  a[0] = ptx::float_bits(x0), a[1] = ptx::float_bits(x2);
  a[2] = ptx::float_bits(x1), a[3] = ptx::float_bits(x3);
}

// O as rows, in the place of the warp's own columns of V.
template <bool kBf16>
__device__ __forceinline__ void write_o(const float (&x)[16], uint32_t values) {
#pragma unroll
  for (int j = 0; j < 4; j += 2) {
    // Tiles of 8 tokens by 8 columns: (token 8j, column), (8j, column + 8), then of j + 1.
    const uint32_t pairs[4] = {
        pack<kBf16>(x[4 * j], x[4 * j + 1]), pack<kBf16>(x[4 * j + 2], x[4 * j + 3]),
        pack<kBf16>(x[4 * j + 4], x[4 * j + 5]), pack<kBf16>(x[4 * j + 6], x[4 * j + 7])};
    ptx::stmatrix_x4_trans(values + j * 8 * tile::kSwizzleBytes, pairs);
  }
}

// Value tiles j, j + 1 as the accumulators have them.
template <bool kBf16>
__device__ __forceinline__ void load_values(float (&v)[16], uint32_t values) {
#pragma unroll
  for (int j = 0; j < 4; j += 2) {
    uint32_t pairs[4];
    ptx::ldmatrix_x4_trans(pairs, values + j * 8 * tile::kSwizzleBytes);
#pragma unroll
    for (int e = 0; e < 4; ++e) unpack<kBf16>(pairs[e], v[4 * j + 2 * e], v[4 * j + 2 * e + 1]);
  }
}

// Factors of the thread's tokens 8j + 2t, 8j + 2t + 1.
__device__ __forceinline__ void load_factors(float2 (&factors)[4], const float* of_tokens, int t) {
#pragma unroll
  for (int j = 0; j < 4; ++j)
    factors[j] = *reinterpret_cast<const float2*>(of_tokens + 8 * j + 2 * t);
}

// x as A operands of k = 16: `first` rounded, `rest` what rounding lost.
template <bool kBf16, bool kRest>
__device__ __forceinline__ void round_operand(uint32_t (&first)[2][4], float (&rest)[16],
                                              const float (&x)[16]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    first[i / 4][i % 4] = pack<kBf16>(x[2 * i], x[2 * i + 1]);
    if constexpr (kRest) {
      float y0, y1;
      unpack<kBf16>(first[i / 4][i % 4], y0, y1);
      rest[2 * i] = x[2 * i] - y0, rest[2 * i + 1] = x[2 * i + 1] - y1;
    }
  }
}

template <bool kBf16>
__device__ __forceinline__ void pack_operand(uint32_t (&a)[2][4], const float (&x)[16]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = pack<kBf16>(x[2 * i], x[2 * i + 1]);
}

template <bool kBf16, class Keys>
__device__ __forceinline__ void update_state(float (&s)[64], const uint32_t (&r)[2][4],
                                             uint64_t keys) {
#pragma unroll
  for (int step = 0; step < 2; ++step)
    ptx::wgmma_k16_transposed<kBf16, true>(s, r[step], keys + tile::mn_major<Keys>(0, step));
}

// S^T times the decays of its channels.
__device__ __forceinline__ void decay_channels(float (&s)[64], const float* decays, int t) {
  const uint32_t at = ptx::shared_address(decays + 2 * t);
#pragma unroll
  for (int j = 0; j < kDim / 8; ++j) {
    const float2 two = ptx::load_pair(at + 32 * j);
#pragma unroll
    for (int e = 0; e < 4; ++e) s[4 * j + e] *= e & 1 ? two.y : two.x;
  }
}

template <bool kBf16, bool kDelta, bool kChannel>
__device__ __forceinline__ void scan_chunks(const ScanParams& p, const Chain& c, char* shared,
                                            uint32_t barriers) {
  using Layout = Layout<kChannel>;
  // Decayed keys and queries need bf16's range.
  constexpr bool kWide = kBf16 || kChannel;
  // What a stage's keys and factors wait for.
  constexpr int kReady = kChannel ? Layout::kFull : Layout::kReady;
  const Problem& problem = p.problem;
  const int slab = slab_of_warpgroup(), v0 = c.v0 + slab * kSlab;
  float s[64];
  start_state(p, c, slab, s);
  const StateView& intermediate = problem.intermediate_states;
  const int lane = lane_of_warp(), t = lane % 4, own = c.own, end = c.end;
  // Of the thread's row of an 8 x 8 tile in its slab's v.
  const int unit =
      Layout::kV + slab * ValuesTile::kTileBytes +
      tile::swizzled((lane & 7) + (lane & 16) / 2, thread_of_warpgroup() / 32 * 2 + (lane / 8 & 1));
  const uint32_t written = barriers + 8 * (Layout::kWritten + slab * Layout::kStages);
  float r[16], o[16];
  uint32_t a[8][4], z[4][4];
  // What descriptors of operands in the stage have more than those of a stage at address 0.
  const uint64_t first_stage = ptx::shared_address(shared) >> 4;
  uint64_t operands = first_stage;
  const auto read_keys = [&] {
    pack_state<kWide>(a, s);
    ptx::pin(a);
    if constexpr (kDelta) {
      ptx::fence_wgmma();
      read_state<kWide>(r, a, operands + (Layout::kKeys >> 4), 0);
    }
  };
  Turn<Layout::kStages> turn;
  float kept = 1.0f;
  if (c.begin < end) {
    ptx::wait(barriers + 8 * kReady, 0);
    read_keys();
  }
#pragma unroll 1
  for (int chunk = c.begin; chunk < end; ++chunk) {
    char* tiles = shared + turn.stage * Layout::kStageBytes;
    const uint32_t values = ptx::shared_address(tiles) + unit;
    const auto& record = *reinterpret_cast<const typename Layout::Record*>(tiles + Layout::kRecord);
    const uint32_t done = written + 8 * turn.stage;
    const uint64_t now = operands;
    turn.next();
    operands = turn.stage == 0 ? first_stage : operands + (Layout::kStageBytes >> 4);
    const uint32_t next = barriers + 8 * (kReady + turn.stage);
    const bool ready = chunk + 1 == end || ptx::try_wait(next, turn.phase);
    Gathered gathered = {1.0f, 1.0f, 1.0f};
    if constexpr (!kChannel)
      gathered = *reinterpret_cast<const Gathered*>(tiles + Layout::kGathered);
    float v[16], rest[16];
    float2 read_k[4], read_q[4], write_k[4];
    uint32_t first[2][4], second[2][4];
    load_values<kBf16>(v, values);
    if constexpr (kDelta) load_factors(read_k, record.read_k, t);
    load_factors(write_k, record.write_k, t);
    load_factors(read_q, record.read_q, t);
    ptx::wait_wgmma<0>();
    ptx::pin(s);
    if constexpr (kDelta) {
      ptx::pin(r);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          v[4 * j + e] = fmaf(-(e & 1 ? read_k[j].y : read_k[j].x), r[4 * j + e], v[4 * j + e]);
      }
      round_operand<true, true>(first, rest, v);
      pack_operand<true>(second, rest);
      ptx::pin(first), ptx::pin(second);
    }
    if (!ready) ptx::wait(next, turn.phase);
    // Nothing is in flight here.
    if (intermediate.present() && chunk >= own &&
        static_cast<int64_t>(chunk) * kChunk % problem.state_every == 0) [[unlikely]] {
      const int64_t row = c.row + static_cast<int64_t>(chunk) * kChunk / problem.state_every;
      store_state(intermediate, p.args.intermediate_states,
                  intermediate.at(c.range.batch, c.hv, 0, v0) + row * intermediate.r, s,
                  gathered.before);
    }
    if (!kChannel && gathered.times != 1.0f) [[unlikely]] {
#pragma unroll
      for (int i = 0; i < 64; ++i) s[i] *= gathered.times;
    }
    if (chunk + 1 == end) kept = gathered.after;
    ptx::pin(s);
    ptx::fence_wgmma();
    if constexpr (kDelta) multiply_t(r, first, second, now + (Layout::kT >> 4));
    read_state<kWide>(o, a, now + (Layout::kKeys >> 4), kChunk);
    if constexpr (kChannel) decay_channels(s, record.decay, t);
    if constexpr (kDelta) {
      ptx::wait_wgmma<1>();
      ptx::pin(r);
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) r[i] = v[i];
    }
    // For the update R is a sum of two narrow numbers; V, which was narrow, of one.
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = r[i] * (i & 1 ? write_k[i / 4].y : write_k[i / 4].x);
    round_operand<kWide, kDelta>(first, rest, v);
    ptx::pin(s), ptx::pin(first);
    ptx::fence_wgmma();
    update_state<kWide, typename Layout::UpdateTile>(s, first, now + (Layout::kUpdate >> 4));
    if constexpr (kDelta) {
      pack_operand<kWide>(second, rest);
      ptx::pin(second);
      ptx::fence_wgmma();
      update_state<kWide, typename Layout::UpdateTile>(s, second, now + (Layout::kUpdate >> 4));
    }
    ptx::commit_wgmma();
#pragma unroll
    for (int j = 0; j < 4; ++j) operand(z[j], r[4 * j], r[4 * j + 1], r[4 * j + 2], r[4 * j + 3]);
    ptx::pin(z);
    ptx::wait_wgmma<1>();
    ptx::pin(o);
#pragma unroll
    for (int i = 0; i < 16; ++i) o[i] *= i & 1 ? read_q[i / 4].y : read_q[i / 4].x;
    ptx::pin(o);
    ptx::fence_wgmma();
    multiply_square<true>(o, z, now, Layout::kP);
    ptx::wait_wgmma<1>();
    ptx::pin(s);
    // Behind the last chunk this reads what is left of another, for nobody.
    read_keys();
    ptx::wait_wgmma<kDelta ? 1 : 0>();
    ptx::pin(o);
    write_o<kBf16>(o, values);
    __syncwarp();
    if (lane == 0) ptx::arrive(done);
  }
  ptx::wait_wgmma<0>();
  if (c.leaves) leave_state<kDelta, kChannel>(p, c, slab, s, kept);
  if (!c.last) return;
  // An empty sequence leaves its slot alone, bit for bit.
  const bool pool = problem.pool();
  const int64_t target = pool ? target_slot(problem, p.args, c.n, 0) : c.n;
  const StateView& view = pool ? problem.initial_state : problem.final_state;
  if (!view.present() || target < 0 || (pool && c.end == 0 && c.loads && target == c.slot)) return;
  store_state(view, pool ? p.args.initial_state : p.args.final_state, view.at(target, c.hv, 0, v0),
              s, kept);
}

}  // namespace linattn::cuda::sm90
