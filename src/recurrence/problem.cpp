#include "recurrence/problem.h"

#include <cmath>

#include "recurrence/families.h"
#include "recurrence/tensor_rules.h"

namespace linattn {

int64_t size_of(Type type) {
  switch (type) {
    case Type::none:
      return 0;
    case Type::boolean:
      return 1;
    case Type::bf16:
    case Type::f16:
      return 2;
    case Type::f32:
    case Type::i32:
      return 4;
    case Type::i64:
      return 8;
  }
  return 0;
}

namespace {

constexpr int64_t kMaxHeadDim = 256;
constexpr uint32_t kKnownFlags = LINATTN_FLAG_QK_NORM | LINATTN_FLAG_STATE_V_FIRST |
                                 LINATTN_FLAG_SAFE_GATE | LINATTN_FLAG_NO_AUTO_CP |
                                 LINATTN_FLAG_BATCH_INVARIANT | LINATTN_FLAG_NULL_STATE_INDEX;

#define LINATTN_TRY LINATTN_RETURN_IF_FAILED

// Walks the rules in the order a reader of the interface meets them.
class Validator {
 public:
  Validator(const linattn_problem& asked, linattn_device device, Problem* problem)
      : a_(asked), device_(device), p_(*problem) {}

  Status run() {
    LINATTN_TRY(switches());
    LINATTN_TRY(main_shapes());
    LINATTN_TRY(sequences());
    LINATTN_TRY(gate());
    LINATTN_TRY(beta());
    LINATTN_TRY(states());
    LINATTN_TRY(pool());
    if (p_.pass == Pass::forward) {
      LINATTN_TRY(forward_outputs());
      return no_backward_tensors();
    }
    LINATTN_TRY(backward_inputs());
    return backward_outputs();
  }

 private:
  Named named(const char* name, const linattn_tensor& tensor) const { return {name, &tensor}; }

  Status token(const Named& t, TokenView* view, const char* axes, int64_t heads, int64_t dim,
               uint32_t types, Access access = Access::read) {
    LINATTN_TRY(require_type(t, types));
    LINATTN_TRY(require_sane(t, device_, access));
    if (dim > 0)
      LINATTN_TRY(require_shape(t, axes, {p_.batch, p_.num_tokens, heads, dim}));
    else
      LINATTN_TRY(require_shape(t, axes, {p_.batch, p_.num_tokens, heads}));
    *view = {static_cast<Type>(t.tensor->type), t.stride(0), t.stride(1), t.stride(2),
             dim > 0 ? t.stride(3) : 0};
    return LINATTN_OK;
  }

  Status head(const Named& t, HeadView* view, uint32_t types, bool channels,
              Access access = Access::read) {
    LINATTN_TRY(require_type(t, types));
    LINATTN_TRY(require_sane(t, device_, access));
    const Type type = static_cast<Type>(t.tensor->type);
    if (!channels) {
      LINATTN_TRY(require_shape(t, "[HV]", {p_.heads_v}));
      *view = {type, t.stride(0), 0};
    } else if (t.tensor->rank == 1) {
      LINATTN_TRY(require_shape(t, "[HV*K] or [HV,K]", {p_.heads_v * p_.dim_k}));
      *view = {type, t.stride(0) * p_.dim_k, t.stride(0)};
    } else {
      LINATTN_TRY(require_shape(t, "[HV,K] or [HV*K]", {p_.heads_v, p_.dim_k}));
      *view = {type, t.stride(0), t.stride(1)};
    }
    return LINATTN_OK;
  }

