// The decode kernel's own source, run lane by lane on the host, against the oracle; and the host
// side that chooses and feeds it. Needs neither nvcc nor a GPU.
#include <utility>

#include "cuda/portable/decode.cuh"
#include "cuda/portable/decode.plan.h"
#include "decode_calls.h"
#include "emulated.h"
#include "simt/simt.h"

using namespace call;
using linattn::cuda::DecodeChoice;
using linattn::cuda::DecodeParams;

namespace {

template <int... kPairs>
bool launch_emulated(const DecodeChoice& choice, const DecodeParams& params,
                     std::integer_sequence<int, kPairs...>) {
  using namespace linattn::cuda;
  bool found = false;
  const auto consider = [&]<int kVariant, int kShape>() {
    if constexpr (decode_is_compiled(decode_variant(kVariant), kShape)) {
      if (found || choice.variant.number() != kVariant || choice.shape != kShape) return;
      found = true;
      simt::launch(recurrent_forward_portable<kVariant, kShape>, choice.grid,
                   kDecodeShapes[kShape].threads(), params);
    }
  };
  (consider.template operator()<kPairs / kDecodeShapeCount, kPairs % kDecodeShapeCount>(), ...);
  return found;
}

int runs[linattn::cuda::kDecodeShapeCount] = {};

bool run_emulated(Call& call) {
  linattn::Problem problem;
  if (!plan(call, &problem)) return false;
  const std::string reason = linattn::cuda::decode_reject(problem, facts_of(90));
  CHECK_THAT(reason.empty(), "%s", reason.c_str());
  if (!reason.empty()) return false;
  const linattn_args args = args_of(call);
  const bool vectors = linattn::cuda::decode_strides_fit_vectors(problem) &&
                       linattn::cuda::decode_pointers_fit_vectors(problem, args);
  const DecodeChoice choice = linattn::cuda::choose_decode(problem, vectors);
  ++runs[choice.shape];
  const DecodeParams params = linattn::cuda::decode_params(problem, args, choice);
  const bool found =
      launch_emulated(choice, params,
                      std::make_integer_sequence<int, linattn::cuda::kDecodeVariants *
                                                          linattn::cuda::kDecodeShapeCount>{});
  CHECK(found);
  return found;
}

void division() {
  std::mt19937 random(1);
  for (uint32_t d : {1u, 2u, 3u, 5u, 7u, 8u, 16u, 24u, 96u, 127u, 128u, 65535u, 1u << 20,
                     (1u << 20) + 1, 0x7fffffffu})
    for (int i = 0; i < 2000; ++i) {
      const uint32_t x = i < 4 ? 0x7fffffffu - static_cast<uint32_t>(i) : random() & 0x7fffffffu;
      const linattn::cuda::FastDivisor divisor(d);
      CHECK_THAT(linattn::cuda::decode::divide(x, divisor) == x / d, "%u / %u", x, d);
    }
}

// What the kernel does not take is refused with the tensor's name, before anything is launched.
void refusals() {
  const auto reason = [](const auto& change, int compute_capability = 90) {
    Case c = family_case(LINATTN_KDA);
    c.heads = 2;
    Call call = recurrent(c, 1);
    change(call);
    linattn::Problem problem;
    return plan(call, &problem)
               ? linattn::cuda::decode_reject(problem, facts_of(compute_capability))
               : std::string();
  };
  const auto starts = [](const std::string& text, const char* with) {
    CHECK_THAT(text.rfind(with, 0) == 0, "\"%s\" does not start with \"%s\"", text.c_str(), with);
  };
  CHECK(reason([](Call&) {}).empty());
  starts(reason([](Call&) {}, 75), "needs compute capability 8.0, the device has 7.5");
  starts(reason([](Call& c) { c[kQ] = convert(c[kQ], LINATTN_F32, {2, 3, 1, 0}); }),
         "q has stride");
  starts(reason([](Call& c) { c[kG] = convert(c[kG], LINATTN_F32, {}, 1); }), "g has stride 2");
  starts(reason([](Call& c) { c[kH0] = convert(c[kH0], LINATTN_F32, {2, 3, 1, 0}); }),
         "initial_state has stride");
  starts(reason([](Call& c) { c[kHt] = convert(c[kHt], LINATTN_F32, {}, 1); }),
         "final_state has stride 2");
}

// Offsets beyond 2^31 elements reach the parameters whole.
void large_strides() {
  Case c = family_case(LINATTN_KDA);
  Call call = recurrent(c, 1);
  call[kQ].stride[1] = (1ll << 33) + 4;
  call[kHt].stride[0] = 1ll << 34;
  linattn::Problem problem;
  if (!plan(call, &problem)) return;
  const linattn_args args{};
  const DecodeChoice choice = linattn::cuda::choose_decode(problem, true);
  const DecodeParams params = linattn::cuda::decode_params(problem, args, choice);
  CHECK(params.q_stride.t == ((1ll << 33) + 4) * 4);
  CHECK(params.out_stride.n == (1ll << 34) * 4);
  CHECK(linattn::cuda::decode_strides_fit_vectors(problem));
  call[kQ].stride[1] += 2;
  if (plan(call, &problem)) CHECK(!linattn::cuda::decode_strides_fit_vectors(problem));
}

}  // namespace

int main() {
  division();
  refusals();
  large_strides();
  for (const DecodeCall& decode : decode_calls(false)) compare_with_oracle(decode, run_emulated);
  for (int shape = 0; shape < linattn::cuda::kDecodeShapesUsed; ++shape)
    CHECK_THAT(runs[shape] > 3, "shape %d ran %d times", shape, runs[shape]);
  return check::finish();
}
