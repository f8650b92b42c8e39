// What the Hopper chunk kernels do on the host, without the CUDA runtime: which problems they take,
// how the scan is cut, and the kernels' parameters. Tests run it on machines without CUDA.
#pragma once

#include <string>

#include "cuda/sm90/scan.params.h"
#include "recurrence/implementation.h"

namespace linattn::cuda::sm90 {

// How the scan is cut; see scan.cuts.h.
struct Cut {
  int64_t piece = 0;    // chunks; 0: sequences stay whole
  bool joined = false;  // both segments of a piece as one where what lies before is forgotten
};

std::string reject(const Problem& problem, const DeviceFacts& facts);

Cut cut_of(const Problem& problem, const DeviceFacts& facts);
std::string describe(const Problem& problem, const Cut& cut);
int64_t workspace_bytes(const Problem& problem, const Cut& cut);

// Whether the gates of channels are bounded by -5, so that 16 tokens decay by exp(-80) at most.
bool anchored_gates(const Problem& problem);

// A warp each for value heads of one q/k head, which share its tile. Not for gates a channel.
int prepare_warps(const Problem& problem);
int64_t prepare_grid(const Problem& problem);
int64_t cut_grid(const Problem& problem, const Cut& cut);
int64_t scan_grid(const Problem& problem, const Cut& cut);

// All but the tensor maps: `vectors` says whether sizes, strides and addresses allow them.
ScanParams scan_params(const Problem& problem, const Cut& cut, const linattn_args& args);

}  // namespace linattn::cuda::sm90
