// The Hopper chunk kernels' own source, run lane by lane on the host, against the oracle. Needs
// neither nvcc nor a GPU.
#include "../cpp/cases.h"
#include "cuda/sm90/prepare.cuh"
#include "cuda/sm90/prepare_channel.cuh"
#include "cuda/sm90/scan.cuh"
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

template <bool kBf16, bool kDelta>
void launch(const Problem& p, const sm90::Cut& cut, const sm90::ScanParams& params) {
  using namespace linattn::cuda;
  if (p.gate == linattn::Gate::channel) {
    simt::launch(sm90::anchored_gates(p) ? chunk_prepare_channel_sm90<kDelta, true>
                                         : chunk_prepare_channel_sm90<kDelta, false>,
                 sm90::prepare_grid(p), sm90::kPrepareChannelThreads, params);
    simt::launch(chunk_scan_sm90<kBf16, kDelta, true>, sm90::scan_grid(p, cut),
                 sm90::Layout<true>::kThreads, params);
    return;
  }
  simt::launch(chunk_prepare_sm90<kBf16, kDelta>, sm90::prepare_grid(p),
               sm90::prepare_warps(p) * 32, params);
  simt::launch(chunk_scan_sm90<kBf16, kDelta, false>, sm90::scan_grid(p, cut),
               sm90::Layout<false>::kThreads, params);
}

// `slow`: as where no tensor map describes the tensors.
bool run_sm90(Call& call, int num_sms, bool slow = false) {
  Problem p;
  if (!plan(call, &p)) return false;
  linattn::DeviceFacts facts = facts_of(90);
  facts.num_sms = num_sms;
  const std::string reason = sm90::reject(p, facts);
  CHECK_THAT(reason.empty(), "refused: %s", reason.c_str());
  if (!reason.empty()) return false;
  linattn_args args = args_of(call);
  std::vector<unsigned char> workspace(static_cast<size_t>(sm90::workspace_bytes(p)) + 512,
                                       kPoison);
  unsigned char* begin =
      workspace.data() + (256 - reinterpret_cast<uintptr_t>(workspace.data()) % 256);
  args.workspace = begin;
  const sm90::Cut cut = sm90::cut_of(p, facts);
  sm90::ScanParams params = sm90::scan_params(p, cut, args);
  params.vectors = params.vectors && !slow;
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
  for (const unsigned char* at = begin + sm90::workspace_bytes(p);
       at < workspace.data() + workspace.size(); ++at)
    CHECK_THAT(*at == kPoison, "a byte past the workspace changed");
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

void compare(const Call& wide, int32_t type, const char* what, double tolerance, int num_sms = 132,
             bool slow = false) {
  Call call = narrow(wide, type), oracle = call;
  if (!run_sm90(call, num_sms, slow) || !run(oracle, "reference")) return;
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
    compare(forward_of(c, 6), LINATTN_BF16, slow ? "element by element" : "packed", 6e-3, 132,
            slow);
}

// Pieces of sequences see what came before them: all of it without decay, nothing of it after much.
void pieces() {
  Case c = square(LINATTN_GDN, LINATTN_GATE_HEAD);
  c.tokens = 600;
  for (const double gate : {0.0, -0.01, -0.4}) {
    Call call = forward_of(c, 7);
    for (int64_t i = 0; i < call[kG].count(); ++i) call[kG].set(i, gate);
    compare(call, LINATTN_BF16, ("pieces, gate " + std::to_string(gate)).c_str(), 6e-3, 4);
  }
  Call cut = narrow(forward_of(c, 8), LINATTN_BF16), whole = cut;
  for (int64_t i = 0; i < cut[kG].count(); ++i) cut[kG].set(i, -0.4), whole[kG].set(i, -0.4);
  whole.problem.flags |= LINATTN_FLAG_NO_AUTO_CP;
  if (run_sm90(cut, 4) && run_sm90(whole, 4))
    CHECK(error(cut[kO].values(), whole[kO].values()) < 1e-4);
}

void repeated_keys() {
  Case c = square(LINATTN_GDN, LINATTN_GATE_HEAD);
  c.tokens = 128;
  for (const auto& [beta, tolerance] : {std::pair{1.0, 1.2e-2}, {1.7, 3e-2}, {2.0, 2e-1}}) {
    Call call = forward_of(c, 9);
    for (int64_t i = 0; i < call[kK].count(); ++i) call[kK].set(i, call[kK].get(i % c.dim_k));
    for (int64_t i = 0; i < call[kG].count(); ++i) call[kG].set(i, 0), call[kBeta].set(i, beta);
    compare(call, LINATTN_BF16, ("one key, beta " + std::to_string(beta)).c_str(), tolerance);
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
            132, slow);
}

// Gates a channel that are all alike, all at the bound, or of which half of the channels switch in
// the middle of a chunk.
void channel_gates() {
  Case c = channels();
  c.tokens = 100, c.gate_form = LINATTN_GATE_GIVEN;
  const auto with = [&](const char* what, const auto& gate, int num_sms = 132) {
    Call call = safe(forward_of(c, 40));
    for (int64_t i = 0; i < call[kG].count(); ++i)
      call[kG].set(i, gate(i / (c.dim_k * c.group), i % c.dim_k));
    compare(call, LINATTN_BF16, what, 6e-3, num_sms);
  };
  with("gates 0", [](int64_t, int64_t) { return 0.0; });
  with("gates -5", [](int64_t, int64_t) { return -5.0; });
  with("gates -0.01", [](int64_t, int64_t) { return -0.01; });
  with("alternating", [](int64_t t, int64_t d) { return (t + d) % 2 == 0 ? -5.0 : 0.0; });
  with("channel by channel",
       [](int64_t, int64_t d) { return -5.0 * static_cast<double>(d) / 128; });
  c.tokens = 300;
  with("switch", [](int64_t t, int64_t d) { return (d < 64) == (t % 32 < 16) ? -5.0 : 0.0; }, 4);
  with("pieces", [](int64_t, int64_t) { return -0.3; }, 4);
}

// Gates of any strength, whose preparation is another one.
void any_channel_gates() {
  Case c = channels();
  c.tokens = 100, c.gate_form = LINATTN_GATE_GIVEN;
  const double inf = INFINITY;
  const auto with = [&](const char* what, const auto& gate, int num_sms = 132) {
    Call call = forward_of(c, 41);
    for (int64_t i = 0; i < call[kG].count(); ++i)
      call[kG].set(i, gate(i / (c.dim_k * c.group), i % c.dim_k));
    compare(call, LINATTN_BF16, what, 6e-3, num_sms);
  };
  for (const double gate : {0.0, -1e-8, -5.0, -30.0, -1e4, -inf})
    with(("any gates " + std::to_string(gate)).c_str(), [&](int64_t, int64_t) { return gate; });
  with("alternating inf", [&](int64_t t, int64_t) { return t % 2 == 0 ? 0.0 : -inf; });
  with("sparse inf", [&](int64_t t, int64_t d) { return t % 11 == 7 ? -inf : -0.5 * d / 128; });
  with("spread",
       [](int64_t t, int64_t d) { return -std::pow(10.0, (t * 37 + d * 11) % 54 / 10.0 - 4); });
  c.tokens = 300;
  with("inf and pieces", [&](int64_t t, int64_t d) { return t % 50 == 7 ? -inf : -1e-3 * d; }, 4);
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
    families();
    gates_and_forms();
    packed();
    pieces();
    repeated_keys();
    given_keys();
    channel_forms();
    channel_gates();
    any_channel_gates();
    channel_repeated_keys();
  }
  return check::finish();
}
