// The scan's memory: states in and out, and chunks on their way to shared memory.
#pragma once

#include <type_traits>

#include "cuda/portable/chunk_operand.cuh"

namespace linattn::cuda::chunk {

// kPart: key channels of a warp, all or half of them.
template <int kPart>
struct State {
  // Tile j: value rows lane/4 (+8), channels 8j + 2 (lane%4) (+1) of the part.
  float s[kPart / 8][4];
};

// Which warp this is: `group` of 16 value columns, `half` of the key channels (0 without pairs).
struct Warp {
  int lane, group, half, groups;  // groups of the CTA
};

// States travel between registers and memory through rows of shared memory, [16 v][part of k] a
// warp: with fragments addressed directly, offsets would take more registers than the state.
template <int kPart>
inline constexpr int kStateRow = kPart + 2;
template <int kPart>
inline constexpr int kStateBytes = 16 * kStateRow<kPart> * 4;

// Calls f(row element, offset in the tensor) for each element of the warp's part that exists.
template <int kPart, class F>
__device__ __forceinline__ void for_elements(const ChunkParams& p, const StateView& view,
                                             int64_t offset, int v0, const Warp& w, float* rows,
                                             F&& f) {
  const int k0 = w.half * kPart;
#pragma unroll 1
  for (int i = w.lane; i < 16 * kPart; i += 32) {
    // Neighbouring lanes take neighbours in memory.
    const int v = view.k == 1 ? i / kPart : i % 16, k = view.k == 1 ? i % kPart : i / 16;
    if (v0 + v < p.dim_v && k0 + k < p.dim_k)
      f(rows[v * kStateRow<kPart> + k], offset + (v0 + v) * view.v + (k0 + k) * view.k);
  }
}

template <int kPart>
__device__ __forceinline__ float2* fragment(float* rows, int lane, int j, int side) {
  return reinterpret_cast<float2*>(rows + (lane / 4 + side * 8) * kStateRow<kPart> + 8 * j +
                                   lane % 4 * 2);
}

template <int kPart>
__device__ __forceinline__ void store_state(const ChunkParams& p, const StateView& view, void* data,
                                            int64_t offset, int v0, const Warp& w, float* rows,
                                            const State<kPart>& state) {
#pragma unroll
  for (int j = 0; j < kPart / 8; ++j) {
    *fragment<kPart>(rows, w.lane, j, 0) = make_float2(state.s[j][0], state.s[j][1]);
    *fragment<kPart>(rows, w.lane, j, 1) = make_float2(state.s[j][2], state.s[j][3]);
  }
  __syncwarp();
  for_elements<kPart>(p, view, offset, v0, w, rows,
                      [&](float x, int64_t at) { store_element(view.type, data, at, x); });
  __syncwarp();
}

template <int kPart>
__device__ __forceinline__ void load_state(const ChunkParams& p, int64_t n, int64_t hv, int v0,
                                           const Warp& w, float* rows, State<kPart>& state) {
  const StateView& view = p.problem.initial_state;
  for (int i = w.lane; i < 16 * kStateRow<kPart>; i += 32) rows[i] = 0.0f;
  __syncwarp();
  for_elements<kPart>(p, view, view.at(n, hv, 0, 0), v0, w, rows, [&](float& x, int64_t at) {
    x = load_element(view.type, p.args.initial_state, at);
  });
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kPart / 8; ++j) {
    const float2 low = *fragment<kPart>(rows, w.lane, j, 0);
    const float2 high = *fragment<kPart>(rows, w.lane, j, 1);
    state.s[j][0] = low.x, state.s[j][1] = low.y, state.s[j][2] = high.x, state.s[j][3] = high.y;
  }
}