  Status state(const Named& t, StateView* view, int64_t count, const char* kv_axes,
               const char* vk_axes, Access access) {
    LINATTN_TRY(require_type(t, kFloatTypes));
    LINATTN_TRY(require_sane(t, device_, access));
    if (p_.state_v_first)
      LINATTN_TRY(require_shape(t, vk_axes, {count, p_.heads_v, p_.dim_v, p_.dim_k}));
    else
      LINATTN_TRY(require_shape(t, kv_axes, {count, p_.heads_v, p_.dim_k, p_.dim_v}));
    const int k = p_.state_v_first ? 3 : 2, v = p_.state_v_first ? 2 : 3;
    *view = {
        static_cast<Type>(t.tensor->type), t.stride(0), 0, t.stride(1), t.stride(k), t.stride(v)};
    return LINATTN_OK;
  }

  Status index(const Named& t, IndexView* view, const char* axes,
               std::initializer_list<int64_t> sizes, uint32_t types) {
    LINATTN_TRY(require_type(t, types));
    LINATTN_TRY(require_sane(t, device_, Access::read));
    LINATTN_TRY(require_shape(t, axes, sizes));
    *view = {static_cast<Type>(t.tensor->type), t.stride(0), sizes.size() > 1 ? t.stride(1) : 0};
    return LINATTN_OK;
  }

  Status switches() {
    row_ = find_family(a_.family);
    LINATTN_REQUIRE(row_ != nullptr, LINATTN_INVALID_VALUE, "family is %d; allowed: 1 to 6",
                    a_.family);
    LINATTN_REQUIRE(a_.form == LINATTN_CHUNK || a_.form == LINATTN_RECURRENT, LINATTN_INVALID_VALUE,
                    "form is %d; allowed: 1 (chunk), 2 (recurrent)", a_.form);
    LINATTN_REQUIRE(a_.pass == LINATTN_FORWARD || a_.pass == LINATTN_BACKWARD,
                    LINATTN_INVALID_VALUE, "pass is %d; allowed: 1 (forward), 2 (backward)",
                    a_.pass);
    LINATTN_REQUIRE(a_.pass == LINATTN_FORWARD || a_.form == LINATTN_CHUNK, LINATTN_INVALID_VALUE,
                    "form is recurrent; the backward pass has the chunk form alone, with the same "
                    "gradients");
    LINATTN_REQUIRE(a_.gate >= 0 && a_.gate <= 3, LINATTN_INVALID_VALUE,
                    "gate is %d; allowed: 0 (none), 1 (head_constant), 2 (head), 3 (channel)",
                    a_.gate);
    if (!row_->gates[a_.gate]) {
      std::string names;
      for (int gate = 0; gate < 4; ++gate)
        if (row_->gates[gate]) names += (names.empty() ? "" : ", ") + std::string(kGateNames[gate]);
      return fail(LINATTN_INVALID_VALUE, "gate is %s; allowed for %s: %s", kGateNames[a_.gate],
                  row_->name, names.c_str());
    }
    LINATTN_REQUIRE(a_.gate_form >= 0 && a_.gate_form <= 2, LINATTN_INVALID_VALUE,
                    "gate_form is %d; allowed: 0 (given), 1 (raw softplus), 2 (raw bounded)",
                    a_.gate_form);
    LINATTN_REQUIRE(a_.gate_form != LINATTN_GATE_RAW_SOFTPLUS || row_->raw_softplus,
                    LINATTN_INVALID_VALUE,
                    "use_gate_in_kernel is True; %s takes the log decay itself", row_->name);
    LINATTN_REQUIRE(a_.gate_form != LINATTN_GATE_RAW_BOUNDED || row_->raw_bounded,
                    LINATTN_INVALID_VALUE,
                    "lower_bound is %g; the bounded raw gate is taken by kda alone, not by %s",
                    a_.lower_bound, row_->name);
    LINATTN_REQUIRE(a_.beta_form >= 0 && a_.beta_form <= 2, LINATTN_INVALID_VALUE,
                    "beta_form is %d; allowed: 0 (value), 1 (sigmoid), 2 (2 * sigmoid)",
                    a_.beta_form);
    LINATTN_REQUIRE(a_.beta_form == LINATTN_BETA_VALUE || row_->beta_logit, LINATTN_INVALID_VALUE,
                    "use_beta_sigmoid_in_kernel is True; taken by kda and gdn alone, not by %s",
                    row_->name);
    LINATTN_REQUIRE((a_.flags & ~kKnownFlags) == 0, LINATTN_INVALID_VALUE,
                    "flags is 0x%x; allowed bits: 0x%x", a_.flags, kKnownFlags);
    LINATTN_REQUIRE(a_.reserved == 0, LINATTN_INVALID_VALUE, "reserved is %d; allowed: 0",
                    a_.reserved);
    LINATTN_REQUIRE(!(a_.flags & LINATTN_FLAG_QK_NORM) || row_->qk_norm, LINATTN_INVALID_VALUE,
                    "use_qk_l2norm_in_kernel is True; taken by kda, gdn and delta alone, not by %s",
                    row_->name);
    LINATTN_REQUIRE(!(a_.flags & LINATTN_FLAG_SAFE_GATE) || a_.gate == LINATTN_GATE_CHANNEL,
                    LINATTN_INVALID_VALUE,
                    "safe_gate is True; it is a promise about channel gates, and the gate is %s",
                    kGateNames[a_.gate]);
    LINATTN_REQUIRE(std::isfinite(a_.scale), LINATTN_INVALID_VALUE,
                    "scale is %g; allowed: any finite number", a_.scale);
    LINATTN_REQUIRE(device_.type == LINATTN_DEVICE_CPU || device_.type == LINATTN_DEVICE_CUDA,
                    LINATTN_INVALID_TYPE, "q is on %s; allowed: cpu, cuda",
                    device_name(device_.type, device_.index).c_str());
    p_.family = row_->family;
    p_.update = row_->update;
    p_.form = static_cast<Form>(a_.form);
    p_.pass = static_cast<Pass>(a_.pass);
    p_.gate = static_cast<Gate>(a_.gate);
    p_.gate_form = static_cast<GateForm>(a_.gate_form);
    p_.beta_form = static_cast<BetaForm>(a_.beta_form);
    p_.qk_norm = a_.flags & LINATTN_FLAG_QK_NORM;
    p_.state_v_first = a_.flags & LINATTN_FLAG_STATE_V_FIRST;
    p_.safe_gate = a_.flags & LINATTN_FLAG_SAFE_GATE;
    p_.auto_cp = !(a_.flags & LINATTN_FLAG_NO_AUTO_CP);
    p_.batch_invariant = a_.flags & LINATTN_FLAG_BATCH_INVARIANT;
    p_.has_null_index = a_.flags & LINATTN_FLAG_NULL_STATE_INDEX;
    p_.null_index = a_.null_state_index;
    p_.force = a_.force;
    p_.scale = a_.scale;
    return LINATTN_OK;
  }

