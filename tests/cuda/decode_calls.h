// Decode calls over the whole contract, run by any backend and compared with the fp64 oracle.
#pragma once

#include <limits>

#include "cases.h"

namespace call {

struct DecodeCall {
  std::string name;
  Call call;
  double state_tolerance = 0;  // 0: that of the states' type
};

// A gap after every row of the last axis but none inside it: a slice of a wider tensor.
inline Tensor sliced(const Tensor& from, int64_t gap) {
  std::vector<int64_t> wide = from.size;
  wide.back() += gap;
  Tensor t = make(from.type, wide);
  t.size = from.size;
  for (int64_t i = 0; i < t.count(); ++i) t.set(i, from.get(i));
  return t;
}

// Slots of a pool one after the other with `gap` elements of poison between them.
inline Tensor padded_pool(const Case& c, int32_t type, int64_t slots, int64_t gap, uint32_t seed) {
  Tensor pool = make(type, state_size(c, slots));
  pool.stride[0] += gap;
  pool.data.assign(static_cast<size_t>(pool.stride[0] * slots * bytes_of(type)), kPoison);
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < pool.count(); ++i) pool.set(i, normal(random));
  return pool;
}

inline Call recurrent(const Case& c, uint32_t seed) {
  Call call = forward_of(c, seed);
  call.problem.form = LINATTN_RECURRENT;
  return call;
}

inline void set_token_type(Call& call, int32_t type) {
  for (Name name : {kQ, kK, kV}) call[name] = convert(call[name], type);
  call[kO] = make(type, call[kV].size);
}

inline Case family_case(int32_t family) {
  Case c;
  c.family = family;
  c.gate = family == LINATTN_KDA || family == LINATTN_GLA ? LINATTN_GATE_CHANNEL
           : family == LINATTN_GDN                        ? LINATTN_GATE_HEAD
           : family == LINATTN_DELTA                      ? LINATTN_GATE_NONE
           : family == LINATTN_SIMPLE_GLA                 ? LINATTN_GATE_HEAD
                                                          : LINATTN_GATE_HEAD_CONSTANT;
  c.beta = is_delta(c);
  c.heads = 1, c.group = 2, c.batch = 2, c.tokens = 3, c.dim_k = 128, c.dim_v = 32;
  return c;
}

inline constexpr int32_t kFamilies[] = {LINATTN_KDA, LINATTN_GDN,        LINATTN_DELTA,
                                        LINATTN_GLA, LINATTN_SIMPLE_GLA, LINATTN_LIGHTNING};

// Every switch of every family; small dimensions that change from case to case.
inline void add_switches(std::vector<DecodeCall>& calls) {
  const std::pair<int64_t, int64_t> dims[] = {{128, 32}, {60, 20}, {64, 40}, {3, 5}, {132, 12}};
  uint32_t seed = 100;
  for (Case c : all_cases()) {
    c.dim_k = dims[seed % 5].first, c.dim_v = dims[seed % 5].second;
    c.heads = 1 + seed % 2;
    calls.push_back({text(c), recurrent(c, seed)});
    ++seed;
  }
}

inline void add_dimensions(std::vector<DecodeCall>& calls) {
  uint32_t seed = 300;
  for (const auto& [k, v] : {std::pair<int64_t, int64_t>{128, 128},
                             {64, 64},
                             {256, 256},
                             {256, 8},
                             {96, 100},
                             {100, 96},
                             {1, 1},
                             {2, 130},
                             {192, 36},
                             {255, 33}})
    for (int32_t family : {LINATTN_KDA, LINATTN_SIMPLE_GLA})
      for (bool v_first : {false, true}) {
        Case c = family_case(family);
        c.dim_k = k, c.dim_v = v, c.v_first = v_first, c.tokens = 1 + seed % 2,
        c.norm = is_delta(c);
        c.batch = 1;
        calls.push_back({"K " + std::to_string(k) + " V " + std::to_string(v) + ": " + text(c),
                         recurrent(c, seed++)});
      }
}

inline void add_types(std::vector<DecodeCall>& calls) {
  const int32_t types[] = {LINATTN_F32, LINATTN_BF16, LINATTN_F16};
  uint32_t seed = 500;
  for (int32_t tokens : types)
    for (int32_t in : types)
      for (int32_t out : types)
        for (bool v_first : {false, true}) {
          Case c = family_case(kFamilies[seed % 6]);
          c.v_first = v_first;
          Call call = recurrent(c, seed);
          set_token_type(call, tokens);
          for (Name name : {kG, kBeta})
            if (call[name].type != LINATTN_NONE)
              call[name] = convert(call[name], types[(seed + name) % 3]);
          call[kH0] = convert(call[kH0], in);
          call[kHt] = make(out, call[kHt].size);
          calls.push_back({"types " + std::to_string(tokens) + " " + std::to_string(in) + " " +
                               std::to_string(out) + ": " + text(c),
                           call});
          ++seed;
        }
}

