// A gated delta rule layer (GDN) as a server runs it: one chunked prefill of the prompt, then token
// by token from the carried state. The result is compared with one run over the whole sequence.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <linattn/linattn.hpp>
#include <random>
#include <vector>

namespace {

constexpr int64_t kHeadsQk = 2, kHeadsV = 4, kDimK = 64, kDimV = 32;
constexpr int64_t kPrompt = 150, kNew = 20, kTokens = kPrompt + kNew;

struct Inputs {
  std::vector<float> q, k, v, g, beta;
};

Inputs random_inputs() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0.05f, 0.95f);
  Inputs x{std::vector<float>(kTokens * kHeadsQk * kDimK),
           std::vector<float>(kTokens * kHeadsQk * kDimK),
           std::vector<float>(kTokens * kHeadsV * kDimV), std::vector<float>(kTokens * kHeadsV),
           std::vector<float>(kTokens * kHeadsV)};
  for (auto* values : {&x.q, &x.k, &x.v})
    for (float& value : *values) value = normal(random);
  for (float& value : x.g) value = std::log(uniform(random));  // natural-log decay
  for (float& value : x.beta) value = uniform(random);
  return x;
}

// `tokens` tokens in one of the two forms, from a state to a state, [1, HV, K, V].
linattn::Problem describe(linattn::Form form, int64_t tokens) {
  using linattn::tensor;
  return {
      .family = linattn::Family::gdn,
      .form = form,
      .gate = linattn::Gate::head,
      .qk_norm = true,
      .q = tensor<float>({1, tokens, kHeadsQk, kDimK}),
      .k = tensor<float>({1, tokens, kHeadsQk, kDimK}),
      .v = tensor<float>({1, tokens, kHeadsV, kDimV}),
      .g = tensor<float>({1, tokens, kHeadsV}),
      .beta = tensor<float>({1, tokens, kHeadsV}),
      .initial_state = tensor<float>({1, kHeadsV, kDimK, kDimV}),
      .o = tensor<float>({1, tokens, kHeadsV, kDimV}),
      .final_state = tensor<float>({1, kHeadsV, kDimK, kDimV}),
  };
}

// Runs the plan on the tokens from `first` on.
void run(const linattn::Plan& plan, linattn::Workspace& workspace, const Inputs& x, int64_t first,
         int64_t tokens, std::vector<float>& state, std::vector<float>& o) {
  std::vector<float> next(state.size());
  const auto rows = [&](const std::vector<float>& all, int64_t width) {
    return std::span(all).subspan(first * width, tokens * width);
  };
  plan.run({
      .workspace = workspace,
      .q = rows(x.q, kHeadsQk * kDimK),
      .k = rows(x.k, kHeadsQk * kDimK),
      .v = rows(x.v, kHeadsV * kDimV),
      .g = rows(x.g, kHeadsV),
      .beta = rows(x.beta, kHeadsV),
      .initial_state = state,
      .o = std::span(o).subspan(first * kHeadsV * kDimV, tokens * kHeadsV * kDimV),
      .final_state = next,
  });
  state.swap(next);
}

}  // namespace

int main() try {
  const Inputs x = random_inputs();
  const std::size_t state_size = kHeadsV * kDimK * kDimV;

  const linattn::Plan prefill(describe(linattn::Form::chunk, kPrompt));
  const linattn::Plan decode(describe(linattn::Form::recurrent, 1));
  linattn::Workspace prefill_space(prefill), decode_space(decode);
  std::printf("linattn %s: prefill by %s (%zu bytes of workspace), decode by %s\n",
              linattn::version().c_str(), prefill.implementation().c_str(),
              prefill.workspace_bytes(), decode.implementation().c_str());

  std::vector<float> state(state_size), o(kTokens * kHeadsV * kDimV);
  run(prefill, prefill_space, x, 0, kPrompt, state, o);
  for (int64_t token = kPrompt; token < kTokens; ++token)
    run(decode, decode_space, x, token, 1, state, o);

  const linattn::Plan whole(describe(linattn::Form::chunk, kTokens));
  linattn::Workspace whole_space(whole);
  std::vector<float> whole_state(state_size), whole_o(o.size());
  run(whole, whole_space, x, 0, kTokens, whole_state, whole_o);

  double error = 0, norm = 0;
  for (std::size_t i = 0; i < o.size(); ++i) {
    error += std::pow(o[i] - whole_o[i], 2);
    norm += std::pow(whole_o[i], 2);
  }
  const double relative = std::sqrt(error / norm);
  std::printf("%lld prompt + %lld new tokens: relative difference from one run %.1e\n",
              static_cast<long long>(kPrompt), static_cast<long long>(kNew), relative);

  // What a mistake looks like: 4 value heads cannot share 3 query heads.
  try {
    auto wrong = describe(linattn::Form::chunk, kPrompt);
    wrong.q = wrong.k = linattn::tensor<float>({1, kPrompt, 3, kDimK});
    linattn::Plan plan(wrong);
    std::puts("a wrong problem was accepted");
    return 1;
  } catch (const linattn::InvalidValue& refused) {
    std::printf("a wrong problem is refused: %s\n", refused.what());
  }
  return relative < 1e-5 ? 0 : 1;
} catch (const linattn::Error& error) {
  std::fprintf(stderr, "linattn: %s\n", error.what());
  return 1;
}