  Status main_shapes() {
    const Named q = named("q", a_.q), k = named("k", a_.k), v = named("v", a_.v);
    for (const Named& t : {q, k, v}) {
      LINATTN_TRY(require_present(t, "by every operator"));
      LINATTN_TRY(require_type(t, kFloatTypes));
      LINATTN_TRY(require_sane(t, device_, Access::read));
      LINATTN_REQUIRE(
          t.tensor->rank == 4, LINATTN_INVALID_VALUE, "%s has shape %s; allowed: [B,T,%s]", t.name,
          shape_text(t.tensor->size, t.tensor->rank).c_str(), t.tensor == &a_.v ? "HV,V" : "H,K");
    }
    p_.batch = q.size(0), p_.num_tokens = q.size(1), p_.heads_qk = q.size(2), p_.dim_k = q.size(3);
    p_.heads_v = v.size(2), p_.dim_v = v.size(3);
    LINATTN_REQUIRE(p_.heads_qk >= 1, LINATTN_INVALID_VALUE, "q has %lld heads; allowed: H >= 1",
                    static_cast<long long>(p_.heads_qk));
    LINATTN_REQUIRE(p_.dim_k >= 1 && p_.dim_k <= kMaxHeadDim, LINATTN_INVALID_VALUE,
                    "q has head dimension K = %lld; allowed: 1 to %lld",
                    static_cast<long long>(p_.dim_k), static_cast<long long>(kMaxHeadDim));
    LINATTN_REQUIRE(p_.dim_v >= 1 && p_.dim_v <= kMaxHeadDim, LINATTN_INVALID_VALUE,
                    "v has head dimension V = %lld; allowed: 1 to %lld",
                    static_cast<long long>(p_.dim_v), static_cast<long long>(kMaxHeadDim));
    LINATTN_REQUIRE(
        p_.heads_v >= 1 && p_.heads_v % p_.heads_qk == 0, LINATTN_INVALID_VALUE,
        "v has HV = %lld heads; allowed: a positive multiple of the H = %lld heads of q",
        static_cast<long long>(p_.heads_v), static_cast<long long>(p_.heads_qk));
    const __int128 elements = static_cast<__int128>(p_.batch) * p_.num_tokens * p_.heads_v;
    LINATTN_REQUIRE(elements < (static_cast<__int128>(1) << 44), LINATTN_INVALID_VALUE,
                    "q and v have B*T*HV beyond 2^44: B = %lld, T = %lld, HV = %lld",
                    static_cast<long long>(p_.batch), static_cast<long long>(p_.num_tokens),
                    static_cast<long long>(p_.heads_v));
    LINATTN_REQUIRE(
        static_cast<__int128>(p_.batch) * p_.heads_v < (1ll << 40) && p_.num_tokens < (1ll << 40),
        LINATTN_INVALID_VALUE, "q has shape %s: beyond 2^40 sequences or tokens",
        shape_text(a_.q.size, 4).c_str());
    LINATTN_TRY(token(q, &p_.q, "[B,T,H,K]", p_.heads_qk, p_.dim_k, kFloatTypes));
    LINATTN_TRY(require_same_type(k, q));
    LINATTN_TRY(token(k, &p_.k, "[B,T,H,K]", p_.heads_qk, p_.dim_k, kFloatTypes));
    LINATTN_TRY(require_same_type(v, q));
    return token(v, &p_.v, "[B,T,HV,V]", p_.heads_v, p_.dim_v, kFloatTypes);
  }

