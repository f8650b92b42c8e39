#include "cuda/portable/decode.plan.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace linattn::cuda {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxHeadDim = 256;

int64_t row_stride(const Problem& p, const StateView& view) {
  return p.state_v_first ? view.v : view.k;
}

std::string state_reason(const Problem& p, const StateView& view, const char* name) {
  if (!view.present()) return "";
  const int64_t inner = p.state_v_first ? view.k : view.v;
  const int64_t inner_size = p.state_v_first ? p.dim_k : p.dim_v;
  if (inner != 1 && inner_size != 1)
    return format_text("%s has stride %lld along its last axis; allowed: 1", name,
                       static_cast<long long>(inner));
  const int64_t row = row_stride(p, view);
  if (row < 0 || row * size_of(view.type) * kMaxHeadDim > kMaxInt32)
    return format_text(
        "%s has stride %lld along its axis before the last; allowed: 0 to 2^31 "
        "bytes over %lld",
        name, static_cast<long long>(row), static_cast<long long>(kMaxHeadDim));
  return "";
}

bool multiples_of_four(std::initializer_list<int64_t> strides) {
  return std::all_of(strides.begin(), strides.end(), [](int64_t s) { return s % 4 == 0; });
}

// The stride of an axis of one element is whatever the caller left there.
int64_t used(int64_t stride, int64_t size) { return size > 1 ? stride : 0; }

bool tokens_fit(const Problem& p, const TokenView& view, int64_t heads) {
  return !view.present() || multiples_of_four({used(view.b, p.batch), used(view.t, p.num_tokens),
                                               used(view.h, heads)});
}

bool states_fit(const Problem& p, const StateView& view) {
  return !view.present() ||
         multiples_of_four({view.n, used(view.h, p.heads_v), row_stride(p, view)});
}

bool without_gaps(const Problem& p, const StateView& view) {
  return !view.present() || row_stride(p, view) == (p.state_v_first ? p.dim_k : p.dim_v);
}

bool strides_fit_32_bits(const Problem& p) {
  const auto fits = [](const auto& view, std::initializer_list<int64_t> strides) {
    return std::all_of(strides.begin(), strides.end(),
                       [&](int64_t s) { return std::abs(s) * size_of(view.type) <= kMaxInt32; });
  };
  for (const TokenView* view : {&p.q, &p.k, &p.v, &p.g, &p.beta, &p.o})
    if (!fits(*view, {view->b, view->t, view->h})) return false;
  for (const StateView* view : {&p.initial_state, &p.final_state})
    if (!fits(*view, {view->n, view->h})) return false;
  return fits(p.A_log, {p.A_log.h}) && fits(p.dt_bias, {p.dt_bias.h}) && p.num_slots <= kMaxInt32;
}

bool aligned(const void* pointer, Type type) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(4 * size_of(type)) == 0;
}

// Tokens of all batches at equal distances.
bool batches_follow(const Problem& p, const TokenView& view) {
  return !view.present() || p.batch == 1 || p.num_tokens == 1 || view.b == p.num_tokens * view.t;
}

bool batches_follow(const Problem& p) {
  if (p.batch * p.num_tokens > kMaxInt32) return false;  // the kernel counts them in 32 bits
  for (const TokenView* view : {&p.q, &p.k, &p.v, &p.g, &p.beta, &p.o})
    if (!batches_follow(p, *view)) return false;
  return true;
}

TokenStride token_stride(const Problem& p, const TokenView& view) {
  const int64_t size = size_of(view.type);
  const bool along_t = p.varlen() || (batches_follow(p) && p.num_tokens > 1);
  return {(along_t ? view.t : view.b) * size, view.t * size, view.h * size};
}

// Read by the exact kernels alone, which strides_fit_32_bits() guards.
ShortTokenStride short_stride(const TokenStride& stride) {
  return {static_cast<int32_t>(stride.first), static_cast<int32_t>(stride.h)};
}

StateStride state_stride(const Problem& p, const StateView& view) {
  const int64_t size = size_of(view.type);
  return {view.n * size, view.h * size, static_cast<int32_t>(row_stride(p, view) * size)};
}

int32_t clamp_int32(int64_t x) { return static_cast<int32_t>(std::min(x, kMaxInt32)); }

}  // namespace

