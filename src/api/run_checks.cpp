#include "api/run_checks.h"

#include <algorithm>
#include <cmath>

#include "recurrence/element.h"
#include "recurrence/sequences.h"

namespace linattn {

namespace {

// Bytes [begin, end) that a tensor of tokens spans. For the axes heads, tokens, batch: the step, 0
// where there is one element, whose stride may be anything, and what all axes inside span.
struct Span {
  const char* name;
  uintptr_t begin, end;
  int64_t stride[3], inside[3];
};

Span span_of(const char* name, const TokenView& view, const void* data, int64_t heads, int64_t dim,
             const Problem& p) {
  const int64_t bytes = size_of(view.type);
  const int64_t sizes[3] = {heads, p.num_tokens, p.batch}, strides[3] = {view.h, view.t, view.b};
  const auto begin = reinterpret_cast<uintptr_t>(data);
  Span span{name, begin, begin, {}, {}};
  int64_t all = bytes + (dim > 1 ? (dim - 1) * view.d * bytes : 0);
  for (int axis = 0; axis < 3; ++axis) {
    span.inside[axis] = all;
    span.stride[axis] = sizes[axis] > 1 ? strides[axis] * bytes : 0;
    all += (sizes[axis] - 1) * span.stride[axis];
  }
  span.end = begin + static_cast<uintptr_t>(all);
  return span;
}

// Neighbouring slices of one buffer, of each head, token or batch, share its range and no byte.
bool share_memory(const Span& a, const Span& b) {
  if (a.end <= b.begin || b.end <= a.begin) return false;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t period = a.stride[axis];
    bool repeats = period > 0 && b.stride[axis] == period;
    for (int outer = axis + 1; outer < 3 && repeats; ++outer)
      repeats = a.stride[outer] == b.stride[outer] && a.stride[outer] % period == 0;
    if (!repeats) continue;
    const auto apart = static_cast<int64_t>(b.begin - a.begin);
    const int64_t at = (apart % period + period) % period;
    if (at >= a.inside[axis] && at + b.inside[axis] <= period) return false;
  }
  return true;
}

// Values are read while others are written, so an output must have memory of its own.
Status check_overlaps(const Problem& p, const linattn_args& args) {
  if (p.batch * p.num_tokens == 0) return LINATTN_OK;
  const int64_t channels = p.gate == Gate::channel ? p.dim_k : 1;
  Span inputs[6], outputs[6];
  int num_inputs = 0, num_outputs = 0;
  const auto add = [&](Span* spans, int* count, const char* name, const TokenView& view,
                       const void* data, int64_t heads, int64_t dim) {
    if (view.present()) spans[(*count)++] = span_of(name, view, data, heads, dim, p);
  };
  add(inputs, &num_inputs, "q", p.q, args.q, p.heads_qk, p.dim_k);
  add(inputs, &num_inputs, "k", p.k, args.k, p.heads_qk, p.dim_k);
  add(inputs, &num_inputs, "v", p.v, args.v, p.heads_v, p.dim_v);
  add(inputs, &num_inputs, "g", p.g, args.g, p.heads_v, channels);
  add(inputs, &num_inputs, "beta", p.beta, args.beta, p.heads_v, 1);
  add(inputs, &num_inputs, "do", p.do_, args.do_, p.heads_v, p.dim_v);
  add(outputs, &num_outputs, "o", p.o, args.o, p.heads_v, p.dim_v);
  add(outputs, &num_outputs, "dq", p.dq, args.dq, p.heads_qk, p.dim_k);
  add(outputs, &num_outputs, "dk", p.dk, args.dk, p.heads_qk, p.dim_k);
  add(outputs, &num_outputs, "dv", p.dv, args.dv, p.heads_v, p.dim_v);
  add(outputs, &num_outputs, "dg", p.dg, args.dg, p.heads_v, channels);
  add(outputs, &num_outputs, "dbeta", p.dbeta, args.dbeta, p.heads_v, 1);
  for (int o = 0; o < num_outputs; ++o)
    for (int i = 0; i < num_inputs; ++i)
      LINATTN_REQUIRE(!share_memory(outputs[o], inputs[i]), LINATTN_INVALID_VALUE,
                      "%s shares memory with %s; an output must have memory of its own",
                      outputs[o].name, inputs[i].name);
  return LINATTN_OK;
}

}  // namespace