// Shared memory of one stage. kWarps: warps that share value columns.
template <Type kOf, int kDim, bool kChannel, bool kDelta, int kWarps>
struct Stage {
  static constexpr Type kType = kOf;
  static constexpr int kParts = kWarps, kPart = kDim / kParts, kEach = kBytes<kType>;
  static constexpr ChunkRecord layout{kDim, kChannel, kDelta, kEach};
  static constexpr bool kSplit = kDelta && kEach == 2;
  static constexpr bool kValuesAsTheyAre = kChannel && !kDelta;  // V is R
  static constexpr int kRecord = layout.bytes();
  // Without channel gates q and k come from the caller's tensors.
  static constexpr int kQ = kChannel ? layout.q() : kRecord;
  static constexpr int kK = kChannel ? layout.k() : kRecord + layout.rows_bytes();
  static constexpr int kUpdate = kChannel ? layout.update() : kK;
  static constexpr int kV = kRecord + (kChannel ? 0 : 2 * layout.rows_bytes());
  // Of a CTA with so many groups of 16 value columns.
  LINATTN_HOST_DEVICE static constexpr int v_row_bytes(int groups) {
    return groups * 16 * kEach + 16;
  }
  // Rows of v that all threads copy at a time, 16 bytes each.
  static constexpr int kStepV = 32 * kParts / kEach;
  // Also room for the states of all warps.
  LINATTN_HOST_DEVICE static constexpr int bytes(int groups) {
    const int tiles = kV + kChunk * v_row_bytes(groups),
              states = kParts * groups * kStateBytes<kPart>;
    return tiles > states ? tiles : states;
  }
  // What the warps of a pair hand over, after the stages: all of X_k and half of X_q.
  static constexpr int kExchanged = kParts == 1 ? 0 : kDelta ? 6 : 2;  // float4 a lane
  LINATTN_HOST_DEVICE static constexpr int shared_bytes(int groups, int stages) {
    return stages * bytes(groups) + kParts * groups * kExchanged * 32 * 16;
  }
};

struct Chain {
  int n, hv, h;
  int v0;                 // of the CTA
  int batch, begin, end;  // tokens [begin, end) of a row of the B axis
  const char* record;     // of the first chunk
};

template <class S>
__device__ __forceinline__ void load_stage(const ChunkParams& p, const Chain& c, int64_t chunk,
                                           char* stage, int groups, int thread, int threads) {
  constexpr int kDim = S::layout.dim;
  const Problem& problem = p.problem;
  const char* record = c.record + chunk * p.heads_v.divisor * p.record_bytes;
  const uint32_t to_record = ptx::shared_address(stage);
#pragma unroll 2
  for (int i = thread * 16; i < S::kRecord; i += threads * 16)
    ptx::copy_16_async(to_record + i, record + i);
  const int begin = c.begin + static_cast<int>(chunk) * kChunk, left = c.end - begin;
  const int rows = left < kChunk ? left : kChunk;
  if constexpr (!S::layout.channel) {
    load_tile<S::kType, kDim>(p.args.q, problem.q.at(c.batch, begin, c.h), problem.q.t, rows,
                              p.dim_k, p.qk_vectors, stage + S::kQ, thread, threads);
    load_tile<S::kType, kDim>(p.args.k, problem.k.at(c.batch, begin, c.h), problem.k.t, rows,
                              p.dim_k, p.qk_vectors, stage + S::kK, thread, threads);
  }
  // 16 bytes of v a thread at a time: a power of two of them a row.
  using Number = std::conditional_t<S::kEach == 4, float, uint16_t>;
  constexpr int kUnit = 16 / S::kEach;
  const int units = groups * S::kEach, unit = thread & (units - 1);
  const int columns = p.dim_v - c.v0 - unit * kUnit;
  const auto* first = static_cast<const Number*>(p.args.v) +
                      problem.v.at(c.batch, begin, c.hv, c.v0 + unit * kUnit);
#pragma unroll
  for (int i = 0; i < kChunk / S::kStepV; ++i) {
    const int row = (thread >> (__ffs(units) - 1)) + i * S::kStepV;
    const bool there = row < rows;
    const auto* v = first + (there ? row : 0) * problem.v.t;
    char* tile = stage + S::kV + row * S::v_row_bytes(groups) + unit * 16;
    if (p.v_vectors) {
      const bool exists = there && columns > 0;
      ptx::copy_16_async(ptx::shared_address(tile), exists ? v : p.args.v, exists);
      continue;
    }
    auto* elements = reinterpret_cast<Number*>(tile);
#pragma unroll
    for (int e = 0; e < kUnit; ++e) elements[e] = there && e < columns ? v[e] : Number{0};
  }
}