inline void add_strides(std::vector<DecodeCall>& calls) {
  for (int32_t family : kFamilies)
    for (int layout = 0; layout < 4; ++layout) {
      Case c = family_case(family);
      c.v_first = layout % 2, c.varlen = layout == 3, c.heads = 2;
      Call call = recurrent(c, 600u + static_cast<uint32_t>(layout));
      for (Name name : {kQ, kK, kV, kG, kBeta}) {
        Tensor& t = call[name];
        if (t.type == LINATTN_NONE) continue;
        if (t.size.size() < 4)
          t = convert(t, t.type, {1, 0, 2}, layout);  // beta and head gates may have any strides
        else if (layout == 0)
          t = convert(t, t.type, {3, 1, 2, 0});  // heads before tokens
        else
          t = sliced(t, layout == 1 ? 4 : 3);  // with and without whole vectors
      }
      call[kO] = sliced(call[kO], layout);
      calls.push_back({"strides " + std::to_string(layout) + ": " + text(c), call});
    }
}

// Gates from none to total, repeated keys, beta at 2.
inline void add_extremes(std::vector<DecodeCall>& calls) {
  const double inf = std::numeric_limits<double>::infinity();
  for (double gate : {0.0, -1e-8, -5.0, -30.0, -1e4, -inf})
    for (int32_t family : {LINATTN_KDA, LINATTN_GDN, LINATTN_GLA, LINATTN_LIGHTNING}) {
      Case c = family_case(family);
      c.v_first = static_cast<int64_t>(gate) % 2 == 0, c.tokens = 4;
      Call call = recurrent(c, 700);
      Tensor& g = call[c.gate == LINATTN_GATE_HEAD_CONSTANT ? kGamma : kG];
      for (int64_t i = 0; i < g.count(); ++i) g.set(i, gate);
      calls.push_back({"gate " + std::to_string(gate) + ": " + text(c), call});
    }
  Case c = family_case(LINATTN_KDA);
  c.norm = true, c.tokens = 20;
  Call repeated = recurrent(c, 720);
  for (int64_t i = c.dim_k; i < repeated[kK].count(); ++i)
    repeated[kK].set(i, repeated[kK].get(i % c.dim_k));
  for (int64_t i = 0; i < repeated[kBeta].count(); ++i) repeated[kBeta].set(i, 2);
  calls.push_back({"repeated keys", repeated});
  Call zero = recurrent(c, 721);
  for (Name name : {kQ, kK})
    for (int64_t i = 0; i < c.dim_k; ++i) zero[name].set(i, 0);
  calls.push_back({"zero rows under the norm", zero});
  c.gate_form = LINATTN_GATE_RAW_SOFTPLUS, c.A_log = true, c.dt_bias = true;
  Call raw = recurrent(c, 722);
  for (int64_t i = 0; i < raw[kG].count(); ++i) raw[kG].set(i, static_cast<double>(i % 121) - 60);
  calls.push_back({"raw gates from -60 to 60", raw});
}

