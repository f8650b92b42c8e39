// Random calls over the whole contract: a Case says which switches, build() fills the tensors in.
#pragma once

#include "call.h"

namespace call {

struct Case {
  int32_t family = LINATTN_KDA, gate = LINATTN_GATE_CHANNEL, gate_form = LINATTN_GATE_GIVEN;
  int32_t beta_form = LINATTN_BETA_VALUE;
  bool norm = false, A_log = false, dt_bias = false, beta = true;
  bool varlen = false, initial_state = true, v_first = false;
  double max_beta = 1;
  int64_t batch = 2, tokens = 7, heads = 2, group = 2, dim_k = 3, dim_v = 5;
};

inline bool is_delta(const Case& c) {
  return c.family == LINATTN_KDA || c.family == LINATTN_GDN || c.family == LINATTN_DELTA;
}

inline std::string text(const Case& c) {
  char buffer[256];
  std::snprintf(buffer, sizeof(buffer),
                "family %d gate %d form %d beta %d (form %d) norm %d A_log %d dt_bias %d varlen %d "
                "state %d v_first %d",
                c.family, c.gate, c.gate_form, c.beta, c.beta_form, c.norm, c.A_log, c.dt_bias,
                c.varlen, c.initial_state, c.v_first);
  return buffer;
}

// Every family with every gate, gate form, beta form and norm that it takes; the other switches
// change from case to case.
inline std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const auto add = [&](Case c) {
    const size_t i = cases.size();
    c.varlen = i % 2 == 1;
    c.initial_state = i % 3 != 1;
    c.v_first = i % 4 >= 2;
    c.dt_bias = c.gate_form != LINATTN_GATE_GIVEN && i % 3 != 0;
    cases.push_back(c);
  };
  const auto add_betas = [&](const Case& c) {
    for (int norm = 0; norm < 2; ++norm) {
      for (int32_t form : {LINATTN_BETA_VALUE, LINATTN_BETA_SIGMOID, LINATTN_BETA_SIGMOID2}) {
        Case d = c;
        d.norm = norm, d.beta_form = form;
        if (c.family != LINATTN_DELTA || form == LINATTN_BETA_VALUE) add(d);
      }
      Case d = c;
      d.norm = norm, d.beta = false;
      add(d);
    }
  };
  for (int32_t form : {LINATTN_GATE_GIVEN, LINATTN_GATE_RAW_SOFTPLUS, LINATTN_GATE_RAW_BOUNDED}) {
    Case c;
    c.gate_form = form, c.A_log = form != LINATTN_GATE_GIVEN;
    add_betas(c);
    if (form == LINATTN_GATE_RAW_BOUNDED) c.A_log = false, add_betas(c);
    c.family = LINATTN_GDN, c.gate = LINATTN_GATE_HEAD;
    if (form != LINATTN_GATE_RAW_BOUNDED) add_betas(c);
  }
  Case c;
  c.family = LINATTN_GDN;
  add_betas(c);
  c.gate = LINATTN_GATE_NONE;
  add_betas(c);
  c.family = LINATTN_DELTA;
  add_betas(c);
  c.beta = false;
  for (const auto& [family, gate] : {std::pair{LINATTN_GLA, LINATTN_GATE_CHANNEL},
                                     {LINATTN_GLA, LINATTN_GATE_NONE},
                                     {LINATTN_SIMPLE_GLA, LINATTN_GATE_HEAD},
                                     {LINATTN_SIMPLE_GLA, LINATTN_GATE_HEAD_CONSTANT},
                                     {LINATTN_SIMPLE_GLA, LINATTN_GATE_NONE},
                                     {LINATTN_LIGHTNING, LINATTN_GATE_HEAD_CONSTANT}})
    for (int repeat = 0; repeat < 2; ++repeat) c.family = family, c.gate = gate, add(c);
  return cases;
}

inline std::vector<int64_t> state_size(const Case& c, int64_t count) {
  const int64_t hv = c.heads * c.group;
  return c.v_first ? std::vector<int64_t>{count, hv, c.dim_v, c.dim_k}
                   : std::vector<int64_t>{count, hv, c.dim_k, c.dim_v};
}

