// The oracle's backward against central differences of its forward, for every input of every kind
// of problem.
#include "cases.h"

using namespace call;

namespace {

double inner(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.count(); ++i) sum += a.get(i) * b.get(i);
  return sum;
}

// Fourth order, step 1/16: truncation about 1e-6 of the value, rounding of the fp32 outputs about
// 1e-5 of it.
std::vector<double> differences(Planned& forward, Call& call, const Call& backward, Name input) {
  const double step = 1.0 / 16;
  std::vector<double> gradient;
  for (int64_t i = 0; i < call[input].count(); ++i) {
    const double x = call[input].get(i);
    const auto loss = [&](double at) {
      call[input].set(i, at);
      forward.run();
      const double value = inner(call[kO], backward[kDo]) + inner(call[kHt], backward[kDht]);
      call[input].set(i, x);
      return value;
    };
    gradient.push_back(
        (8 * (loss(x + step) - loss(x - step)) - (loss(x + 2 * step) - loss(x - 2 * step))) /
        (12 * step));
  }
  return gradient;
}

double worst = 0;

void check_gradients(const Case& c, uint32_t seed) {
  Call backward = build(c, seed);
  Call call = backward;
  add_forward_outputs(call, c);
  add_backward_tensors(backward, c, seed + 1);
  if (!run(backward, "reference")) return;
  Planned forward(call, "reference");
  for (const auto& [name, input, gradient] : {std::tuple{"q", kQ, kDq},
                                              {"k", kK, kDk},
                                              {"v", kV, kDv},
                                              {"g", kG, kDg},
                                              {"beta", kBeta, kDbeta},
                                              {"A_log", kALog, kDALog},
                                              {"dt_bias", kDtBias, kDdtBias},
                                              {"initial_state", kH0, kDh0}}) {
    if (call[input].type == LINATTN_NONE) continue;
    const std::vector<double> wanted = differences(forward, call, backward, input);
    const double off = error(backward[gradient].values(), wanted);
    worst = std::max(worst, off);
    CHECK_THAT(off < 1e-4, "gradient of %s is off by %g: %s", name, off, text(c).c_str());
  }
}

}  // namespace

int main() {
  linattn_set_num_threads(1);
  uint32_t seed = 1;
  for (const Case& c : all_cases()) check_gradients(c, seed += 2);
  std::printf("worst relative error %.2g\n", worst);
  return check::finish();
}
