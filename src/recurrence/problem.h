// The problem after validation: plain dimensions, switches, and strides by named axis.
// Everything below the C interface reads this struct, never linattn_problem.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/status.h"
#include "linattn/linattn.h"

namespace linattn {

enum class Type : int32_t {
  none = LINATTN_NONE,
  f32 = LINATTN_F32,
  bf16 = LINATTN_BF16,
  f16 = LINATTN_F16,
  i32 = LINATTN_I32,
  i64 = LINATTN_I64,
  boolean = LINATTN_BOOL,
};
enum class Family : int32_t {
  kda = LINATTN_KDA,
  gdn = LINATTN_GDN,
  delta = LINATTN_DELTA,
  gla = LINATTN_GLA,
  simple_gla = LINATTN_SIMPLE_GLA,
  lightning = LINATTN_LIGHTNING,
};
enum class Form : int32_t { chunk = LINATTN_CHUNK, recurrent = LINATTN_RECURRENT };
enum class Pass : int32_t { forward = LINATTN_FORWARD, backward = LINATTN_BACKWARD };
enum class Gate : int32_t {
  none = LINATTN_GATE_NONE,
  head_constant = LINATTN_GATE_HEAD_CONSTANT,
  head = LINATTN_GATE_HEAD,
  channel = LINATTN_GATE_CHANNEL,
};
enum class GateForm : int32_t {
  given = LINATTN_GATE_GIVEN,
  softplus = LINATTN_GATE_RAW_SOFTPLUS,
  bounded = LINATTN_GATE_RAW_BOUNDED,
};
enum class BetaForm : int32_t {
  value = LINATTN_BETA_VALUE,
  sigmoid = LINATTN_BETA_SIGMOID,
  sigmoid2 = LINATTN_BETA_SIGMOID2,
};
enum class Update : int32_t { additive, delta };

int64_t size_of(Type type);

// [B,T,heads,dim]; head gates and beta have no dim axis (stride d = 0). Elements.
struct TokenView {
  Type type = Type::none;
  int64_t b = 0, t = 0, h = 0, d = 0;
  LINATTN_HOST_DEVICE bool present() const { return type != Type::none; }
  LINATTN_HOST_DEVICE int64_t at(int64_t ib, int64_t it, int64_t ih, int64_t id = 0) const {
    return ib * b + it * t + ih * h + id * d;
  }
};

// States, whatever their layout in memory: sequence (or slot, or batch) n, row r of intermediate
// states (0 otherwise), value head h, key channel k, value channel v.
struct StateView {
  Type type = Type::none;
  int64_t n = 0, r = 0, h = 0, k = 0, v = 0;
  LINATTN_HOST_DEVICE bool present() const { return type != Type::none; }
  LINATTN_HOST_DEVICE int64_t at(int64_t in, int64_t ih, int64_t ik, int64_t iv) const {
    return in * n + ih * h + ik * k + iv * v;
  }
};

// [HV] (stride h) or [HV,K] (strides h, k).
struct HeadView {
  Type type = Type::none;
  int64_t h = 0, k = 0;
  LINATTN_HOST_DEVICE bool present() const { return type != Type::none; }
};

// [N] (stride n) or [N,columns] (strides n, c). cu_seqlens is [N+1].
struct IndexView {
  Type type = Type::none;
  int64_t n = 0, c = 0;
  LINATTN_HOST_DEVICE bool present() const { return type != Type::none; }
};

struct Problem {
  Family family{};
  Form form{};
  Pass pass{};
  Gate gate{};
  GateForm gate_form{};
  BetaForm beta_form{};
  Update update{};
  bool qk_norm = false;
  bool state_v_first = false;
  bool safe_gate = false;
  bool auto_cp = true;
  bool batch_invariant = false;
  bool has_null_index = false;
  int64_t null_index = 0;
  int32_t force = 0;
  double scale = 0, lower_bound = 0;

  int64_t batch = 0, num_tokens = 0;
  int64_t num_sequences = 0;  // N: batch without cu_seqlens
  int64_t heads_qk = 0, heads_v = 0, dim_k = 0, dim_v = 0;
  LINATTN_HOST_DEVICE int64_t group() const { return heads_v / heads_qk; }
  LINATTN_HOST_DEVICE bool varlen() const { return cu_seqlens.present(); }

  int64_t num_slots = 0;      // pool size; 0 without a pool
  int64_t state_columns = 0;  // 1+S with 2-D state_indices, else 0
  LINATTN_HOST_DEVICE bool pool() const { return state_indices.present(); }

  int64_t state_every = 64;
  int64_t intermediate_rows = 0;

  // Strides; `present()` says whether the tensor is part of the call.
  TokenView q, k, v, g, beta, o, do_, dq, dk, dv, dg, dbeta;
  HeadView g_gamma, A_log, dt_bias, dA_log, ddt_bias;
  StateView initial_state, final_state, intermediate_states, dht, dh0;
  IndexView cu_seqlens, state_indices, output_state_indices, has_initial_state, num_accepted_tokens;
};

// Checks every rule of the interface; on success *problem is complete. The only place that knows
// the rules: every front end shows this text.
Status validate(const linattn_problem& asked, linattn_device device, Problem* problem);

}  // namespace linattn