// Inputs of a forward or backward call; fp32 and contiguous. The varlen cases pack four sequences,
// one of them empty, and leave two rows that no sequence owns.
inline Call build(const Case& c, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform(0, 1);
  const auto gaussian = [&](double scale, double mean = 0) {
    return [&, scale, mean] { return mean + scale * normal(random); };
  };
  const int64_t tokens = c.varlen ? 2 * c.tokens + 3 : c.tokens;
  const int64_t batch = c.varlen ? 1 : c.batch, sequences = c.varlen ? 4 : c.batch;
  const int64_t hv = c.heads * c.group;
  Call call;
  call.problem.family = c.family, call.problem.gate = c.gate;
  call.problem.form = LINATTN_CHUNK, call.problem.pass = LINATTN_FORWARD;
  call.problem.gate_form = c.gate_form, call.problem.beta_form = c.beta_form;
  call.problem.scale = 0.7;
  call.problem.lower_bound = c.gate_form == LINATTN_GATE_RAW_BOUNDED ? -4 : 0;
  call.problem.flags = (c.norm ? uint32_t{LINATTN_FLAG_QK_NORM} : 0) |
                       (c.v_first ? uint32_t{LINATTN_FLAG_STATE_V_FIRST} : 0);
  const int32_t f32 = LINATTN_F32;
  const double key = c.norm ? 1 : 0.7 / std::sqrt(static_cast<double>(c.dim_k));
  call[kQ] = make(f32, {batch, tokens, c.heads, c.dim_k}, gaussian(1));
  call[kK] = make(f32, {batch, tokens, c.heads, c.dim_k}, gaussian(key));
  // A short row turns within one step of a difference quotient; the norm's own test has those.
  if (c.norm)
    for (Name name : {kQ, kK})
      for (int64_t row = 0; row < call[name].count(); row += c.dim_k) {
        double squares = 0;
        for (int64_t i = row; i < row + c.dim_k; ++i) squares += std::pow(call[name].get(i), 2);
        const double length = 1.5 + uniform(random);
        for (int64_t i = row; i < row + c.dim_k; ++i)
          call[name].set(i, call[name].get(i) * length / std::sqrt(squares));
      }
  call[kV] = make(f32, {batch, tokens, hv, c.dim_v}, gaussian(1));
  const auto gate = [&] {
    return c.gate_form == LINATTN_GATE_GIVEN ? -0.8 * uniform(random) : normal(random);
  };
  if (c.gate == LINATTN_GATE_HEAD) call[kG] = make(f32, {batch, tokens, hv}, gate);
  if (c.gate == LINATTN_GATE_CHANNEL) call[kG] = make(f32, {batch, tokens, hv, c.dim_k}, gate);
  if (c.gate == LINATTN_GATE_HEAD_CONSTANT) call[kGamma] = make(f32, {hv}, gate);
  if (c.beta)
    call[kBeta] = make(f32, {batch, tokens, hv}, [&] {
      return c.beta_form == LINATTN_BETA_VALUE ? c.max_beta * uniform(random) : normal(random);
    });
  if (c.A_log) call[kALog] = make(f32, {hv}, gaussian(0.3));
  if (c.dt_bias)
    call[kDtBias] = c.gate == LINATTN_GATE_CHANNEL
                        ? make(f32,
                               c.v_first ? std::vector<int64_t>{hv, c.dim_k}
                                         : std::vector<int64_t>{hv * c.dim_k},
                               gaussian(0.5, -0.5))
                        : make(f32, {hv}, gaussian(0.5, -0.5));
  if (c.initial_state) call[kH0] = make(f32, state_size(c, sequences), gaussian(1));
  if (c.varlen) {
    const double first = static_cast<double>(c.tokens), second = first - 3;
    call[kCuSeqlens] = make(seed % 2 ? LINATTN_I32 : LINATTN_I64,
                            {0, first, first, first + second, static_cast<double>(tokens - 2)});
  }
  return call;
}

inline void add_forward_outputs(Call& call, const Case& c) {
  call[kO] = make(call[kQ].type, call[kV].size);
  call[kHt] = make(LINATTN_F32, state_size(c, c.varlen ? 4 : c.batch));
}

// do and dht are random, every gradient that has an input is asked for.
inline void add_backward_tensors(Call& call, const Case& c, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  const auto gaussian = [&] { return normal(random); };
  call.problem.pass = LINATTN_BACKWARD;
  call[kDo] = make(call[kQ].type, call[kV].size, gaussian);
  call[kDht] = make(LINATTN_F32, state_size(c, c.varlen ? 4 : c.batch), gaussian);
  for (const auto& [gradient, input] : {std::pair{kDq, kQ},
                                        {kDk, kK},
                                        {kDv, kV},
                                        {kDg, kG},
                                        {kDbeta, kBeta},
                                        {kDALog, kALog},
                                        {kDdtBias, kDtBias},
                                        {kDh0, kH0}})
    if (call[input].type != LINATTN_NONE) call[gradient] = make(call[input].type, call[input].size);
}

inline Call forward_of(const Case& c, uint32_t seed) {
  Call call = build(c, seed);
  add_forward_outputs(call, c);
  return call;
}

inline Call backward_of(const Case& c, uint32_t seed) {
  Call call = build(c, seed);
  add_backward_tensors(call, c, seed + 1);
  return call;
}

// Unit keys that lie `spread` around one, all betas `beta`, no decay: text repeats tokens. For one
// sequence and head.
inline void repeat_keys(Call& call, const Case& c, double spread, double beta, std::mt19937& random,
                        std::normal_distribution<double>& normal) {
  std::vector<double> base(static_cast<size_t>(c.dim_k));
  for (double& x : base) x = normal(random);
  for (int64_t t = 0; t < c.tokens; ++t) {
    std::vector<double> key = base;
    double squares = 0;
    for (double& x : key) x += spread * normal(random), squares += x * x;
    for (int64_t i = 0; i < c.dim_k; ++i)
      call[kK].set(t * c.dim_k + i, key[static_cast<size_t>(i)] / std::sqrt(squares));
    call[kBeta].set(t, beta);
  }
  if (c.gate != LINATTN_GATE_NONE)
    for (int64_t i = 0; i < call[kG].count(); ++i) call[kG].set(i, 0);
}

}  // namespace call