std::string decode_reject(const Problem& p, const DeviceFacts& facts) {
  if (facts.compute_capability < 80)
    return format_text("needs compute capability 8.0, the device has %d.%d",
                       facts.compute_capability / 10, facts.compute_capability % 10);
  const struct {
    const char* name;
    int64_t stride, size;
  } inner[] = {
      {"q", p.q.d, p.dim_k},
      {"k", p.k.d, p.dim_k},
      {"v", p.v.d, p.dim_v},
      {"o", p.o.d, p.dim_v},
      {"g", p.gate == Gate::channel ? p.g.d : 1, p.dim_k},
      {"dt_bias", p.gate == Gate::channel && p.dt_bias.present() ? p.dt_bias.k : 1, p.dim_k}};
  for (const auto& row : inner)
    if (row.stride != 1 && row.size != 1)
      return format_text("%s has stride %lld along its last axis; allowed: 1", row.name,
                         static_cast<long long>(row.stride));
  const struct {
    const char* name;
    const StateView& view;
  } states[] = {{"initial_state", p.initial_state}, {"final_state", p.final_state}};
  for (const auto& row : states)
    if (std::string reason = state_reason(p, row.view, row.name); !reason.empty()) return reason;
  if (p.num_tokens > kMaxInt32 || p.state_columns > kMaxInt32)
    return "tokens or columns of state_indices exceed 2^31";
  // The scalar kernel has the smallest tiles, so it bounds the grid of both.
  if (choose_decode(p, false).teams > kMaxInt32)
    return format_text("N * HV = %lld needs a grid beyond 2^31",
                       static_cast<long long>(p.num_sequences * p.heads_v));
  return "";
}

bool decode_strides_fit_vectors(const Problem& p) {
  if (p.initial_state.present() && p.final_state.present() &&
      p.initial_state.type != p.final_state.type)
    return false;
  return p.dim_k % 4 == 0 && (p.state_v_first || p.dim_v % 4 == 0) &&
         tokens_fit(p, p.q, p.heads_qk) && tokens_fit(p, p.k, p.heads_qk) &&
         (p.gate != Gate::channel ||
          (tokens_fit(p, p.g, p.heads_v) &&
           (!p.dt_bias.present() || used(p.dt_bias.h, p.heads_v) % 4 == 0))) &&
         states_fit(p, p.initial_state) && states_fit(p, p.final_state);
}

bool decode_pointers_fit_vectors(const Problem& p, const linattn_args& args) {
  const bool gate =
      p.gate != Gate::channel || (aligned(args.g, p.g.type) &&
                                  (!p.dt_bias.present() || aligned(args.dt_bias, p.dt_bias.type)));
  return gate && aligned(args.q, p.q.type) && aligned(args.k, p.k.type) &&
         (!p.initial_state.present() || aligned(args.initial_state, p.initial_state.type)) &&
         (!p.final_state.present() || aligned(args.final_state, p.final_state.type));
}

DecodeChoice choose_decode(const Problem& p, bool vectors) {
  const Type state = p.initial_state.present() ? p.initial_state.type
                     : p.final_state.present() ? p.final_state.type
                                               : Type::f32;
  const bool exact = vectors && (state == Type::f32 || state == Type::bf16) &&
                     (p.dim_k == 64 || p.dim_k == 128 || p.dim_k == 256) && p.dim_v == p.dim_k &&
                     p.q.type == Type::bf16 && p.g.type != Type::f16 && p.beta.type != Type::f16 &&
                     without_gaps(p, p.initial_state) && without_gaps(p, p.final_state) &&
                     strides_fit_32_bits(p) && batches_follow(p);
  // Of a varlen call the average is all that is known here. Another order of sums is another
  // rounding, which must not depend on the rest of a batch where that was asked.
  const bool several =
      !p.batch_invariant && (p.varlen() ? p.num_tokens > p.num_sequences : p.num_tokens > 1);
  DecodeChoice choice{};
  choice.variant = {p.state_v_first,
                    vectors && state == Type::f32 ? kStateF32
                    : exact                       ? kStateBf16
                                                  : kStateAny,
                    !exact || p.update == Update::delta, !exact || p.gate == Gate::channel};
  const int dim = exact ? static_cast<int>(p.dim_k) : 0;
  choice.shape = decode_shape(p.state_v_first, choice.variant.state, dim, several && dim == 128);
  const DecodeShape& shape = kDecodeShapes[choice.shape];
  const int64_t slabs = (p.dim_v + shape.tile_v() - 1) / shape.tile_v();
  // One more sequence in a varlen call: the rows past the last.
  choice.teams = (p.num_sequences + (p.varlen() ? 1 : 0)) * p.heads_v * slabs;
  choice.grid = (choice.teams + shape.teams - 1) / shape.teams;
  return choice;
}

