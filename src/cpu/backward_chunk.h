// One chunk of one value head: forward to the next state, and backward through it.
#pragma once

#include "cpu/backward_plan.h"
#include "cpu/gradient_kernels.h"
#include "cpu/inputs.h"
#include "recurrence/sequences.h"

namespace linattn::cpu {

class HeadBackward {
 public:
  HeadBackward(const Problem& p, const linattn_args& args, const BackwardSizes& sizes,
               const ChunkScratch& scratch);

  // Where a q/k head's gradients go while its value heads are summed: rows of K floats, one for
  // each (t, h) of the batch row. Null: straight to the outputs.
  struct Sums {
    float *dq = nullptr, *dk = nullptr;
    bool add = false;
  };

  void enter_head(int64_t sequence, const TokenRange& range, int64_t hv, const Sums& sums);

  void load_initial_state(float* s) const;
  // From the state in `slot` to `next` (may be slot.s; null: not wanted). Fills in slot.e, slot.a.
  void forward(int64_t chunk, const Slot& slot, float* next);

  void load_state_gradient();
  // Needs slot as forward() left it, and uses it up; moves the state's gradient from the chunk's
  // end to its start.
  void backward(int64_t chunk, const Slot& slot);
  void store_state_gradient() const;

  void clear_gate_sums();
  double dA_log() const { return dA_log_; }

  // Gradients of scale q / |q| and k / |k| (norms where the problem asks for them), rows of K
  // floats with stride ld_k, become those of q and k and are stored. Overwrites scratch.dlog.
  void finish_dq(const ChunkPlace& place, float* dq);
  void finish_dk(const ChunkPlace& place, float* dk);

 private:
  const float* k_rows() const { return s_.qk + n_ * z_.ld_k; }
  int64_t head_qk() const { return place_.head / p_.group(); }
  bool channel() const { return p_.gate == Gate::channel; }
  bool gate_gradient_wanted() const { return wants_gate_gradient(p_); }

  // backward_tokens.cpp: between the caller's tensors and the chunk's rows.
  ChunkPlace place_of(int64_t chunk) const;
  void enter_chunk(int64_t chunk);
  // Rows to ask for: those of a tensor of q/k heads or of value heads, none if it is absent.
  RowsAhead qk_ahead(const TokenView& view, const void* data, const ChunkPlace& place) const;
  RowsAhead v_ahead(const TokenView& view, const void* data, const ChunkPlace& place) const;
  RowsAhead gates_ahead(const TokenView& view, const void* data, const ChunkPlace& place) const;
  void load_rows(const TokenView& view, const void* data, int64_t head, int64_t dim, float* out,
                 int64_t ld) const;
  void load_row(const TokenView& view, const void* data, float* out) const;
  void load_qk(bool with_q);
  void load_decays();
  void store_dbeta() const;
  void store_dv() const;
  void store_gate_gradient();
  void gate_form_gradient();
  void store_qk_gradient();
  void finish_rows(const TokenView& view, const void* input, const TokenView& out_view, void* out,
                   const ChunkPlace& place, float factor, float* dx);

  // backward_decays.cpp: what happens between tokens of the chunk.
  void apply_decays(bool with_q);
  void products(const float* const rows[2], float* const out[2]);
  void channel_products(const float* const rows[2], float* const out[2]);
  void node_rows(int64_t low, int64_t mid, int64_t high, const float* const rows[2]);
  void node_gradient(int64_t low, int64_t mid, int64_t high);
  void channel_gradient();
  void head_gradient(const Slot& slot);
  void head_gate_gradient(const Slot& slot);

  void solve_backward(const Slot& slot);

  const Problem& p_;
  const linattn_args& args_;
  const BackwardSizes& z_;
  const ChunkScratch& s_;
  const Kernels& kernels_;
  const GradientKernels& gradient_;
  const bool delta_;
  const bool token_gradients_;  // any of dq, dk, and of what hangs on the gate

  int64_t sequence_ = 0;
  TokenRange range_{};
  Sums sums_;
  double dA_log_ = 0;

  ChunkPlace place_{};
  int64_t n_ = 0;  // tokens of the chunk
};

}  // namespace linattn::cpu
