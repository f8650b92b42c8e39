// What forward and backward share: one token of one value head as the recurrence reads it, the
// step that it makes, and where states lie.
#pragma once

#include <cstdint>

#include "core/ledger.h"
#include "recurrence/problem.h"
#include "recurrence/sequences.h"

namespace linattn::reference {

// Log decay and its derivatives with respect to the stored gate and to A_log.
struct GateValue {
  double g, by_gate, by_A_log;
};

struct Token {
  double *q, *k;      // [K], normalised where the problem asks for it
  double* v;          // [V]
  double* decay;      // [K]
  double *error, *u;  // [V], v - S^T k and what is written, filled in by step()
  GateValue* gate;    // [K]; a head gate repeats its value
  double beta, beta_by_logit;
  double q_inverse_norm, k_inverse_norm;  // 1 without the norm

  void lay_out(Ledger* ledger, const Problem& p);
  void read(const Problem& p, const linattn_args& args, int64_t b, int64_t t, int64_t hv);
  // S [K,V] becomes decay . S; error and u follow from it.
  void decay_and_solve(const Problem& p, double* S);
  // S += k u^T
  void write(const Problem& p, double* S) const;
};

// The state of sequence or slot n; n < 0: there is none, it reads as zeros and takes nothing.
struct StatePlace {
  const StateView& view;
  void* data;
  int64_t n;

  void load(const Problem& p, int64_t hv, double* S) const;
  void store(const Problem& p, int64_t hv, const double* S) const;
  // Bit for bit where the types are the same.
  void copy_from(const StatePlace& from, const Problem& p, int64_t hv) const;
};

// Where a sequence's state comes from; `slot` matters with a pool only.
StatePlace start_place(const Problem& p, const linattn_args& args, int64_t sequence, int64_t slot);

// Rows of the T axis that no sequence owns become zero. An absent tensor is left alone.
void zero_unowned_rows(const Problem& p, const linattn_args& args, const TokenView& view,
                       void* data, int64_t heads, int64_t dim);

}  // namespace linattn::reference
