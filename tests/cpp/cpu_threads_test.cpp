// The CPU kernels on more threads than there is work, and on one: the forward pass gives the same
// bits, the backward pass the same gradients within rounding and the same bits when repeated. Run
// under the thread sanitizer as well, so it is small.
#include "cases.h"
#include "core/thread_pool.h"

using namespace call;

namespace {

void at_every_number_of_threads(const Call& call, double tolerance, const std::string& what) {
  linattn::set_num_threads(1);
  Call alone = call;
  if (!run(alone, "cpu")) return;
  for (const int threads : {2, 4}) {
    linattn::set_num_threads(threads);
    Call first = call, again = call;
    if (!run(first, "cpu") || !run(again, "cpu")) return;
    for (int name = kO; name < kNames; ++name) {
      const Tensor& t = first.tensor[name];
      if (t.type == LINATTN_NONE || name == kDo || name == kDht) continue;
      CHECK_THAT(same_bits(t, again.tensor[name]), "tensor %d, %d threads, repeated: %s", name,
                 threads, what.c_str());
      if (tolerance == 0) {
        CHECK_THAT(same_bits(t, alone.tensor[name]), "tensor %d, %d threads: %s", name, threads,
                   what.c_str());
      } else {
        const double off = error(t.values(), alone.tensor[name].values());
        CHECK_THAT(off < tolerance, "tensor %d, %d threads, off by %g: %s", name, threads, off,
                   what.c_str());
      }
    }
  }
  linattn::set_num_threads(0);
}

// Fewer chains than threads (one head), and more.
void chunks() {
  uint32_t seed = 100;
  const std::vector<Case> all = all_cases();
  for (size_t i = 0; i < all.size(); i += 5, ++seed) {
    Case c = all[i];
    c.tokens = 150, c.dim_k = 24, c.dim_v = 40;
    if (seed % 2) c.batch = c.heads = c.group = 1;
    at_every_number_of_threads(forward_of(c, seed), 0, "forward, " + text(c));
    at_every_number_of_threads(backward_of(c, seed), 1e-5, "backward, " + text(c));
  }
}

void decode() {
  for (const uint32_t seed : {1u, 2u}) {
    Case c;
    c.tokens = 2, c.dim_k = 24, c.dim_v = 40, c.batch = 5;
    Call call = forward_of(c, seed);
    call.problem.form = LINATTN_RECURRENT;
    at_every_number_of_threads(call, 0, "decode");
  }
}

}  // namespace

int main() {
  chunks();
  decode();
  return check::finish();
}