Status check_pointers(const Problem& p, const linattn_args& args) {
  const bool tokens = p.batch * p.num_tokens > 0;
  const bool sequences = p.num_sequences > 0;
  const struct {
    const char* name;
    bool needed;
    const void* pointer;
  } rows[] = {
      {"q", tokens, args.q},
      {"k", tokens, args.k},
      {"v", tokens, args.v},
      {"g", tokens && p.g.present(), args.g},
      {"g_gamma", p.g_gamma.present(), args.g_gamma},
      {"beta", tokens && p.beta.present(), args.beta},
      {"A_log", p.A_log.present(), args.A_log},
      {"dt_bias", p.dt_bias.present(), args.dt_bias},
      {"initial_state", p.initial_state.present() && (p.pool() ? p.num_slots > 0 : sequences),
       args.initial_state},
      {"cu_seqlens", p.cu_seqlens.present(), args.cu_seqlens},
      {"state_indices", sequences && p.state_indices.present(), args.state_indices},
      {"output_state_indices", sequences && p.output_state_indices.present(),
       args.output_state_indices},
      {"has_initial_state", sequences && p.has_initial_state.present(), args.has_initial_state},
      {"num_accepted_tokens", sequences && p.num_accepted_tokens.present(),
       args.num_accepted_tokens},
      {"o", tokens && p.o.present(), args.o},
      {"final_state", sequences && p.final_state.present(), args.final_state},
      {"intermediate_states", p.batch * p.intermediate_rows > 0 && p.intermediate_states.present(),
       args.intermediate_states},
      {"do", tokens && p.do_.present(), args.do_},
      {"dht", sequences && p.dht.present(), args.dht},
      {"dq", tokens && p.dq.present(), args.dq},
      {"dk", tokens && p.dk.present(), args.dk},
      {"dv", tokens && p.dv.present(), args.dv},
      {"dg", tokens && p.dg.present(), args.dg},
      {"dbeta", tokens && p.dbeta.present(), args.dbeta},
      {"dA_log", p.dA_log.present(), args.dA_log},
      {"ddt_bias", p.ddt_bias.present(), args.ddt_bias},
      {"dh0", sequences && p.dh0.present(), args.dh0},
  };
  for (const auto& row : rows)
    LINATTN_REQUIRE(!row.needed || row.pointer != nullptr, LINATTN_INVALID_VALUE,
                    "%s has a null pointer, but is part of the problem", row.name);
  return check_overlaps(p, args);
}

