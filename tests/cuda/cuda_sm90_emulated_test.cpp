// The Hopper chunk kernels' own source, run lane by lane on the host, against the oracle. Needs
// neither nvcc nor a GPU.
#include "../cpp/cases.h"
#include "cuda/sm90/prepare.cuh"
#include "cuda/sm90/prepare_channel.cuh"
#include "cuda/sm90/scan.cuh"
#include "cuda/sm90/scan.cut.cuh"
#include "cuda/sm90/scan.plan.h"
#include "emulated.h"
#include "simt/simt.h"

using namespace call;

namespace {

namespace sm90 = linattn::cuda::sm90;
using linattn::Problem;

// Numbers of 32 bits are pairs of 16.
CUtensorMap map_of(const linattn::TokenView& view, const void* data, const Problem& p,
                   int64_t columns) {
  const int64_t words = linattn::size_of(view.type) / 2;
  return simt::make_map({static_cast<const uint16_t*>(data), p.num_tokens, columns * words,
                         view.b * words, view.t * words, view.h * words, linattn::cuda::kChunk});
}

template <bool kDelta>
void launch_cut(const Problem& p, const sm90::Cut& cut, const sm90::ScanParams& params) {
  if (cut.piece > 0)
    simt::launch(linattn::cuda::chunk_cut_sm90<kDelta>, sm90::cut_grid(p, cut), sm90::kCutThreads,
                 params);
}

template <bool kBf16, bool kDelta>
void launch(const Problem& p, const sm90::Cut& cut, const sm90::ScanParams& params) {
  using namespace linattn::cuda;
  if (p.gate == linattn::Gate::channel) {
    simt::launch(sm90::anchored_gates(p) ? chunk_prepare_channel_sm90<kDelta, true>
                                         : chunk_prepare_channel_sm90<kDelta, false>,
                 sm90::prepare_grid(p), sm90::kPrepareChannelThreads, params);
    launch_cut<kDelta>(p, cut, params);
    simt::launch(chunk_scan_sm90<kBf16, kDelta, true>, sm90::scan_grid(p, cut),
                 sm90::Layout<true>::kThreads, params);
    return;
  }
  simt::launch(chunk_prepare_sm90<kBf16, kDelta>, sm90::prepare_grid(p),
               sm90::prepare_warps(p) * 32, params);
  launch_cut<kDelta>(p, cut, params);
  simt::launch(chunk_scan_sm90<kBf16, kDelta, false>, sm90::scan_grid(p, cut),
               sm90::Layout<false>::kThreads, params);
}

struct How {
  int num_sms = 132;
  bool slow = false;     // as where no tensor map describes the tensors
  sm90::Cut cut = {};    // instead of what the plan would choose
  int reach = 0;         // likewise
  int* tasks = nullptr;  // [4], CTAs of each Task
};

bool run_sm90(Call& call, const How& how = {}) {
  Problem p;
  if (!plan(call, &p)) return false;
  linattn::DeviceFacts facts = facts_of(90);
  facts.num_sms = how.num_sms;
  const std::string reason = sm90::reject(p, facts);
  CHECK_THAT(reason.empty(), "refused: %s", reason.c_str());
  if (!reason.empty()) return false;
  linattn_args args = args_of(call);
  const sm90::Cut cut = how.cut.piece > 0 ? how.cut : sm90::cut_of(p, facts);
  const int64_t bytes = sm90::workspace_bytes(p, cut);
  std::vector<unsigned char> workspace(static_cast<size_t>(bytes) + 512, kPoison);
  unsigned char* begin =
      workspace.data() + (256 - reinterpret_cast<uintptr_t>(workspace.data()) % 256);
  args.workspace = begin;
  sm90::ScanParams params = sm90::scan_params(p, cut, args);
  if (how.reach > 0) params.cuts.reach = how.reach;
  params.vectors = params.vectors && !how.slow;
  if (params.vectors) {
    params.q_map = map_of(p.q, args.q, p, p.dim_k);
    params.k_map = map_of(p.k, args.k, p, p.dim_k);
    params.v_map = map_of(p.v, args.v, p, p.dim_v);
    if (p.gate == linattn::Gate::channel) params.g_map = map_of(p.g, args.g, p, p.dim_k);
  }
  if (p.varlen()) {  // what chunk_index_portable does
    params.chunk_begin[0] = 0;
    for (int64_t n = 0; n < p.num_sequences; ++n)
      params.chunk_begin[n + 1] =
          params.chunk_begin[n] +
          (linattn::token_range(p, args.cu_seqlens, n).length() + linattn::cuda::kChunk - 1) /
              linattn::cuda::kChunk;
  }
  const bool bf16 = p.q.type == linattn::Type::bf16;
  const bool delta = p.update == linattn::Update::delta;
  if (bf16)
    delta ? launch<true, true>(p, cut, params) : launch<true, false>(p, cut, params);
  else
    delta ? launch<false, true>(p, cut, params) : launch<false, false>(p, cut, params);
  for (const unsigned char* at = begin + bytes; at < workspace.data() + workspace.size(); ++at)
    CHECK_THAT(*at == kPoison, "a byte past the workspace changed");
  if (how.tasks != nullptr && cut.piece > 0)
    for (int section = 0; section < sm90::kSections; ++section)
      for (uint32_t i = 0; i < params.cuts.counts[section]; ++i)
        ++how.tasks[static_cast<int>(params.cuts.work[params.cuts.first[section] + i].task)];
  return true;
}

// Tensors that start at multiples of 16 bytes, as the copy engine needs them.
Call narrow(const Call& wide, int32_t type) {
  Call call = wide;
  for (Name name : {kQ, kK, kV, kO}) call[name] = convert(wide[name], type);
  return call;
}

Case square(int32_t family, int32_t gate) {
  Case c;
  c.family = family, c.gate = gate, c.beta = is_delta(c), c.norm = is_delta(c);
  c.batch = 1, c.heads = 1, c.group = 1, c.dim_k = 128, c.dim_v = 128;
  return c;
}

void compare(const Call& wide, int32_t type, const char* what, double tolerance,
             const How& how = {}) {
  Call call = narrow(wide, type), oracle = call;
  if (!run_sm90(call, how) || !run(oracle, "reference")) return;
  for (Name name : {kO, kHt, kStates}) {
    if (call[name].type == LINATTN_NONE) continue;
    const double e = error(call[name].values(), oracle[name].values());
    CHECK_THAT(e <= tolerance, "tensor %d is off by %.2e: %s", name, e, what);
  }
}

void families() {
  uint32_t seed = 1;
  for (const auto& [family, gate] : {std::pair{LINATTN_GDN, LINATTN_GATE_HEAD},
                                     {LINATTN_DELTA, LINATTN_GATE_NONE},
                                     {LINATTN_SIMPLE_GLA, LINATTN_GATE_HEAD},
                                     {LINATTN_LIGHTNING, LINATTN_GATE_HEAD_CONSTANT}})
    for (const int32_t type : {LINATTN_BF16, LINATTN_F16}) {
      Case c = square(family, gate);
      c.tokens = 45, c.group = 2, c.v_first = type == LINATTN_F16;
      compare(forward_of(c, ++seed), type, text(c).c_str(), type == LINATTN_BF16 ? 6e-3 : 2e-3);
    }
}

void gates_and_forms() {
  Case c = square(LINATTN_GDN, LINATTN_GATE_HEAD);
  c.tokens = 40;
  for (const double gate : {0.0, -30.0, -1e4, -double{INFINITY}}) {
    Call call = forward_of(c, 3);
    for (int64_t i = 0; i < call[kG].count(); ++i)
      if (i % 5 != 3) call[kG].set(i, gate);
    compare(call, LINATTN_BF16, ("gate " + std::to_string(gate)).c_str(), 6e-3);
  }
  c.gate_form = LINATTN_GATE_RAW_SOFTPLUS, c.A_log = true, c.dt_bias = true;
  c.beta_form = LINATTN_BETA_SIGMOID2;
  compare(forward_of(c, 4), LINATTN_BF16, text(c).c_str(), 6e-3);
  c.norm = false, c.beta_form = LINATTN_BETA_SIGMOID;
  compare(forward_of(c, 5), LINATTN_BF16, text(c).c_str(), 6e-3);
}

// Lengths 0, 1 and tails, rows that no sequence owns, without and with tensor maps.
void packed() {
  Case c = square(LINATTN_GDN, LINATTN_GATE_HEAD);
  c.varlen = true, c.tokens = 33;
  for (const bool slow : {false, true})
    compare(forward_of(c, 6), LINATTN_BF16, slow ? "element by element" : "packed", 6e-3,
            {.slow = slow});
}

// Gates of value head h and token t of so many.
using GateOf = double (*)(int64_t h, int64_t t, int64_t tokens);

void set_gates(Call& call, GateOf gate) {
  Tensor& g = call[kG];
  for (int64_t i = 0; i < g.count(); ++i)
    g.set(i, gate(i % g.size[2], i / g.size[2] % g.size[1], g.size[1]));
}

// Segments of one chunk and of some: known, handed and joined ones, and every turn from one kind to
// the other. `maps`: so many CTAs at least make maps.
void cuts(bool all) {
  Case c = square(LINATTN_GDN, LINATTN_GATE_HEAD);
  c.tokens = 371, c.group = 2;
  const struct {
    const char* name;
    GateOf gate;
    int maps;
  } gates[] = {
      {"no decay", [](int64_t, int64_t, int64_t) { return 0.0; }, 20},
      {"slow decay", [](int64_t, int64_t, int64_t) { return -0.01; }, 20},
      {"decay", [](int64_t, int64_t, int64_t) { return -0.4; }, 0},
      {"mixed", [](int64_t h, int64_t, int64_t) { return h == 1 ? 0.0 : -0.4; }, 10},
      {"decay first", [](int64_t h, int64_t t, int64_t) { return t < 80 * h + 80 ? -2.0 : 0.0; },
       8},
      {"decay last", [](int64_t h, int64_t t, int64_t) { return t > 80 * h + 80 ? -2.0 : 0.0; }, 1},
      {"by turns", [](int64_t h, int64_t t, int64_t) { return t / 128 % 2 == h ? -2.0 : 0.0; }, 4},
  };
  uint32_t seed = 20;
  for (const auto& [name, gate, maps] : gates) {
    Call call = narrow(forward_of(c, ++seed), LINATTN_BF16), oracle = call;
    set_gates(call, gate), set_gates(oracle, gate);
    Call whole = call;
    if (!run(oracle, "reference") || !run_sm90(whole)) return;
    for (const How& how : {How{.cut = {2, true}, .reach = 3}, How{.cut = {2, false}, .reach = 2},
                           How{.cut = {5, true}, .reach = 6}}) {
      int tasks[4] = {};
      How counted = how;
      counted.tasks = tasks;
      if (!run_sm90(call, counted)) return;
      for (Name output : {kO, kHt}) {
        double e = error(call[output].values(), oracle[output].values());
        CHECK_THAT(e < 6e-3, "off by %.1e: %s", e, name);
        e = error(call[output].values(), whole[output].values());
        CHECK_THAT(e < 3e-3, "cut and whole differ by %.1e: %s", e, name);
      }
      if (how.cut.piece == 2) CHECK_THAT(tasks[2] >= maps, "%d make maps: %s", tasks[2], name);
      CHECK_THAT(maps > 0 || tasks[2] == 0, "%d make maps: %s", tasks[2], name);
      if (!all) break;
    }
  }
}

// Families whose maps are numbers, both types, no gates at all.
void cuts_of_families() {
  uint32_t seed = 50;
  for (const auto& [family, gate] : {std::pair{LINATTN_DELTA, LINATTN_GATE_NONE},
                                     {LINATTN_SIMPLE_GLA, LINATTN_GATE_HEAD},
                                     {LINATTN_SIMPLE_GLA, LINATTN_GATE_NONE},
                                     {LINATTN_GLA, LINATTN_GATE_CHANNEL},
                                     {LINATTN_LIGHTNING, LINATTN_GATE_HEAD_CONSTANT}})
    for (const int32_t type : {LINATTN_BF16, LINATTN_F16}) {
      Case c = square(family, gate);
      c.tokens = 300, c.group = 2, c.v_first = type == LINATTN_F16;
      c.initial_state = type == LINATTN_BF16;
      Call call = forward_of(c, ++seed);
      for (Name name : {kG, kGamma})
        for (int64_t i = 0; i < call[name].count(); ++i)
          call[name].set(i, call[name].get(i) * (i % 2 ? 0.02 : 1.0));
      int tasks[4] = {};
      compare(call, type, text(c).c_str(),
              type == LINATTN_BF16 || gate == LINATTN_GATE_CHANNEL ? 6e-3 : 2e-3,
              {.cut = {2, true}, .tasks = tasks});
      CHECK_THAT(tasks[1] > 0 && tasks[3] > 0, "no segment is handed: %s", text(c).c_str());
    }
}

// Sequences of 0, some and many chunks, cut by themselves: the same alone as among others.
void cuts_of_packed() {
  Case c = square(LINATTN_GDN, LINATTN_GATE_HEAD);
  c.varlen = true, c.tokens = 290;
  for (const bool slow : {false, true}) {
    Call call = narrow(forward_of(c, 60), LINATTN_BF16);
    set_gates(call, [](int64_t, int64_t t, int64_t) { return t % 290 < 100 ? -0.5 : -0.003; });
    int tasks[4] = {};
    const How how{.slow = slow, .cut = {3, true}, .reach = 4, .tasks = tasks};
    compare(call, LINATTN_BF16, "packed, cut", 6e-3, how);
    CHECK(tasks[2] > 0 && tasks[3] > 0);
    if (!run_sm90(call, how)) return;
    const int64_t begin = call[kCuSeqlens].get(2), end = call[kCuSeqlens].get(3);
    Case one = c;
    one.varlen = false, one.tokens = end - begin;
    Call alone = narrow(forward_of(one, 60), LINATTN_BF16);
    for (Name name : {kQ, kK, kV, kG, kBeta}) {
      const int64_t row = call[name].count() / call[name].size[1];
      for (int64_t i = 0; i < alone[name].count(); ++i)
        alone[name].set(i, call[name].get(begin * row + i));
    }
    const int64_t state = alone[kH0].count(), row = alone[kO].count() / one.tokens;
    for (int64_t i = 0; i < state; ++i) alone[kH0].set(i, call[kH0].get(2 * state + i));
    if (!run_sm90(alone, how)) return;
    int64_t different = 0;
    for (int64_t i = 0; i < alone[kO].count(); ++i)
      different += alone[kO].get(i) != call[kO].get(begin * row + i);
    for (int64_t i = 0; i < state; ++i)
      different += alone[kHt].get(i) != call[kHt].get(2 * state + i);
    CHECK(different == 0);
  }
}

// Whatever a later token holds, and however it decays, earlier outputs keep their bits.
void cuts_and_later_tokens() {
  Case c = square(LINATTN_GDN, LINATTN_GATE_HEAD);
  c.tokens = 330;
  Call before = narrow(forward_of(c, 70), LINATTN_BF16);
  set_gates(before, [](int64_t, int64_t, int64_t) { return -0.02; });
  for (const int64_t changed : {70, 200, 310}) {
    Call after = before, first = before;
    for (int64_t t = changed; t < c.tokens; ++t)
      after[kG].set(t, -3.0 * (t % 2)), after[kBeta].set(t, 0.25);
    const How how{.cut = {2, true}, .reach = 3};
    if (!run_sm90(first, how) || !run_sm90(after, how)) return;
    const size_t bytes = static_cast<size_t>(changed * c.dim_v) * 2;
    CHECK(std::memcmp(first[kO].data.data(), after[kO].data.data(), bytes) == 0);
    CHECK(first[kO].data != after[kO].data);
  }
}

// What the plan chooses for few SMs; whole sequences where it may not cut.
void planned_cuts() {
  Case c = square(LINATTN_GDN, LINATTN_GATE_HEAD);
  c.tokens = 1100;
  Call call = narrow(forward_of(c, 80), LINATTN_BF16);
  set_gates(call, [](int64_t, int64_t t, int64_t) { return t < 600 ? 0.0 : -0.05; });
  int tasks[4] = {};
  compare(call, LINATTN_BF16, "planned cuts", 6e-3, {.num_sms = 4, .tasks = tasks});
  CHECK(tasks[0] > 2);
  call.problem.flags |= LINATTN_FLAG_NO_AUTO_CP;
  int whole[4] = {};
  compare(call, LINATTN_BF16, "no cuts", 6e-3, {.num_sms = 4, .tasks = whole});
  CHECK(whole[0] == 0);
}

void repeated_keys() {
  Case c = square(LINATTN_GDN, LINATTN_GATE_HEAD);
  c.tokens = 128;
  for (const auto& [beta, tolerance] : {std::pair{1.0, 1.2e-2}, {1.7, 3e-2}, {2.0, 2e-1}}) {
    Call call = forward_of(c, 9);
    for (int64_t i = 0; i < call[kK].count(); ++i) call[kK].set(i, call[kK].get(i % c.dim_k));
    for (int64_t i = 0; i < call[kG].count(); ++i) call[kG].set(i, 0), call[kBeta].set(i, beta);
    const std::string what = "one key, beta " + std::to_string(beta);
    compare(call, LINATTN_BF16, what.c_str(), tolerance);
    compare(call, LINATTN_BF16, (what + ", cut").c_str(), tolerance, {.cut = {2, true}});
  }
}

Case channels(int32_t family = LINATTN_KDA) {
  Case c = square(family, LINATTN_GATE_CHANNEL);
  c.gate_form = LINATTN_GATE_RAW_BOUNDED;
  return c;
}

Call safe(Call call) {
  call.problem.flags |= LINATTN_FLAG_SAFE_GATE;
  return call;
}

// What the copy engine takes starts at multiples of 16 bytes.
void channel_forms() {
  uint32_t seed = 20;
  for (const bool v_first : {false, true})
    for (const int32_t gates : {LINATTN_F32, LINATTN_BF16, LINATTN_F16}) {
      Case c = channels();
      c.tokens = 45, c.group = 2, c.v_first = v_first;
      c.A_log = gates != LINATTN_F16, c.dt_bias = gates == LINATTN_BF16;
      Call call = forward_of(c, ++seed);
      call[kG] = convert(call[kG], gates);
      compare(call, LINATTN_BF16, text(c).c_str(), 6e-3);
    }
  Case c = channels();
  c.tokens = 40, c.gate_form = LINATTN_GATE_GIVEN, c.beta_form = LINATTN_BETA_SIGMOID;
  compare(safe(forward_of(c, ++seed)), LINATTN_BF16, text(c).c_str(), 6e-3);
  c.norm = false;
  compare(safe(forward_of(c, ++seed)), LINATTN_BF16, text(c).c_str(), 6e-3);
  Case additive = channels(LINATTN_GLA);
  additive.gate_form = LINATTN_GATE_GIVEN, additive.tokens = 70;
  for (const int32_t type : {LINATTN_BF16, LINATTN_F16})
    compare(safe(forward_of(additive, ++seed)), type, text(additive).c_str(), 6e-3);
  Case packed = channels();
  packed.varlen = true, packed.tokens = 33, packed.A_log = true;
  for (const bool slow : {false, true})
    compare(forward_of(packed, ++seed), LINATTN_BF16, slow ? "element by element" : "packed", 6e-3,
            {.slow = slow});
}

// Gates a channel that are all alike, all at the bound, or of which half of the channels switch in
// the middle of a chunk.
void channel_gates() {
  Case c = channels();
  c.tokens = 100, c.gate_form = LINATTN_GATE_GIVEN;
  const auto with = [&](const char* what, const auto& gate, const How& how = {}) {
    Call call = safe(forward_of(c, 40));
    for (int64_t i = 0; i < call[kG].count(); ++i)
      call[kG].set(i, gate(i / (c.dim_k * c.group), i % c.dim_k));
    compare(call, LINATTN_BF16, what, 6e-3, how);
  };
  with("gates 0", [](int64_t, int64_t) { return 0.0; });
  with("gates -5", [](int64_t, int64_t) { return -5.0; });
  with("gates -0.01", [](int64_t, int64_t) { return -0.01; });
  with("alternating", [](int64_t t, int64_t d) { return (t + d) % 2 == 0 ? -5.0 : 0.0; });
  with("channel by channel",
       [](int64_t, int64_t d) { return -5.0 * static_cast<double>(d) / 128; });
  c.tokens = 300;
  int tasks[4] = {};
  const How cut{.cut = {2, true}, .reach = 3, .tasks = tasks};
  with("switch", [](int64_t t, int64_t d) { return (d < 64) == (t % 32 < 16) ? -5.0 : 0.0; }, cut);
  with("pieces", [](int64_t, int64_t) { return -0.3; }, cut);
  with("maps", [](int64_t t, int64_t d) { return t < 90 ? 0.0 : -0.01 * (d % 3); }, cut);
  CHECK_THAT(tasks[2] > 0 && tasks[3] > 0, "no map is made");
}

// Gates of any strength, whose preparation is another one.
void any_channel_gates() {
  Case c = channels();
  c.tokens = 100, c.gate_form = LINATTN_GATE_GIVEN;
  const double inf = INFINITY;
  const auto with = [&](const char* what, const auto& gate, const How& how = {}) {
    Call call = forward_of(c, 41);
    for (int64_t i = 0; i < call[kG].count(); ++i)
      call[kG].set(i, gate(i / (c.dim_k * c.group), i % c.dim_k));
    compare(call, LINATTN_BF16, what, 6e-3, how);
  };
  for (const double gate : {0.0, -1e-8, -5.0, -30.0, -1e4, -inf})
    with(("any gates " + std::to_string(gate)).c_str(), [&](int64_t, int64_t) { return gate; });
  with("alternating inf", [&](int64_t t, int64_t) { return t % 2 == 0 ? 0.0 : -inf; });
  with("sparse inf", [&](int64_t t, int64_t d) { return t % 11 == 7 ? -inf : -0.5 * d / 128; });
  with("spread",
       [](int64_t t, int64_t d) { return -std::pow(10.0, (t * 37 + d * 11) % 54 / 10.0 - 4); });
  c.tokens = 300;
  with("inf and pieces", [&](int64_t t, int64_t d) { return t % 50 == 7 ? -inf : -1e-3 * d; },
       {.cut = {2, true}, .reach = 3});
  c.gate_form = LINATTN_GATE_RAW_SOFTPLUS, c.A_log = true, c.dt_bias = true, c.tokens = 70;
  c.group = 2;
  compare(forward_of(c, 42), LINATTN_BF16, text(c).c_str(), 6e-3);
  c.varlen = true, c.tokens = 33;
  compare(forward_of(c, 43), LINATTN_BF16, text(c).c_str(), 6e-3);
  Case additive = channels(LINATTN_GLA);
  additive.gate_form = LINATTN_GATE_GIVEN, additive.tokens = 70;
  for (const int32_t type : {LINATTN_BF16, LINATTN_F16})
    compare(forward_of(additive, 44), type, text(additive).c_str(), 6e-3);
}

// Keys normed by the caller, which rounding to bf16 made longer than 1: at beta 2 every token
// amplifies the state and the errors in it.
void given_keys() {
  for (Case c : {square(LINATTN_GDN, LINATTN_GATE_HEAD), channels()}) {
    c.tokens = 700, c.norm = false, c.gate_form = LINATTN_GATE_GIVEN;
    for (const double beta : {1.0, 2.0}) {
      Call call = forward_of(c, 9);
      double squares = 0.0;
      for (int64_t i = 0; i < c.dim_k; ++i) squares += call[kK].get(i) * call[kK].get(i);
      const double scale = 1.003 / std::sqrt(squares);
      for (int64_t i = 0; i < call[kK].count(); ++i)
        call[kK].set(i, i < c.dim_k ? call[kK].get(i) * scale : call[kK].get(i % c.dim_k));
      for (int64_t i = 0; i < call[kG].count(); ++i) call[kG].set(i, 0);
      for (int64_t i = 0; i < call[kBeta].count(); ++i) call[kBeta].set(i, beta);
      compare(call, LINATTN_BF16,
              ("one given key, " + text(c) + " " + std::to_string(beta)).c_str(),
              beta > 1.0 ? 2e-1 : 1.2e-2);
    }
  }
}

void channel_repeated_keys() {
  Case c = channels();
  c.tokens = 128, c.gate_form = LINATTN_GATE_GIVEN;
  for (const bool anchored : {false, true})
    for (const double noise : {0.0, 0.02})
      for (const auto& [beta, tolerance] :
           {std::pair{0.5, 1.2e-2}, {0.9, 1.2e-2}, {1.0, 1.2e-2}, {1.7, 3e-2}, {2.0, 2e-1}}) {
        Call call = forward_of(c, 9);
        if (anchored) call = safe(call);
        for (int64_t i = 0; i < call[kK].count(); ++i)
          call[kK].set(i, call[kK].get(i % c.dim_k) + noise * call[kK].get(i));
        for (int64_t i = 0; i < call[kG].count(); ++i) call[kG].set(i, 0);
        for (int64_t i = 0; i < call[kBeta].count(); ++i) call[kBeta].set(i, beta);
        compare(
            call, LINATTN_BF16,
            ("channels, one key, noise " + std::to_string(noise) + ", beta " + std::to_string(beta))
                .c_str(),
            tolerance);
      }
}

}  // namespace

int main() {
  for (const bool backwards : {false, true}) {
    simt::backwards = backwards;
    cuts(!backwards);
    families();
    gates_and_forms();
    packed();
    repeated_keys();
    given_keys();
    channel_forms();
    channel_gates();
    any_channel_gates();
    channel_repeated_keys();
  }
  simt::backwards = false;
  cuts_of_families();
  cuts_of_packed();
  cuts_and_later_tokens();
  planned_cuts();
  return check::finish();
}
