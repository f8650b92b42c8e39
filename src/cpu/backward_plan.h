// Sizes and scratch of the backward pass.
#pragma once

#include <cstdint>

#include "core/ledger.h"
#include "recurrence/implementation.h"

namespace linattn::cpu {

// What one chunk needs, for one value head. Rows are tokens; "in" is a token as the state before
// the chunk sees it, "out" as the state after the chunk does (docs/kernels/cpu_backward.md).
struct ChunkScratch {
  float* qk;       // [2 rows, K]: scale q, then k from row `tokens` on
  float* qk_in;    // [2 rows, K]: the same under the decays from the chunk's start; later dq, dk
  float* k_out;    // [rows, K]: k under the decays to the chunk's end; later its gradient
  float* x;        // [2 rows, V]: do, then -dv from row `tokens` on
  float* v;        // [rows, V], additive update
  float* dr;       // [rows, V]: gradient of r, then of v; forward: r
  float* a;        // [rows, K]: decays of a channel gate
  float* dlog;     // [rows, K]: gradient of log decays; shares memory with dr
  float* x_t;      // [V, 2 rows] x transposed; later [K, rows]
  float* r_t;      // [V, rows]
  float* dqk_t;    // [K, 2 rows]; shares memory with the node's, and work for states
  float* dpa;      // [2 rows, rows]: gradient of p, then of a
  float* p;        // [rows, rows]
  float* weights;  // [rows, rows]: a scaled by beta
  float* pairs;    // [rows, rows]: decays between tokens (head gate)
  float* node_x;   // [2 half, K] q and k of the right half under the decays from its start
  float* node_dx;  // [2 half, K]
  float* node_k;   // [half, K] k of the left half under the decays to its end
  float* node_dk;  // [half, K]
  float* node_kt;  // [K, half]
  float* node_p;   // [2 half, half]
  float *gamma, *through, *bias, *dbias;                  // [K], or [rows] for a head gate
  float *beta, *dbeta, *decay, *prefix, *suffix, *logit;  // [rows]
  float* inverse_norms;                                   // [2 rows]
  float* dots;                                            // [4 rows]
  float* ds;                                              // [K, V]: gradient of the state
  double* dbias_sum;                                      // [K]: over all tokens of a task
};

// State before a chunk and, for the delta update, what its solve gave.
struct Slot {
  float* s;  // [K, V]
  float* e;  // [rows, V]: v - k (what the token finds in the state)
  float* a;  // [rows, rows]: k_i against k_j under the decays between, j < i
};

struct BackwardSizes {
  int64_t dim_k, dim_v;
  int64_t chunk;                   // tokens
  int64_t rows;                    // that the buffers hold: fewer than a chunk when T is short
  int64_t ld_k, ld_v, ld_c, ld_m;  // of rows of K, V, `rows` and 2 `rows` floats

  explicit BackwardSizes(const Problem& p);
  int64_t chunks(int64_t tokens) const { return (tokens + chunk - 1) / chunk; }
};

struct Lane {
  ChunkScratch scratch;
  char* slots;
  int64_t slot_bytes;

  Lane(Ledger* ledger, const BackwardSizes& sizes, int64_t num_slots, bool delta);
  Slot slot(int64_t index, const BackwardSizes& sizes, bool delta) const;
};

// What a plan decides; kept in Plan::config.
struct BackwardPlan {
  int64_t lanes = 1;   // threads that work at a time
  int64_t slots = 1;   // chunk states kept by each
  int64_t parts = 1;   // parts that a q/k head's value heads are split into
  int64_t groups = 1;  // parts that the sequences are split into
};

// Scratch that outlives a task: sums that several tasks contribute to.
struct SharedScratch {
  float *dq, *dk;    // [parts, B, T, H, K] when a q/k head has several value heads
  double* dA_log;    // [groups, HV]
  double* ddt_bias;  // [groups, HV, K]

  SharedScratch(Ledger* ledger, const Problem& p, const BackwardPlan& plan);
};

bool wants_gate_gradient(const Problem& p);
std::string reject_backward(const Problem& p, const DeviceFacts& facts);
void plan_backward(Plan* plan);
BackwardPlan plan_of(const Plan& plan);

}  // namespace linattn::cpu