  Status sequences() {
    const Named cu = named("cu_seqlens", a_.cu_seqlens);
    p_.num_sequences = p_.batch;
    if (!cu.present()) return LINATTN_OK;
    LINATTN_TRY(require_type(cu, kIndexTypes));
    LINATTN_TRY(require_sane(cu, device_, Access::read));
    LINATTN_REQUIRE(cu.tensor->rank == 1 && cu.size(0) >= 2, LINATTN_INVALID_VALUE,
                    "cu_seqlens has shape %s; allowed: [N+1] with N >= 1",
                    shape_text(cu.tensor->size, cu.tensor->rank).c_str());
    LINATTN_REQUIRE(p_.batch == 1, LINATTN_INVALID_VALUE,
                    "q has B = %lld with cu_seqlens; allowed: B = 1, the sequences packed along T",
                    static_cast<long long>(p_.batch));
    p_.num_sequences = cu.size(0) - 1;
    LINATTN_REQUIRE(p_.num_sequences < (1ll << 31) &&
                        static_cast<__int128>(p_.num_sequences) * p_.heads_v < (1ll << 40),
                    LINATTN_INVALID_VALUE, "cu_seqlens has shape %s: beyond 2^31 sequences",
                    shape_text(cu.tensor->size, 1).c_str());
    p_.cu_seqlens = {static_cast<Type>(cu.tensor->type), cu.stride(0), 0};
    return LINATTN_OK;
  }

