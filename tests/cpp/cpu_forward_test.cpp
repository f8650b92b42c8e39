// The CPU forward, chunk form, against the oracle: every kind of problem, sizes around every block
// boundary, types, layouts, pools, and the bitwise promises.
#include <algorithm>

#include "cases.h"

using namespace call;

namespace {

constexpr const char* kCpu = "cpu";
constexpr const char* kReference = "reference";

double worst = 0;

// Outputs in fp32, so that the error is the computation's own.
void check_against_oracle(Call call, double tolerance, const std::string& what) {
  Call wanted = call;
  for (Name name : {kQ, kK, kV})  // o has the type of q
    wanted[name] = convert(call[name], LINATTN_F32);
  wanted[kO] = make(LINATTN_F32, call[kO].size);
  if (!run(call, kCpu) || !run(wanted, "reference")) return;
  for (Name name : {kO, kHt, kStates}) {
    if (call[name].type == LINATTN_NONE) continue;
    const double off = error(call[name].values(), wanted[name].values());
    if (call[name].type == LINATTN_F32) worst = std::max(worst, off);
    CHECK_THAT(off < tolerance, "tensor %d is off by %g: %s", name, off, what.c_str());
  }
}

std::string sizes(const Case& c) {
  return text(c) + " T " + std::to_string(c.tokens) + " K " + std::to_string(c.dim_k) + " V " +
         std::to_string(c.dim_v);
}

void every_size() {
  const int64_t dims[][2] = {{3, 5}, {16, 16}, {24, 40}, {1, 1}, {64, 33}, {128, 128}, {100, 256}};
  const int64_t tokens[] = {1, 6, 7, 8, 16, 17, 63, 64, 65, 130};
  uint32_t seed = 0;
  for (Case c : all_cases()) {
    std::tie(c.dim_k, c.dim_v) = std::pair{dims[seed % 7][0], dims[seed % 7][1]};
    c.tokens = tokens[seed % 10];
    c.heads = 1 + seed % 2, c.group = 1 + seed % 3;
    ++seed;
    if (is_delta(c) && seed % 2) c.max_beta = 2;
    check_against_oracle(forward_of(c, seed), 1e-5, sizes(c));
  }
}

}  // namespace

int main() {
  every_size();
  std::printf("worst fp32 error %.2g\n", worst);
  return check::finish();
}
