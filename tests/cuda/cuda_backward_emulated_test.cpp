// The backward kernels' own source, run lane by lane on the host, against the oracle. Needs neither
// nvcc nor a GPU.
#include "../cpp/cases.h"
#include "cuda/portable/backward.plan.h"
#include "cuda/portable/backward_finish.cuh"
#include "cuda/portable/backward_token.cuh"
#include "emulated.h"
#include "simt/simt.h"

using namespace call;

namespace {

constexpr Name kGradients[] = {kDq, kDk, kDv, kDg, kDbeta, kDALog, kDdtBias, kDh0};
constexpr const char* kGradientNames[] = {"dq",    "dk",     "dv",       "dg",
                                          "dbeta", "dA_log", "ddt_bias", "dh0"};

bool run_by_token(Call& call, int num_sms) {
  using namespace linattn::cuda;
  linattn::Problem problem;
  if (!plan(call, &problem)) return false;
  linattn::DeviceFacts facts = facts_of(90);
  facts.num_sms = num_sms;
  CHECK(backward_reject(problem, facts).empty());
  linattn_args args = args_of(call);
  std::vector<unsigned char> workspace(
      static_cast<size_t>(backward_workspace(problem, facts)) + 512, kPoison);
  unsigned char* begin =
      workspace.data() + (256 - reinterpret_cast<uintptr_t>(workspace.data()) % 256);
  args.workspace = begin;
  const BackwardParams params = backward_params(problem, facts, args);
  const BackwardGrids grids = backward_grids(problem, facts);
  constexpr int kThreads = kTokenWarps * 32;
  if (token_channels(problem) == 4)
    simt::launch(backward_token_portable<4>, grids.token, kThreads, params);
  else
    simt::launch(backward_token_portable<8>, grids.token, kThreads, params);
  simt::launch(backward_finish_portable<0>, grids.finish, kThreads, params);
  simt::launch(backward_gate_sums_portable<0>, grids.gate_sums, kThreads, params);
  const unsigned char* end = begin + backward_workspace(problem, facts);
  for (const unsigned char* at = end; at < workspace.data() + workspace.size(); ++at)
    CHECK_THAT(*at == kPoison, "byte %td past the workspace changed", at - end);
  return true;
}

double worst_seen = 0;

void compare(Call& call, const char* what, double tolerance = 2e-5) {
  Call oracle = call;
  if (!run_by_token(call, 1) || !run(oracle, "reference")) return;
  for (size_t i = 0; i < std::size(kGradients); ++i) {
    const Tensor& t = call[kGradients[i]];
    if (t.type == LINATTN_NONE) continue;
    const double e = error(t.values(), oracle[kGradients[i]].values());
    CHECK_THAT(e <= tolerance, "%s is off by %.2e: %s", kGradientNames[i], e, what);
    if (t.type == LINATTN_F32) worst_seen = std::max(worst_seen, e);
  }
}

void families() {
  uint32_t seed = 1;
  const std::pair<int64_t, int64_t> dims[] = {{3, 5}, {40, 33}, {64, 70}, {130, 20}};
  for (Case c : all_cases()) {
    c.tokens = 4, c.batch = 2, c.heads = 1, c.group = seed % 3 == 0 ? 2 : 1;
    c.dim_k = dims[seed % 4].first, c.dim_v = dims[seed % 4].second;
    Call call = backward_of(c, ++seed);
    compare(call, text(c).c_str());
  }
}

void sizes() {
  for (const auto& [tokens, k, v] : {std::tuple<int64_t, int64_t, int64_t>{0, 8, 8},
                                     {1, 1, 1},
                                     {5, 256, 3},
                                     {2, 128, 128},
                                     {3, 1, 256},
                                     {35, 9, 17}})
    for (const int32_t family : {LINATTN_KDA, LINATTN_SIMPLE_GLA}) {
      Case c;
      c.family = family;
      c.gate = family == LINATTN_KDA ? LINATTN_GATE_CHANNEL : LINATTN_GATE_HEAD;
      c.beta = family == LINATTN_KDA;
      c.batch = 1, c.heads = 1, c.group = 1, c.tokens = tokens, c.dim_k = k, c.dim_v = v;
      Call call = backward_of(c, static_cast<uint32_t>(tokens + k + v));
      compare(call, ("K " + std::to_string(k) + " V " + std::to_string(v)).c_str());
    }
}

void gates() {
  for (const double gate : {0.0, -1e-8, -5.0, -30.0, -1e4, -double{INFINITY}})
    for (const int32_t family : {LINATTN_KDA, LINATTN_GDN, LINATTN_GLA}) {
      Case c;
      c.family = family;
      c.gate = family == LINATTN_GDN ? LINATTN_GATE_HEAD : LINATTN_GATE_CHANNEL;
      c.beta = is_delta(c);
      c.batch = 1, c.tokens = 6, c.heads = 1, c.group = 1, c.dim_k = 16, c.dim_v = 16;
      Call call = backward_of(c, 7);
      for (int64_t i = 0; i < call[kG].count(); ++i)
        if (i % 5 != 3) call[kG].set(i, gate);
      compare(call, ("gate " + std::to_string(gate) + ", " + text(c)).c_str());
    }
  for (const int32_t form : {LINATTN_GATE_RAW_SOFTPLUS, LINATTN_GATE_RAW_BOUNDED})
    for (const double A_log : {-100.0, 5.0, 80.0, 100.0}) {
      Case c;
      c.gate_form = form, c.A_log = true, c.dt_bias = true;
      c.batch = 1, c.tokens = 5, c.heads = 1, c.group = 1, c.dim_k = 8, c.dim_v = 8;
      Call call = backward_of(c, 5);
      for (int64_t i = 0; i < call[kALog].count(); ++i) call[kALog].set(i, A_log);
      for (int64_t i = 0; i < call[kG].count(); i += 3) call[kG].set(i, i % 2 ? 60 : -60);
      run_by_token(call, 1);
      for (Name name : kGradients) CHECK_THAT(all_finite(call[name]), "A_log %g", A_log);
    }
}

void types_and_strides() {
  for (const int32_t type : {LINATTN_BF16, LINATTN_F16}) {
    Case c{.family = LINATTN_GDN, .gate = LINATTN_GATE_HEAD, .norm = true};
    c.tokens = 5, c.heads = 1, c.dim_k = 20, c.dim_v = 24;
    Call call = backward_of(c, 11);
    for (Tensor& t : call.tensor)
      if (t.type == LINATTN_F32) t = convert(t, type);
    compare(call, text(c).c_str(), type == LINATTN_BF16 ? 4e-3 : 5e-4);
  }
  // Strides of every kind with NaN between the elements give the same bits.
  Case c{.norm = true, .varlen = true};
  c.heads = 2, c.group = 1;
  Call packed = backward_of(c, 9), strided = packed;
  for (Tensor& t : strided.tensor) {
    if (t.type == LINATTN_NONE) continue;
    std::vector<int> inner_first(t.size.size());
    std::iota(inner_first.begin(), inner_first.end(), 0);
    t = convert(t, t.type, inner_first, 2);
  }
  run_by_token(packed, 1), run_by_token(strided, 1);
  for (Name name : kGradients)
    CHECK_THAT(same_bits(packed[name], strided[name]), "tensor %d", name);
}

// The same bits whatever the number of workers and whichever outputs are asked for.
void repeatable() {
  Case c{.gate_form = LINATTN_GATE_RAW_SOFTPLUS,
         .norm = true,
         .A_log = true,
         .dt_bias = true,
         .varlen = true};
  c.tokens = 5, c.heads = 1, c.group = 2, c.dim_k = 16, c.dim_v = 70;
  Call all = backward_of(c, 21), again = all;
  run_by_token(all, 1), run_by_token(again, 100);
  for (Name name : kGradients) CHECK_THAT(same_bits(all[name], again[name]), "tensor %d", name);
  for (Name name : kGradients) {
    Call some = all;
    for (Name other : kGradients)
      if (other != name) some[other] = {};
    if (some[name].type == LINATTN_NONE) continue;
    run_by_token(some, 2);
    CHECK_THAT(same_bits(all[name], some[name]), "tensor %d", name);
  }
  all[kDht] = {};
  compare(all, "without dht");
}

}  // namespace

int main() {
  families();
  sizes();
  gates();
  types_and_strides();
  repeatable();
  std::printf("largest fp32 error %.2e\n", worst_seen);
  return check::finish();
}