// The same where all rows and columns of a chunk exist: constant counts, no checks, and places that
// go on from chunk to chunk.
template <class S>
struct FullStage {
  static constexpr int kDim = S::layout.dim, kEach = S::kEach, kUnits = kDim * kEach / 16;

  const char *record, *q, *k, *v;
  int64_t record_step, q_step, k_step, v_step;  // bytes: a chunk; rows that are copied at a time
  uint32_t to_rows, to_v;                       // in a stage

  __device__ __forceinline__ FullStage(const ChunkParams& p, const Chain& c, int groups, int thread,
                                       int threads) {
    const Problem& problem = p.problem;
    record = c.record + thread * 16;
    record_step = p.heads_v.divisor * p.record_bytes;
    const auto place = [&](const TokenView& view, const void* data, int row, int head, int d) {
      return static_cast<const char*>(data) + kEach * view.at(c.batch, c.begin + row, head, d);
    };
    const int row = thread / kUnits, unit = thread % kUnits;
    q = place(problem.q, p.args.q, row, c.h, unit * 16 / kEach);
    k = place(problem.k, p.args.k, row, c.h, unit * 16 / kEach);
    q_step = threads / kUnits * kEach * problem.q.t;
    k_step = threads / kUnits * kEach * problem.k.t;
    to_rows = unit_at<S::kType, kDim>(row, unit);
    const int units = kEach * groups, row_v = thread >> (__ffs(units) - 1), unit_v = thread % units;
    v = place(problem.v, p.args.v, row_v, c.hv, c.v0 + unit_v * 16 / kEach);
    v_step = kEach * S::kStepV * problem.v.t;
    to_v = S::kV + row_v * S::v_row_bytes(groups) + unit_v * 16;
  }

  // The next chunk.
  template <int kGroups>
  __device__ __forceinline__ void load(uint32_t stage, int thread) {
    constexpr int kThreads = 32 * S::kParts * kGroups, kBytes = kThreads * 16;
    constexpr int kStep = kThreads / kUnits;
#pragma unroll
    for (int at = 0; at < S::kRecord; at += kBytes)
      if (at + kBytes <= S::kRecord || at + thread * 16 < S::kRecord)
        ptx::copy_16_async(stage + thread * 16 + at, record + at);
    record += record_step;
    if constexpr (!S::layout.channel) {
#pragma unroll
      for (int r = 0; r < kChunk; r += kStep, q += q_step, k += k_step) {
        // The turn of a sum of rows without common bits is that of both.
        const uint32_t to = stage + (to_rows ^ (turn<S::kType>(r) << 4)) + r * kDim * kEach;
        ptx::copy_16_async(to + S::kQ, q);
        ptx::copy_16_async(to + S::kK, k);
      }
    }
#pragma unroll
    for (int r = 0; r < kChunk; r += S::kStepV, v += v_step)
      ptx::copy_16_async(stage + to_v + r * S::v_row_bytes(kGroups), v);
  }
};

// Waits for this thread's copies of the oldest of stages - 1 chunks on their way.
__device__ __forceinline__ void wait_for_stage(int stages) {
  if (stages == 2)
    ptx::wait_copies<0>();
  else if (stages == 3)
    ptx::wait_copies<1>();
  else
    ptx::wait_copies<2>();
}

}  // namespace linattn::cuda::chunk