  Status gate() {
    const Named g = named("g", a_.g), g_gamma = named("g_gamma", a_.g_gamma);
    const Named A_log = named("A_log", a_.A_log), dt_bias = named("dt_bias", a_.dt_bias);
    if (p_.gate == Gate::head_constant) {
      LINATTN_TRY(require_present(g_gamma, "by the constant gate"));
      LINATTN_TRY(head(g_gamma, &p_.g_gamma, kF32, false));
    } else {
      LINATTN_TRY(require_absent(g_gamma, "unless the gate is head_constant"));
    }
    if (p_.gate == Gate::channel) {
      LINATTN_TRY(require_present(g, "by the channel gate"));
      LINATTN_TRY(token(g, &p_.g, "[B,T,HV,K]", p_.heads_v, p_.dim_k, kFloatTypes));
    } else if (p_.gate == Gate::head) {
      LINATTN_TRY(require_present(g, "by the head gate"));
      LINATTN_TRY(token(g, &p_.g, "[B,T,HV]", p_.heads_v, 0, kFloatTypes));
    } else {
      LINATTN_TRY(require_absent(g, "unless the gate is head or channel"));
    }
    const bool raw = p_.gate_form != GateForm::given;
    LINATTN_REQUIRE(!raw || g.present(), LINATTN_INVALID_VALUE,
                    "use_gate_in_kernel is True; it needs g, and the gate is %s",
                    kGateNames[a_.gate]);
    if (p_.gate_form == GateForm::bounded) {
      LINATTN_REQUIRE(a_.lower_bound >= -5.0 && a_.lower_bound < 0.0, LINATTN_INVALID_VALUE,
                      "lower_bound is %g; allowed: [-5, 0)", a_.lower_bound);
      p_.lower_bound = a_.lower_bound;
    } else {
      LINATTN_REQUIRE(a_.lower_bound == 0.0, LINATTN_INVALID_VALUE,
                      "lower_bound is %g; it is taken with the gate computed inside alone "
                      "(use_gate_in_kernel=True)",
                      a_.lower_bound);
    }
    if (!raw) {
      LINATTN_TRY(require_absent(A_log, "unless use_gate_in_kernel=True"));
      return require_absent(dt_bias, "unless use_gate_in_kernel=True");
    }
    if (p_.gate_form == GateForm::softplus)
      LINATTN_TRY(require_present(A_log, "by use_gate_in_kernel=True without lower_bound"));
    if (A_log.present()) LINATTN_TRY(head(A_log, &p_.A_log, kF32, false));
    if (dt_bias.present())
      LINATTN_TRY(head(dt_bias, &p_.dt_bias, kF32OrBf16, p_.gate == Gate::channel));
    return LINATTN_OK;
  }

  Status beta() {
    const Named t = named("beta", a_.beta);
    if (p_.update == Update::additive) return require_absent(t, "in the additive families");
    if (!t.present()) {
      LINATTN_REQUIRE(p_.beta_form == BetaForm::value, LINATTN_INVALID_VALUE,
                      "beta is None; use_beta_sigmoid_in_kernel=True needs its logits");
      return LINATTN_OK;
    }
    return token(t, &p_.beta, "[B,T,HV]", p_.heads_v, 0, kFloatTypes);
  }

  Status states() {
    const Named h0 = named("initial_state", a_.initial_state);
    const Named ht = named("final_state", a_.final_state);
    const Named has = named("has_initial_state", a_.has_initial_state);
    const bool pool = a_.state_indices.type != LINATTN_NONE;
    if (h0.present() && !pool)
      LINATTN_TRY(
          state(h0, &p_.initial_state, p_.num_sequences, "[N,HV,K,V]", "[N,HV,V,K]", Access::read));
    if (ht.present()) {
      LINATTN_REQUIRE(p_.pass == Pass::forward, LINATTN_INVALID_VALUE,
                      "final_state is given; it is an output of the forward pass alone");
      LINATTN_TRY(require_absent_with_pool(ht, pool));
      LINATTN_TRY(
          state(ht, &p_.final_state, p_.num_sequences, "[N,HV,K,V]", "[N,HV,V,K]", Access::write));
    }
    if (!has.present()) return LINATTN_OK;
    LINATTN_TRY(require_present(h0, "by has_initial_state"));
    LINATTN_REQUIRE(p_.pass == Pass::forward, LINATTN_INVALID_VALUE,
                    "has_initial_state is given; the backward pass does not take it: zero those "
                    "rows of initial_state");
    return index(has, &p_.has_initial_state, "[N]", {p_.num_sequences}, kBoolType);
  }