namespace {

Status check_offsets(const Problem& p, const linattn_args& args) {
  const auto offset = [&](int64_t n) {
    return read_index(p.cu_seqlens.type, args.cu_seqlens, n * p.cu_seqlens.n);
  };
  LINATTN_REQUIRE(offset(0) == 0, LINATTN_INVALID_VALUE, "cu_seqlens[0] is %lld; allowed: 0",
                  static_cast<long long>(offset(0)));
  int64_t rows = 0;
  for (int64_t n = 0; n < p.num_sequences; ++n) {
    const int64_t begin = offset(n), end = offset(n + 1);
    LINATTN_REQUIRE(end >= begin, LINATTN_INVALID_VALUE,
                    "cu_seqlens[%lld] is %lld; allowed: at least cu_seqlens[%lld] = %lld",
                    static_cast<long long>(n + 1), static_cast<long long>(end),
                    static_cast<long long>(n), static_cast<long long>(begin));
    LINATTN_REQUIRE(end <= p.num_tokens, LINATTN_INVALID_VALUE,
                    "cu_seqlens[%lld] is %lld; allowed: at most T = %lld",
                    static_cast<long long>(n + 1), static_cast<long long>(end),
                    static_cast<long long>(p.num_tokens));
    LINATTN_REQUIRE(p.state_columns == 0 || end - begin <= p.state_columns, LINATTN_INVALID_VALUE,
                    "cu_seqlens gives sequence %lld %lld tokens; allowed: at most the %lld columns "
                    "of state_indices",
                    static_cast<long long>(n), static_cast<long long>(end - begin),
                    static_cast<long long>(p.state_columns));
    rows += (end - begin + p.state_every - 1) / p.state_every;
  }
  LINATTN_REQUIRE(!p.intermediate_states.present() || rows <= p.intermediate_rows,
                  LINATTN_INVALID_VALUE, "intermediate_states has %lld rows; cu_seqlens needs %lld",
                  static_cast<long long>(p.intermediate_rows), static_cast<long long>(rows));
  return LINATTN_OK;
}

// Two rows that write one slot would race: the result would depend on their order. Nothing is
// allocated here, so past this many states the slots are the caller's word.
constexpr int64_t kMostTargets = 4096;

Status check_unique_targets(const Problem& p, const linattn_args& args) {
  struct Target {
    int64_t slot, sequence;
  } targets[kMostTargets];
  int64_t count = 0;
  for (int64_t n = 0; n < p.num_sequences; ++n) {
    if (start_slot(p, args, n) < 0) continue;
    // With 2-D indices each token has a column, and those past the last token are not written.
    const int64_t columns =
        p.state_columns > 0 ? std::min(p.state_columns, token_range(p, args.cu_seqlens, n).length())
                            : 1;
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t slot = target_slot(p, args, n, j);
      if (slot < 0) continue;
      if (count == kMostTargets) return LINATTN_OK;
      targets[count++] = {slot, n};
    }
  }
  std::sort(targets, targets + count, [](const Target& a, const Target& b) {
    return a.slot != b.slot ? a.slot < b.slot : a.sequence < b.sequence;
  });
  for (int64_t i = 1; i < count; ++i) {
    const Target &a = targets[i - 1], &b = targets[i];
    LINATTN_REQUIRE(a.slot != b.slot || a.sequence == b.sequence, LINATTN_INVALID_VALUE,
                    "%s sends sequences %lld and %lld to slot %lld; live rows must have slots of "
                    "their own",
                    p.output_state_indices.present() ? "output_state_indices" : "state_indices",
                    static_cast<long long>(a.sequence), static_cast<long long>(b.sequence),
                    static_cast<long long>(b.slot));
  }
  return LINATTN_OK;
}

Status check_gate_range(const Problem& p, const linattn_args& args) {
  if (!p.g.present() || p.gate_form != GateForm::given) return LINATTN_OK;
  const int64_t channels = p.gate == Gate::channel ? p.dim_k : 1;
  for (int64_t n = 0; n < p.num_sequences; ++n) {
    const TokenRange range = token_range(p, args.cu_seqlens, n);
    for (int64_t t = range.begin; t < range.end; ++t)
      for (int64_t h = 0; h < p.heads_v; ++h)
        for (int64_t c = 0; c < channels; ++c) {
          const double g = load_element(p.g.type, args.g, p.g.at(range.batch, t, h, c));
          LINATTN_REQUIRE(!std::isnan(g), LINATTN_INVALID_VALUE,
                          "g[%lld,%lld,%lld] is NaN; allowed: a log decay",
                          static_cast<long long>(range.batch), static_cast<long long>(t),
                          static_cast<long long>(h));
          LINATTN_REQUIRE(!p.safe_gate || (g >= -5.0 && g <= 0.0), LINATTN_INVALID_VALUE,
                          "g[%lld,%lld,%lld] is %g; allowed under safe_gate=True: [-5, 0)",
                          static_cast<long long>(range.batch), static_cast<long long>(t),
                          static_cast<long long>(h), g);
        }
  }
  return LINATTN_OK;
}

}  // namespace

Status check_device_data(const Problem& p, const linattn_args& args, bool gate_range) {
  if (p.varlen()) LINATTN_RETURN_IF_FAILED(check_offsets(p, args));
  if (p.pool()) LINATTN_RETURN_IF_FAILED(check_unique_targets(p, args));
  return gate_range ? check_gate_range(p, args) : Status(LINATTN_OK);
}

}  // namespace linattn
