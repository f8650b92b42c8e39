// Every rule of the interface, broken once: the class of error, and a text that names the argument,
// its value and what is allowed.
#include <cmath>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "problems.h"

namespace {

using linattn::Problem;
using linattn::tensor;
using namespace problems;

constexpr int32_t kValue = LINATTN_INVALID_VALUE, kType = LINATTN_INVALID_TYPE;

void expect(const char* what, const Problem& problem, int32_t status,
            std::initializer_list<const char*> words) {
  try {
    linattn::Plan plan(problem);
    CHECK_THAT(false, "%s was accepted", what);
  } catch (const linattn::Error& error) {
    const std::string text = error.what();
    CHECK_THAT(error.status() == status, "%s: status %d, %s", what, error.status(), text.c_str());
    CHECK_THAT(
        (dynamic_cast<const linattn::InvalidValue*>(&error) != nullptr) == (status == kValue),
        "%s: class of the exception", what);
    for (const char* word : words)
      CHECK_THAT(text.find(word) != std::string::npos, "%s: no '%s' in: %s", what, word,
                 text.c_str());
  }
}

struct Row {
  const char* what;
  Problem (*base)();
  std::function<void(Problem&)> break_it;
  int32_t status;
  std::initializer_list<const char*> words;
};

void broken_rules() {
  const double kNan = std::numeric_limits<double>::quiet_NaN();
  const Row rows[] = {
      {"family",
       kda,
       [](Problem& p) { p.family = static_cast<linattn::Family>(9); },
       kValue,
       {"family", "9"}},
      {"form",
       kda,
       [](Problem& p) { p.form = static_cast<linattn::Form>(0); },
       kValue,
       {"form", "0"}},
      {"pass",
       kda,
       [](Problem& p) { p.pass = static_cast<linattn::Pass>(3); },
       kValue,
       {"pass", "3"}},
      {"gate number",
       kda,
       [](Problem& p) { p.gate = static_cast<linattn::Gate>(-1); },
       kValue,
       {"gate", "-1"}},
      {"gate of the family",
       kda,
       [](Problem& p) { p.gate = linattn::Gate::head; },
       kValue,
       {"gate", "head", "channel", "kda"}},
      {"raw gate of the family",
       simple_gla,
       [](Problem& p) { p.gate_form = linattn::GateForm::softplus; },
       kValue,
       {"simple_gla"}},
      {"bounded gate of the family",
       simple_gla,
       [](Problem& p) { p.gate_form = linattn::GateForm::bounded, p.lower_bound = -5; },
       kValue,
       {"lower_bound", "-5", "kda"}},
      {"beta form of the family",
       simple_gla,
       [](Problem& p) { p.beta_form = linattn::BetaForm::sigmoid; },
       kValue,
       {"simple_gla"}},
      {"norm of the family",
       simple_gla,
       [](Problem& p) { p.qk_norm = true; },
       kValue,
       {"l2norm", "simple_gla"}},
      {"safe gate without channel gate",
       simple_gla,
       [](Problem& p) { p.safe_gate = true; },
       kValue,
       {"safe_gate", "head"}},
      {"scale", kda, [&](Problem& p) { p.scale = kNan; }, kValue, {"scale", "nan", "finite"}},
      {"scale", kda, [](Problem& p) { p.scale = HUGE_VAL; }, kValue, {"scale", "inf"}},

      {"q missing", kda, [](Problem& p) { p.q = {}; }, kValue, {"q is None", "required"}},
      {"v missing", kda, [](Problem& p) { p.v = {}; }, kValue, {"v is None", "required"}},
      {"o missing", kda, [](Problem& p) { p.o = {}; }, kValue, {"o is None", "required"}},
      {"q of integers",
       kda,
       [](Problem& p) { p.q = tensor<int32_t>({B, T, H, K}); },
       kType,
       {"q has type int32", "float32", "bfloat16", "float16"}},
      {"q of a type unknown", kda, [](Problem& p) { p.q.type = 99; }, kType, {"q has type"}},
      {"q of a negative type", kda, [](Problem& p) { p.q.type = -1; }, kType, {"q has type"}},
      {"k of another type",
       kda,
       [](Problem& p) { p.k = tensor<linattn::bf16>({B, T, H, K}); },
       kType,
       {"k has type bfloat16", "float32", "q"}},
      {"o of another type",
       kda,
       [](Problem& p) { p.o = tensor<linattn::f16>({B, T, HV, V}); },
       kType,
       {"o has type float16", "float32"}},
      {"q on another device",
       kda,
       [](Problem& p) { p.q.device_type = LINATTN_DEVICE_CUDA; },
       kType,
       {"q is on cuda:0", "cpu"}},
      {"state on another device",
       kda,
       [](Problem& p) { p.initial_state.device_type = LINATTN_DEVICE_CUDA; },
       kType,
       {"initial_state is on cuda:0", "cpu"}},
      {"rank 3",
       kda,
       [](Problem& p) { p.q = tensor<float>({B, T, H * K}); },
       kValue,
       {"q has shape [2,70,64]", "[B,T,H,K]"}},
      {"rank 0", kda, [](Problem& p) { p.q.rank = 0; }, kValue, {"q has 0 axes"}},
      {"rank 6", kda, [](Problem& p) { p.q.rank = 6; }, kValue, {"q has 6 axes", "5"}},
      {"negative size", kda, [](Problem& p) { p.q.size[1] = -70; }, kValue, {"q", "-70"}},
      {"negative stride", kda, [](Problem& p) { p.q.stride[1] = -64; }, kValue, {"q", "-64"}},
      {"span beyond 2^60",
       kda,
       [](Problem& p) { p.q.stride[0] = int64_t{1} << 61; },
       kValue,
       {"q of shape", "2^60"}},
      {"k of another length",
       kda,
       [](Problem& p) { p.k = tensor<float>({B, T - 1, H, K}); },
       kValue,
       {"k has shape [2,69,2,32]", "[2,70,2,32]"}},
      {"v of another batch",
       kda,
       [](Problem& p) { p.v = tensor<float>({B + 1, T, HV, V}); },
       kValue,
       {"v has shape [3,70,4,48]", "[2,70,4,48]"}},
      {"value heads",
       kda,
       [](Problem& p) { p.v = tensor<float>({B, T, 3, V}); },
       kValue,
       {"v has HV = 3", "H = 2"}},
      {"no heads",
       kda,
       [](Problem& p) { p.q = p.k = tensor<float>({B, T, 0, K}); },
       kValue,
       {"q has 0 heads"}},
      {"K too large",
       kda,
       [](Problem& p) { p.q = p.k = tensor<float>({B, T, H, 257}); },
       kValue,
       {"K = 257", "256"}},
      {"V of nothing",
       kda,
       [](Problem& p) { p.v = tensor<float>({B, T, HV, 0}); },
       kValue,
       {"V = 0", "1 to 256"}},
      {"output shares memory",
       kda,
       [](Problem& p) { p.o.stride[1] = 0; },
       kValue,
       {"o has strides", "share memory"}},

      {"gate missing", kda, [](Problem& p) { p.g = {}; }, kValue, {"g is None", "required"}},
      {"gate of query heads",
       kda,
       [](Problem& p) { p.g = tensor<float>({B, T, H, K}); },
       kValue,
       {"g has shape [2,70,2,32]", "[B,T,HV,K] = [2,70,4,32]"}},
      {"constant gate beside another",
       kda,
       [](Problem& p) { p.g_gamma = tensor<float>({HV}); },
       kValue,
       {"g_gamma", "[4]", "must be None"}},
      {"A_log without raw gate",
       kda,
       [](Problem& p) { p.A_log = tensor<float>({HV}); },
       kValue,
       {"A_log", "must be None"}},
      {"raw gate without A_log",
       kda,
       [](Problem& p) { p.gate_form = linattn::GateForm::softplus; },
       kValue,
       {"A_log is None", "required"}},
      {"A_log in bf16",
       kda,
       [](Problem& p) {
         p.gate_form = linattn::GateForm::softplus, p.A_log = tensor<linattn::bf16>({HV});
       },
       kType,
       {"A_log has type bfloat16", "float32"}},
      {"lower_bound out of range",
       kda,
       [](Problem& p) { p.gate_form = linattn::GateForm::bounded, p.lower_bound = -7; },
       kValue,
       {"lower_bound is -7", "[-5, 0)"}},
      {"lower_bound without raw gate",
       kda,
       [](Problem& p) { p.lower_bound = -5; },
       kValue,
       {"lower_bound is -5"}},
      {"beta of query heads",
       kda,
       [](Problem& p) { p.beta = tensor<float>({B, T, H}); },
       kValue,
       {"beta has shape [2,70,2]", "[B,T,HV] = [2,70,4]"}},
      {"beta in an additive family",
       simple_gla,
       [](Problem& p) { p.beta = tensor<float>({B, T, HV}); },
       kValue,
       {"beta", "must be None"}},
      {"sigmoid without beta",
       kda,
       [](Problem& p) { p.beta = {}, p.beta_form = linattn::BetaForm::sigmoid; },
       kValue,
       {"beta is None"}},

      {"state of the other layout",
       kda,
       [](Problem& p) { p.state_v_first = true; },
       kValue,
       {"initial_state has shape [2,4,32,48]", "[N,HV,V,K] = [2,4,48,32]"}},
      {"state of integers",
       kda,
       [](Problem& p) { p.final_state = tensor<int32_t>({B, HV, K, V}); },
       kType,
       {"final_state has type int32"}},
      {"flags without a state",
       kda,
       [](Problem& p) { p.initial_state = {}, p.has_initial_state = tensor<bool>({B}); },
       kValue,
       {"initial_state is None"}},
      {"state_every alone",
       kda,
       [](Problem& p) { p.state_every = 64; },
       kValue,
       {"state_every is 64", "intermediate states"}},
      {"state_every not of 64",
       kda,
       [](Problem& p) {
         p.state_every = 100, p.intermediate_states = tensor<float>({B, 1, HV, K, V});
       },
       kValue,
       {"state_every is 100", "multiple of 64"}},
      {"rows of intermediate states",
       kda,
       [](Problem& p) { p.intermediate_states = tensor<float>({B, 1, HV, K, V}); },
       kValue,
       {"intermediate_states has shape [2,1,4,32,48]", "[2,2,4,32,48]"}},

      {"packed batch",
       packed,
       [](Problem& p) {
         for (linattn_tensor* t : {&p.q, &p.k, &p.v, &p.g, &p.beta, &p.o}) t->size[0] = 2;
       },
       kValue,
       {"B = 2 with cu_seqlens", "B = 1"}},
      {"offsets in floats",
       packed,
       [](Problem& p) { p.cu_seqlens = tensor<float>({N + 1}); },
       kType,
       {"cu_seqlens has type float32", "int32, int64"}},
      {"one offset",
       packed,
       [](Problem& p) { p.cu_seqlens = tensor<int32_t>({1}); },
       kValue,
       {"cu_seqlens has shape [1]"}},
      {"states for packed sequences",
       packed,
       [](Problem& p) { p.final_state = tensor<float>({1, HV, K, V}); },
       kValue,
       {"final_state has shape [1,4,32,48]", "[3,4,32,48]"}},

      {"pool missing",
       pooled,
       [](Problem& p) { p.initial_state = {}; },
       kValue,
       {"initial_state is None", "pool"}},
      {"final state with a pool",
       pooled,
       [](Problem& p) { p.final_state = tensor<float>({B, HV, K, V}); },
       kValue,
       {"final_state", "in place"}},
      {"indices for another batch",
       pooled,
       [](Problem& p) { p.state_indices = tensor<int32_t>({B + 1}); },
       kValue,
       {"state_indices has shape [3]", "[2]"}},
      {"pool that is not contiguous inside",
       pooled,
       [](Problem& p) {
         p.initial_state = linattn::strided(LINATTN_F32, {P, HV, K, V}, {HV * K * V, V, HV * V, 1});
       },
       kValue,
       {"initial_state has strides", "contiguous"}},
      {"accepted counts with one column",
       pooled,
       [](Problem& p) { p.num_accepted_tokens = tensor<int32_t>({B}); },
       kValue,
       {"num_accepted_tokens", "[N,1+S]"}},
      {"more tokens than columns",
       pooled,
       [](Problem& p) {
         p.state_indices = tensor<int32_t>({B, 1 + S});
         for (linattn_tensor* t : {&p.q, &p.k, &p.v, &p.g, &p.beta, &p.o}) t->size[1] = 4;
       },
       kValue,
       {"3 columns", "T = 4"}},
      {"output indices without indices",
       kda,
       [](Problem& p) { p.output_state_indices = tensor<int32_t>({B}); },
       kValue,
       {"output_state_indices", "state_indices"}},
      {"null index without indices",
       kda,
       [](Problem& p) { p.null_state_index = 0; },
       kValue,
       {"null_state_index is 0"}},

      {"gradient in the forward pass",
       kda,
       [](Problem& p) { p.dq = p.q; },
       kValue,
       {"dq", "forward"}},
      {"recurrent backward",
       backward,
       [](Problem& p) { p.form = linattn::Form::recurrent; },
       kValue,
       {"form is recurrent"}},
      {"o in the backward pass",
       backward,
       [](Problem& p) { p.o = p.v; },
       kValue,
       {"o", "backward"}},
      {"do missing", backward, [](Problem& p) { p.do_ = {}; }, kValue, {"do is None"}},
      {"gradient of another shape",
       backward,
       [](Problem& p) { p.dk = tensor<float>({B, T, HV, K}); },
       kValue,
       {"dk has shape [2,70,4,32]", "[2,70,2,32]"}},
      {"gradient of what is not there",
       backward,
       [](Problem& p) { p.dA_log = tensor<float>({HV}); },
       kValue,
       {"A_log is None"}},
      {"gradient of no state",
       backward,
       [](Problem& p) { p.initial_state = {}; },
       kValue,
       {"initial_state is None"}},
      {"pool in the backward pass",
       backward,
       [](Problem& p) { p.state_indices = tensor<int32_t>({B}); },
       kValue,
       {"state_indices", "backward"}},
  };
  for (const Row& row : rows) {
    Problem problem = row.base();
    row.break_it(problem);
    expect(row.what, problem, row.status, row.words);
  }
}

void expect_accepted(const char* what, const Problem& problem) {
  try {
    linattn::Plan plan(problem);
    CHECK_THAT(!plan.implementation().empty(), "%s", what);
  } catch (const linattn::Error& error) {
    CHECK_THAT(false, "%s: %s", what, error.what());
  }
}

void legal_corners() {
  for (const auto base : {kda, simple_gla, packed, pooled, backward})
    expect_accepted("a problem as it stands", base());

  Problem p = kda();
  for (linattn_tensor* t : {&p.q, &p.k, &p.v, &p.g, &p.beta, &p.o}) t->size[1] = 0;
  expect_accepted("no tokens", p);

  p = kda();
  p.q.stride[0] = p.q.stride[1] = 0;  // expanded inputs are read, not written
  expect_accepted("an expanded input", p);

  p = kda();
  p.scale = 0;
  expect_accepted("scale 0", p);

  p = kda();
  p.intermediate_states = tensor<float>({B, 2, HV, K, V});
  expect_accepted("intermediate states", p);

  p = pooled();
  p.initial_state.stride[0] += 64;
  p.null_state_index = -100;
  expect_accepted("a padded pool with a null index", p);

  p = pooled();
  p.state_indices = tensor<int64_t>({B, 1 + S});
  p.num_accepted_tokens = tensor<int32_t>({B});
  expect_accepted("speculative columns", p);

  p = packed();
  p.initial_state = p.final_state = {};
  p.cu_seqlens = tensor<int32_t>({N + 1});
  expect_accepted("packed without states", p);
}

}  // namespace

int main() {
  broken_rules();
  legal_corners();
  return check::finish();
}