  Status require_absent_with_pool(const Named& ht, bool pool) {
    LINATTN_REQUIRE(!pool, LINATTN_INVALID_VALUE,
                    "%s is given with state_indices; the pool initial_state is updated in place",
                    ht.name);
    return LINATTN_OK;
  }

  Status pool() {
    const Named indices = named("state_indices", a_.state_indices);
    const Named out = named("output_state_indices", a_.output_state_indices);
    const Named accepted = named("num_accepted_tokens", a_.num_accepted_tokens);
    const Named pool = named("initial_state", a_.initial_state);
    if (!indices.present()) {
      LINATTN_TRY(require_absent(out, "without state_indices"));
      LINATTN_TRY(require_absent(accepted, "without state_indices"));
      LINATTN_REQUIRE(!p_.has_null_index, LINATTN_INVALID_VALUE,
                      "null_state_index is %lld without state_indices; it marks dead rows of them",
                      static_cast<long long>(p_.null_index));
      return LINATTN_OK;
    }
    LINATTN_REQUIRE(p_.pass == Pass::forward, LINATTN_INVALID_VALUE,
                    "state_indices is given; the backward pass takes no state pool");
    LINATTN_TRY(require_present(pool, "by state_indices: it is the pool"));
    LINATTN_TRY(require_type(indices, kIndexTypes));
    LINATTN_REQUIRE(pool.tensor->rank == 4, LINATTN_INVALID_VALUE,
                    "initial_state has shape %s; allowed with state_indices: a pool %s",
                    shape_text(pool.tensor->size, pool.tensor->rank).c_str(),
                    p_.state_v_first ? "[slots,HV,V,K]" : "[slots,HV,K,V]");
    p_.num_slots = pool.size(0);
    LINATTN_TRY(state(pool, &p_.initial_state, p_.num_slots, "[slots,HV,K,V]", "[slots,HV,V,K]",
                      Access::write));
    const int64_t inner = pool.size(3), outer = pool.size(2);
    LINATTN_REQUIRE(
        (pool.stride(3) == 1 || inner == 1) && (pool.stride(2) == inner || outer == 1) &&
            (pool.stride(1) == inner * outer || p_.heads_v == 1),
        LINATTN_INVALID_VALUE,
        "initial_state has strides %s for shape %s; a pool may pad its slots (axis 0), "
        "but each slot must be contiguous",
        shape_text(pool.tensor->stride, 4).c_str(), shape_text(pool.tensor->size, 4).c_str());
    if (indices.tensor->rank == 2) {
      LINATTN_REQUIRE(p_.form == Form::recurrent, LINATTN_INVALID_VALUE,
                      "state_indices has shape %s; allowed for the chunk form: [N]",
                      shape_text(indices.tensor->size, 2).c_str());
      p_.state_columns = indices.size(1);
      LINATTN_REQUIRE(p_.state_columns >= 1, LINATTN_INVALID_VALUE,
                      "state_indices has shape %s; allowed: [N,1+S] with S >= 0",
                      shape_text(indices.tensor->size, 2).c_str());
      LINATTN_REQUIRE(p_.varlen() || p_.num_tokens <= p_.state_columns, LINATTN_INVALID_VALUE,
                      "state_indices has %lld columns for T = %lld tokens; allowed: at least one "
                      "column a token",
                      static_cast<long long>(p_.state_columns),
                      static_cast<long long>(p_.num_tokens));
    }
    const auto like_indices = [&](const Named& t, IndexView* view) {
      return p_.state_columns > 0
                 ? index(t, view, "[N,1+S]", {p_.num_sequences, p_.state_columns}, kIndexTypes)
                 : index(t, view, "[N]", {p_.num_sequences}, kIndexTypes);
    };
    LINATTN_TRY(like_indices(indices, &p_.state_indices));
    if (out.present()) LINATTN_TRY(like_indices(out, &p_.output_state_indices));
    if (!accepted.present()) return LINATTN_OK;
    LINATTN_REQUIRE(p_.state_columns > 0, LINATTN_INVALID_VALUE,
                    "num_accepted_tokens is given with state_indices of shape %s; allowed with "
                    "[N,1+S] alone",
                    shape_text(indices.tensor->size, 1).c_str());
    return index(accepted, &p_.num_accepted_tokens, "[N]", {p_.num_sequences}, kIndexTypes);
  }