DecodeParams decode_params(const Problem& p, const linattn_args& args, const DecodeChoice& choice) {
  const int tile_v = kDecodeShapes[choice.shape].tile_v();
  const auto index_stride = [](const IndexView& view) { return view.n * size_of(view.type); };
  const auto column_stride = [](const IndexView& view) { return view.c * size_of(view.type); };
  const auto in = [](const auto& view, const void* pointer) {
    return view.present() ? static_cast<const char*>(pointer) : nullptr;
  };
  DecodeParams d{};
  d.q = in(p.q, args.q);
  d.k = in(p.k, args.k);
  d.v = in(p.v, args.v);
  d.g = in(p.g, args.g);
  d.g_gamma = in(p.g_gamma, args.g_gamma);
  d.beta = in(p.beta, args.beta);
  d.A_log = in(p.A_log, args.A_log);
  d.dt_bias = in(p.dt_bias, args.dt_bias);
  d.state_in = in(p.initial_state, args.initial_state);
  d.state_out = static_cast<char*>(p.pool()                  ? args.initial_state
                                   : p.final_state.present() ? args.final_state
                                                             : nullptr);
  d.o = static_cast<char*>(args.o);
  d.cu_seqlens = in(p.cu_seqlens, args.cu_seqlens);
  d.state_indices = in(p.state_indices, args.state_indices);
  d.output_indices = in(p.output_state_indices, args.output_state_indices);
  d.has_initial = in(p.has_initial_state, args.has_initial_state);
  d.num_accepted = in(p.num_accepted_tokens, args.num_accepted_tokens);
  const auto flag = [&d](bool on, DecodeFlag bit) { d.flags |= on ? bit : 0u; };
  flag(p.varlen(), kDecodeVarlen);
  flag(p.pool(), kDecodePool);
  flag(p.state_columns > 0, kDecodeColumns);
  flag(p.num_accepted_tokens.present(), kDecodeAccepted);
  flag(p.output_state_indices.present(), kDecodeSeparate);
  flag(p.has_initial_state.present(), kDecodeHasInitial);
  flag(p.has_null_index, kDecodeNullIndex);
  flag(p.initial_state.present(), kDecodeReads);
  flag(p.pool() || p.final_state.present(), kDecodeWrites);
  flag(p.qk_norm, kDecodeNorm);
  flag(p.update == Update::additive, kDecodeAdditive);
  flag(p.beta.present(), kDecodeBeta);
  flag(p.A_log.present(), kDecodeALog);
  flag(p.dt_bias.present(), kDecodeBias);
  flag(p.q.type == Type::f32, kDecodePrecise);
  flag(p.cu_seqlens.type == Type::i64, kDecodeCu64);
  flag(p.state_indices.type == Type::i64, kDecodeIndex64);
  flag(p.output_state_indices.type == Type::i64, kDecodeOutput64);
  flag(p.num_accepted_tokens.type == Type::i64, kDecodeAccepted64);

  d.q_stride = token_stride(p, p.q);
  d.k_stride = token_stride(p, p.k);
  d.v_stride = token_stride(p, p.v);
  d.g_stride = token_stride(p, p.g);
  d.beta_stride = token_stride(p, p.beta);
  d.o_stride = token_stride(p, p.o);
  d.q_short = short_stride(d.q_stride);
  d.k_short = short_stride(d.k_stride);
  d.v_short = short_stride(d.v_stride);
  d.g_short = short_stride(d.g_stride);
  d.beta_short = short_stride(d.beta_stride);
  d.o_short = short_stride(d.o_stride);
  const StateView& out = p.pool() ? p.initial_state : p.final_state;
  d.in_stride = state_stride(p, p.initial_state);
  d.out_stride = state_stride(p, out);
  d.g_gamma_stride = p.g_gamma.h * size_of(p.g_gamma.type);
  d.A_log_stride = p.A_log.h * size_of(p.A_log.type);
  d.dt_bias_stride = p.dt_bias.h * size_of(p.dt_bias.type);
  d.cu_stride = index_stride(p.cu_seqlens);
  d.has_stride = index_stride(p.has_initial_state);
  d.accepted_stride = index_stride(p.num_accepted_tokens);
  d.index_stride = index_stride(p.state_indices);
  d.index_column_stride = column_stride(p.state_indices);
  d.output_stride = index_stride(p.output_state_indices);
  d.output_column_stride = column_stride(p.output_state_indices);
  d.num_slots = p.num_slots;
  d.null_index = p.null_index;
  d.num_tokens = clamp_int32(p.num_tokens);
  d.tokens_apart = !p.varlen() && batches_follow(p) ? d.num_tokens : 1;
  d.state_columns = clamp_int32(p.state_columns);

  d.scale = static_cast<float>(p.scale);
  d.lower_bound = static_cast<float>(p.lower_bound);
  d.slabs = FastDivisor(static_cast<uint32_t>((p.dim_v + tile_v - 1) / tile_v));
  d.heads_v = FastDivisor(static_cast<uint32_t>(p.heads_v));
  d.group = FastDivisor(static_cast<uint32_t>(p.group()));
  d.num_teams = static_cast<uint32_t>(choice.teams);
  d.num_sequences = static_cast<int32_t>(p.num_sequences);
  d.dim_k = static_cast<int32_t>(p.dim_k);
  d.dim_v = static_cast<int32_t>(p.dim_v);

  d.token_type = static_cast<int32_t>(p.q.type);
  d.g_type = static_cast<int32_t>(p.g.type);
  d.beta_type = static_cast<int32_t>(p.beta.type);
  d.dt_bias_type = static_cast<int32_t>(p.dt_bias.type);
  d.in_type = static_cast<int32_t>(p.initial_state.type);
  d.out_type = static_cast<int32_t>(out.type);
  d.gate = static_cast<int32_t>(p.gate);
  d.gate_form = static_cast<int32_t>(p.gate_form);
  d.beta_form = static_cast<int32_t>(p.beta_form);
  return d;
}

}  // namespace linattn::cuda