// One call on a pool. What: 0 dead rows; 1 separate targets and a null index; 2 packed sequences,
// one of them empty, rows without a state; 3 speculative columns.
inline DecodeCall pool_call(Case c, int32_t state, int what, int32_t tokens, uint32_t seed) {
  constexpr int64_t kSlots = 7;
  c.initial_state = false, c.batch = 6;
  c.tokens = what == 3 ? 3 : 1, c.varlen = what == 2;
  Call call = recurrent(c, seed);
  if (tokens != LINATTN_F32) set_token_type(call, tokens);
  call[kHt] = {};
  // A gap of six elements leaves no whole vectors.
  call[kH0] = padded_pool(c, state, kSlots, seed % 3 == 0 ? 6 : 64, seed);
  const int32_t index = seed % 2 ? LINATTN_I32 : LINATTN_I64;
  if (c.varlen) {
    // 2 * tokens + 3 = 5 rows: lengths 1, 0, 1, 2 and one row that nobody owns.
    call[kCuSeqlens] = make(index, {0, 1, 1, 2, 4});
    call[kStateIndices] = make(index, {5, 2, -1, 0});
    call[kOutputIndices] = make(LINATTN_I64, {4, 3, 6, 0});
    call[kHasInitial] = make(LINATTN_BOOL, {1, 1, 1, 0});
  } else if (what == 3) {
    call[kStateIndices] = make(index, std::vector<int64_t>{6, 4});
    const double columns[] = {0, 1, 2, 3, 4, 5, -1, 6, 7, 7, 7, 7, -1, -1, 6, 2, 3, 9, 9, 9};
    for (int64_t i = 0; i < 24; ++i) call[kStateIndices].set(i, i < 20 ? columns[i] : -1);
    call[kAccepted] = make(LINATTN_I32, {2, 1, 3, 3, 0, 9});
    if (seed % 2) {
      call[kStateIndices] = convert(call[kStateIndices], index, {0, 1}, 1);
      call[kHasInitial] = make(LINATTN_BOOL, {1, 1, 1, 0, 1, 1});
    }
  } else {
    call[kStateIndices] = make(index, {5, -1, 2, 7, 0, -7});
    if (what == 1) {
      call[kOutputIndices] = make(index, {3, 4, -1, 1, 6, 1});
      call.problem.flags |= LINATTN_FLAG_NULL_STATE_INDEX;
      call.problem.null_state_index = 2;
    }
  }
  return {"pool type " + std::to_string(state) + " case " + std::to_string(what) + " seed " +
              std::to_string(seed) + ": " + text(c),
          call};
}

inline void add_pools(std::vector<DecodeCall>& calls, bool thorough) {
  uint32_t seed = 800;
  for (int32_t state : {LINATTN_F32, LINATTN_BF16, LINATTN_F16})
    for (int32_t family : kFamilies)
      for (bool v_first : {false, true})
        for (int what = 0; what < 4; ++what)
          if (++seed; thorough || seed % 3 == 0) {
            Case c = family_case(family);
            c.v_first = v_first;
            calls.push_back(pool_call(c, state, what, LINATTN_F32, seed));
          }
}

// What the tuned tiles take: K = V = 64, 128 or 256 and bf16 tokens.
inline void add_tuned(std::vector<DecodeCall>& calls, bool thorough, int64_t dim, uint32_t seed) {
  for (int32_t family : kFamilies)
    for (bool v_first : {false, true})
      for (int32_t state : {LINATTN_F32, LINATTN_BF16}) {
        const int first = static_cast<int>(++seed % 7) % 5;  // more of the calls of one token
        for (int what = thorough ? 0 : first; what < (thorough ? 5 : first + 1); ++what) {
          Case c = family_case(family);
          c.v_first = v_first, c.dim_k = c.dim_v = dim, c.norm = is_delta(c);
          c.group = thorough ? 2 : 1;
          if (family == LINATTN_KDA || family == LINATTN_GDN) {
            c.gate_form = family == LINATTN_KDA && seed % 2 ? LINATTN_GATE_RAW_BOUNDED
                                                            : LINATTN_GATE_RAW_SOFTPLUS;
            c.A_log = c.dt_bias = true;
            c.beta_form = seed % 2 ? LINATTN_BETA_SIGMOID : LINATTN_BETA_SIGMOID2;
          }
          if (what < 4) {
            // No gap of six here: seeds that are multiples of three are not tuned.
            calls.push_back(pool_call(c, state, what, LINATTN_BF16, seed * 3 + 1));
            continue;
          }
          c.varlen = seed % 2;
          if (!c.varlen) c.tokens = 1;
          Call call = recurrent(c, seed);
          set_token_type(call, LINATTN_BF16);
          if (call[kG].type != LINATTN_NONE && seed % 4 < 2)
            call[kG] = convert(call[kG], LINATTN_BF16);
          call[kH0] = convert(call[kH0], state);
          call[kHt] = make(state, call[kHt].size);
          calls.push_back({"tuned: " + text(c), call});
        }
      }
}