  Status forward_outputs() {
    const Named o = named("o", a_.o), h = named("intermediate_states", a_.intermediate_states);
    LINATTN_TRY(require_present(o, "by the forward pass"));
    LINATTN_TRY(require_same_type(o, named("q", a_.q)));
    LINATTN_TRY(token(o, &p_.o, "[B,T,HV,V]", p_.heads_v, p_.dim_v, kFloatTypes, Access::write));
    if (!h.present()) {
      LINATTN_REQUIRE(a_.state_every == 0, LINATTN_INVALID_VALUE,
                      "state_every is %lld without intermediate states; it thins them",
                      static_cast<long long>(a_.state_every));
      return LINATTN_OK;
    }
    LINATTN_REQUIRE(p_.form == Form::chunk, LINATTN_INVALID_VALUE,
                    "intermediate_states is given; it is an output of the chunk form alone");
    LINATTN_REQUIRE(a_.state_every >= 0 && a_.state_every % 64 == 0, LINATTN_INVALID_VALUE,
                    "state_every is %lld; allowed: a positive multiple of 64",
                    static_cast<long long>(a_.state_every));
    p_.state_every = a_.state_every == 0 ? 64 : a_.state_every;
    LINATTN_TRY(require_type(h, kFloatTypes));
    LINATTN_TRY(require_sane(h, device_, Access::write));
    const int64_t rows = p_.num_tokens / p_.state_every + (p_.num_tokens % p_.state_every != 0);
    p_.intermediate_rows = p_.varlen() && h.tensor->rank == 5 ? h.size(1) : rows;
    const char* axes = p_.varlen() ? (p_.state_v_first ? "[1,rows,HV,V,K]" : "[1,rows,HV,K,V]")
                                   : (p_.state_v_first ? "[B,ceil(T/state_every),HV,V,K]"
                                                       : "[B,ceil(T/state_every),HV,K,V]");
    const int64_t inner = p_.state_v_first ? p_.dim_k : p_.dim_v;
    const int64_t outer = p_.state_v_first ? p_.dim_v : p_.dim_k;
    LINATTN_TRY(require_shape(h, axes, {p_.batch, p_.intermediate_rows, p_.heads_v, outer, inner}));
    const int k = p_.state_v_first ? 4 : 3, v = p_.state_v_first ? 3 : 4;
    p_.intermediate_states = {static_cast<Type>(h.tensor->type),
                              h.stride(0),
                              h.stride(1),
                              h.stride(2),
                              h.stride(k),
                              h.stride(v)};
    return LINATTN_OK;
  }

  Status no_backward_tensors() {
    for (const Named& t :
         {named("do", a_.do_), named("dht", a_.dht), named("dq", a_.dq), named("dk", a_.dk),
          named("dv", a_.dv), named("dg", a_.dg), named("dbeta", a_.dbeta),
          named("dA_log", a_.dA_log), named("ddt_bias", a_.ddt_bias), named("dh0", a_.dh0)})
      LINATTN_TRY(require_absent(t, "in the forward pass"));
    return LINATTN_OK;
  }

