// Cuts: what every segment starts from, and the list of work that follows. A warp for each piece of
// each value head.
#pragma once

#include "cuda/portable/chunk.cuh"
#include "cuda/ptx/flags.cuh"
#include "cuda/ptx/launch.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/warp.cuh"
#include "cuda/sm90/scan.params.h"

namespace linattn::cuda {
namespace sm90 {

// A sequence of one value head and its segments.
struct Segments {
  int64_t n, hv, first_chunk;
  int chunks, pieces, count;
  const float* bounds;  // of the chunks
  __device__ __forceinline__ int begin(int segment) const {
    return static_cast<int>(static_cast<int64_t>(chunks) * segment / count);
  }
};

// What a warp knows of the chunks before a segment.
struct Before {
  int own;      // first chunk of the segment
  float bound;  // of the chunk that lies `lane` before the last one before the segment, else 1
};

__device__ __forceinline__ Before before(const Segments& s, int segment, int lane) {
  const int own = segment < s.count ? s.begin(segment) : 0;
  return {own, lane < own ? s.bounds[own - 1 - lane] : 1.0f};
}

// Whether going back until all is forgotten would take more than `reach` chunks, told by the bounds
// of so many before the segment, or of all that there are.
__device__ __forceinline__ bool remembers(const ScanParams& p, const Segments& s, const Before& b,
                                          int lane) {
  const int reach = p.cuts.reach, seen = b.own < reach ? b.own : reach;
  float log_bound = lane < seen ? ptx::log2_approx(b.bound) : 0.0f;
#pragma unroll 4
  for (int i = 32 + lane; i < seen; i += 32) log_bound += ptx::log2_approx(s.bounds[b.own - 1 - i]);
#pragma unroll
  for (int bit = 16; bit >= 1; bit >>= 1) log_bound += ptx::shuffle_xor(log_bound, bit);
  const float forgotten = kLogForgotten * static_cast<float>(seen) / static_cast<float>(reach);
  return b.own > 0 && !(log_bound <= forgotten);  // a bound that is no number remembers
}

// First chunk from which on a state of any size would be forgotten before the segment; all lanes of
// a warp. Products of norms bound the norm of the product, so nothing that counts is dropped.
__device__ __forceinline__ int first_remembered(const Segments& s, const Before& b, int lane) {
  float left = 1.0f, bound = b.bound;
#pragma unroll 1
  for (int behind = b.own; behind > 0; behind -= 32) {
    const int chunk = behind - 1 - lane;
    if (behind < b.own) bound = chunk >= 0 ? s.bounds[chunk] : 1.0f;
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

// The sequence whose piece `id` is: pieces of sequence n begin at first_chunk / piece + n, which
// leaves gaps but needs no sum over the sequences before.
__device__ __forceinline__ int64_t sequence_of(const ScanParams& p, int64_t id) {
  int64_t n = 0, high = p.problem.num_sequences;
  while (high - n > 1) {
    const int64_t middle = (n + high) / 2;
    if (chunk::first_chunk(p, middle) / p.cuts.piece + middle <= id)
      n = middle;
    else
      high = middle;
  }
  return n;
}

// `count` neighbours in a section: alike, but for the slab of merges and the map behind the rest.
__device__ __forceinline__ void add_work(const ScanParams& p, int section, int count, Work work) {
  Work* to = p.cuts.work + p.cuts.first[section] +
             ptx::take_places(p.cuts.counts + section, static_cast<uint32_t>(count));
  for (int i = 0; i < count; ++i) {
    if (i > 0 && work.task == Task::rest) work.task = Task::map;
    work.slab = i;
    to[i] = work;
  }
}

}  // namespace sm90

// grid: warps for (first_chunk / piece + n) of all pieces, HV; HV fastest.
template <bool kDelta>
__global__ void __launch_bounds__(sm90::kCutThreads)
    chunk_cut_sm90(const __grid_constant__ sm90::ScanParams p) {
  using namespace sm90;
  ptx::allow_next_grid();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const uint32_t warp = blockIdx.x * (kCutThreads / 32) + thread / 32;
  const uint32_t id = chunk::divide(warp, p.heads_v);
  Segments s;
  s.n = sequence_of(p, id);
  s.hv = warp - id * p.heads_v.divisor;
  s.first_chunk = chunk::first_chunk(p, s.n);
  const int64_t length = bounded_range(p.problem, p.args, s.n).length();
  s.chunks = static_cast<int>((length + kChunk - 1) / kChunk);
  // A final state in place of the initial one: nobody may write before all have read.
  const bool whole = p.args.initial_state != nullptr && p.args.initial_state == p.args.final_state;
  s.pieces = whole ? 1 : pieces_of(p.cuts, s.chunks);
  s.count = s.pieces == 1 ? 1 : 2 * s.pieces;
  s.bounds = p.cuts.bounds + s.hv * p.cuts.slots + s.first_chunk;
  const int64_t first_id = s.first_chunk / p.cuts.piece;
  const int64_t piece = static_cast<int64_t>(id) - first_id - s.n;
  // Before any CTA ends: its end tells the scan that the records are there.
  ptx::wait_for_previous_grid();
  if (piece >= s.pieces) return;

  const int s0 = 2 * static_cast<int>(piece), s1 = s0 + 1, s2 = s0 + 2;
  const Before b0 = before(s, s0, lane), b1 = before(s, s1, lane), b2 = before(s, s2, lane);
  const bool handed0 = remembers(p, s, b0, lane), handed1 = remembers(p, s, b1, lane),
             handed2 = remembers(p, s, b2, lane);
  const bool two = s.count > 1, joined = two && p.cuts.joined && !handed0 && !handed1;
  const int begin0 = handed0 ? b0.own : first_remembered(s, b0, lane);
  const int begin1 = !two || joined || handed1 ? b1.own : first_remembered(s, b1, lane);
  // Places: the same numbering, two of a piece.
  const int64_t heads = p.heads_v.divisor, place = (2 * first_id + s0) * heads + s.hv;
  if (two && lane < 2) {
    const int64_t mine = place + lane * heads;
    p.cuts.handed[mine] = lane == 0 ? handed0 : handed1;
    p.cuts.built[mine] = 0;
    for (int slab = 0; slab < kSlabs; ++slab) p.cuts.ready[mine * kSlabs + slab] = 0;
  }

  const bool second = lane % 2 != 0;  // of the piece's segments
  if (second && !two) return;
  const int segment = second ? s1 : s0;
  const bool is_handed = second ? handed1 : handed0, next_handed = second ? handed2 : handed1;
  Work work = {};
  work.n = static_cast<int32_t>(s.n), work.hv = static_cast<int32_t>(s.hv);
  work.begin = work.own = second ? b1.own : b0.own;
  work.end = s.begin(segment + 1);
  work.place = static_cast<int32_t>(second ? place + heads : place);
  if (lane < 2) {
    if (second && joined) return;
    work.task = Task::outputs;
    work.begin = second ? begin1 : begin0;
    if (joined) work.end = s.begin(s2), work.place += static_cast<int32_t>(heads);
    work.handed = is_handed;
    work.leaves = joined ? handed2 : !is_handed && next_handed;
    const int section = !two          ? kShort
                        : is_handed   ? kHanded + kQuarters * segment / s.count
                        : work.leaves ? kBuild
                                      : kPiece;
    add_work(p, section, 1, work);
  } else if (lane < 4) {
    if (!is_handed || !next_handed) return;
    work.task = Task::rest;
    work.own = work.end;  // no outputs
    work.leaves = true;
    add_work(p, kBuild, builders(kDelta), work);
  } else if (lane < 6) {
    // Whether the segment behind the next one is handed too, the merge sees itself.
    if (is_handed || !next_handed || segment + 2 >= s.count) return;
    work.task = Task::merge;
    work.begin = segment + 1, work.own = segment + 2, work.end = s.count;
    add_work(p, kMerge, kSlabs, work);
  }
}

}  // namespace linattn::cuda