// Several tokens on tuned tiles: fewer, as many and more than the warps of a CTA share at a time,
// packed and not, the last state written or one after each token.
inline void add_several(std::vector<DecodeCall>& calls, bool thorough) {
  uint32_t seed = 1300;
  for (int32_t family : kFamilies)
    for (bool v_first : {false, true})
      for (int32_t state : {LINATTN_F32, LINATTN_BF16})
        for (int64_t tokens : {2, 3, 8, 19}) {
          if (++seed; !thorough && seed % 3 != 0) continue;
          Case c = family_case(family);
          c.v_first = v_first, c.dim_v = 128, c.norm = is_delta(c), c.tokens = tokens;
          c.varlen = seed % 2 && tokens > 2;
          const bool columns = !c.varlen && tokens < 9 && seed % 4 < 2;
          if (columns) c.initial_state = false;
          Call call = recurrent(c, seed);
          set_token_type(call, LINATTN_BF16);
          if (columns) {
            call[kHt] = {};
            call[kH0] = padded_pool(c, state, c.batch * tokens + 1, 64, seed);
            call[kStateIndices] = make(LINATTN_I64, std::vector<int64_t>{c.batch, tokens});
            for (int64_t i = 0; i < c.batch * tokens; ++i)
              call[kStateIndices].set(i, static_cast<double>(c.batch * tokens - i));
          } else {
            call[kH0] = convert(call[kH0], state);
            call[kHt] = make(state, call[kHt].size);
          }
          calls.push_back(
              {"several tokens: " + text(c) + " tokens " + std::to_string(tokens), call});
        }
}

inline std::vector<DecodeCall> decode_calls(bool thorough) {
  std::vector<DecodeCall> calls;
  add_switches(calls);
  add_dimensions(calls);
  add_types(calls);
  add_strides(calls);
  add_extremes(calls);
  add_pools(calls, thorough);
  add_tuned(calls, thorough, 128, 1000);
  if (!thorough) add_tuned(calls, thorough, 128, 1050);
  add_tuned(calls, false, 64, 1100);
  add_tuned(calls, false, 256, 1200);
  add_several(calls, thorough);
  return calls;
}

inline double tolerance(int32_t type) {
  return type == LINATTN_F32 ? 1e-5 : type == LINATTN_F16 ? 2e-3 : 6e-3;
}

// Bytes that are no element of the tensor are as they were.
inline bool gaps_kept(const Tensor& now, const Tensor& before) {
  std::vector<bool> element(now.data.size(), false);
  const auto width = static_cast<size_t>(bytes_of(now.type));
  for (int64_t i = 0; i < now.count(); ++i)
    for (size_t byte = 0; byte < width; ++byte)
      element[static_cast<size_t>(now.offset(i)) * width + byte] = true;
  for (size_t i = 0; i < element.size(); ++i)
    if (!element[i] && now.data[i] != before.data[i]) return false;
  return true;
}

// Runs `call` by `run` and by the oracle. Slots that the oracle leaves alone must keep every bit.
template <class Run>
void compare_with_oracle(const DecodeCall& decode, Run&& run_backend) {
  Call ours = decode.call, oracle = decode.call;
  if (!run(oracle, "reference") || !run_backend(ours)) return;
  const char* name = decode.name.c_str();
  const int32_t o_type = ours[kO].type;
  const double o_error = error(ours[kO].values(), oracle[kO].values());
  CHECK_THAT(o_error <= tolerance(o_type), "%s: error of o %.3g", name, o_error);
  for (Name output : {kO, kHt, kH0}) {
    if (ours[output].type == LINATTN_NONE) continue;
    CHECK_THAT(gaps_kept(ours[output], decode.call[output]), "%s: bytes around tensor %d", name,
               output);
  }
  const auto state_tolerance = [&](int32_t type) {
    return std::max(tolerance(type), decode.state_tolerance);
  };
  if (ours[kHt].type != LINATTN_NONE) {
    const double wrong = error(ours[kHt].values(), oracle[kHt].values());
    CHECK_THAT(wrong <= state_tolerance(ours[kHt].type), "%s: error of the final state %.3g", name,
               wrong);
  }
  const bool pool = ours[kStateIndices].type != LINATTN_NONE;
  if (!pool) {
    if (ours[kH0].type != LINATTN_NONE)
      CHECK_THAT(ours[kH0].data == decode.call[kH0].data, "%s: the initial state changed", name);
    return;
  }
  for (int64_t slot = 0; slot < ours[kH0].size[0]; ++slot) {
    const Tensor before = cut(decode.call[kH0], 0, slot, slot + 1);
    const Tensor wanted = cut(oracle[kH0], 0, slot, slot + 1);
    const Tensor got = cut(ours[kH0], 0, slot, slot + 1);
    if (same_bits(before, wanted)) {
      CHECK_THAT(same_bits(before, got), "%s: slot %lld was written", name,
                 static_cast<long long>(slot));
    } else {
      const double wrong = error(got.values(), wanted.values());
      CHECK_THAT(wrong <= state_tolerance(got.type), "%s: error of slot %lld %.3g", name,
                 static_cast<long long>(slot), wrong);
    }
  }
}

}  // namespace call