  Status backward_inputs() {
    const Named do_ = named("do", a_.do_), dht = named("dht", a_.dht);
    for (const Named& t : {named("o", a_.o), named("intermediate_states", a_.intermediate_states)})
      LINATTN_TRY(require_absent(t, "in the backward pass"));
    LINATTN_REQUIRE(a_.state_every == 0, LINATTN_INVALID_VALUE,
                    "state_every is %lld; allowed in the backward pass: 0",
                    static_cast<long long>(a_.state_every));
    LINATTN_TRY(require_present(do_, "by the backward pass"));
    LINATTN_TRY(require_same_type(do_, named("q", a_.q)));
    LINATTN_TRY(token(do_, &p_.do_, "[B,T,HV,V]", p_.heads_v, p_.dim_v, kFloatTypes));
    if (!dht.present()) return LINATTN_OK;
    return state(dht, &p_.dht, p_.num_sequences, "[N,HV,K,V]", "[N,HV,V,K]", Access::read);
  }

  Status gradient(const Named& t, TokenView* view, const Named& of, const char* axes, int64_t heads,
                  int64_t dim) {
    if (!t.present()) return LINATTN_OK;
    LINATTN_TRY(require_present(of, "by its gradient"));
    LINATTN_TRY(require_type(t, kF32 | 1u << of.tensor->type));
    return token(t, view, axes, heads, dim, kFloatTypes, Access::write);
  }

  Status backward_outputs() {
    const Named q = named("q", a_.q), k = named("k", a_.k), v = named("v", a_.v);
    const Named g = named("g", a_.g), beta = named("beta", a_.beta);
    LINATTN_TRY(gradient(named("dq", a_.dq), &p_.dq, q, "[B,T,H,K]", p_.heads_qk, p_.dim_k));
    LINATTN_TRY(gradient(named("dk", a_.dk), &p_.dk, k, "[B,T,H,K]", p_.heads_qk, p_.dim_k));
    LINATTN_TRY(gradient(named("dv", a_.dv), &p_.dv, v, "[B,T,HV,V]", p_.heads_v, p_.dim_v));
    const bool channel = p_.gate == Gate::channel;
    LINATTN_TRY(gradient(named("dg", a_.dg), &p_.dg, g, channel ? "[B,T,HV,K]" : "[B,T,HV]",
                         p_.heads_v, channel ? p_.dim_k : 0));
    LINATTN_TRY(gradient(named("dbeta", a_.dbeta), &p_.dbeta, beta, "[B,T,HV]", p_.heads_v, 0));
    const Named dA = named("dA_log", a_.dA_log), dbias = named("ddt_bias", a_.ddt_bias);
    const Named dh0 = named("dh0", a_.dh0);
    if (dA.present()) {
      LINATTN_TRY(require_present(named("A_log", a_.A_log), "by its gradient"));
      LINATTN_TRY(head(dA, &p_.dA_log, kF32, false, Access::write));
    }
    if (dbias.present()) {
      LINATTN_TRY(require_present(named("dt_bias", a_.dt_bias), "by its gradient"));
      LINATTN_TRY(head(dbias, &p_.ddt_bias, kF32OrBf16, channel, Access::write));
    }
    if (!dh0.present()) return LINATTN_OK;
    LINATTN_TRY(require_present(named("initial_state", a_.initial_state), "by its gradient"));
    return state(dh0, &p_.dh0, p_.num_sequences, "[N,HV,K,V]", "[N,HV,V,K]", Access::write);
  }

  const linattn_problem& a_;
  const linattn_device device_;
  Problem& p_;
  const FamilyRow* row_ = nullptr;
};

}  // namespace

Status validate(const linattn_problem& asked, linattn_device device, Problem* problem) {
  *problem = Problem{};
  return Validator(asked, device, problem).run();
}

}  // namespace linattn
