"""flash_kda, flash_qla and cula: signatures, results in place, and their faults not repeated."""

import inspect

import pytest
import torch
from families import FAMILIES, error, make_inputs
from torch.nn import functional as F

import linattn.compat.cula as cula
import linattn.compat.flash_kda as flash_kda
import linattn.compat.flash_qla as flash_qla
from linattn import ops


def names(function):
    return " ".join(inspect.signature(function).parameters)


SIGNATURES = {
    flash_kda.fwd: "q k v g beta scale out A_log dt_bias lower_bound initial_state final_state "
    "cu_seqlens",
    flash_kda.get_workspace_size: "T_total H N",
    flash_qla.chunk_gated_delta_rule: "q k v g beta scale initial_state output_final_state "
    "use_qk_l2norm_in_kernel cu_seqlens head_first state_v_first auto_cp enable_fwd_cp_cache",
    flash_qla.chunk_gated_delta_rule_fwd: "q k v g beta scale initial_state cu_seqlens "
    "output_final_state output_h auto_cp state_v_first enable_fwd_cp_cache",
    flash_qla.chunk_gated_delta_rule_bwd: "q k v g beta A do dht scale initial_state cu_seqlens "
    "state_v_first auto_cp cp_cache",
    cula.kda.chunk_kda: "q k v g beta scale initial_state output_final_state "
    "use_qk_l2norm_in_kernel use_gate_in_kernel cu_seqlens cu_seqlens_cpu safe_gate lower_bound "
    "disable_recompute return_intermediate_states cp_context A_log dt_bias",
    cula.kda.kda_prefill_hopper: "q k v g beta scale initial_state output_final_state "
    "use_qk_l2norm_in_kernel use_gate_in_kernel safe_gate lower_bound cu_seqlens chunk_indices "
    "A_log dt_bias",
    cula.kda.kda_decode: "A_log dt_bias q k v a b initial_state_source initial_state_indices "
    "cu_seqlens scale use_qk_l2norm_in_kernel softplus_beta softplus_threshold out state_layout",
    cula.kda.fused_sigmoid_gating_delta_rule_update: "A_log a dt_bias softplus_beta "
    "softplus_threshold q k v b initial_state_source initial_state_indices scale "
    "use_qk_l2norm_in_kernel cu_seqlens is_kda out state_layout",
    cula.lightning.lightning_attn_fwd: "Q K V decay scale initial_state output_final_state "
    "chunk_size",
    cula.lightning.lightning_attn_fwd_varlen: "Q K V decay cu_seqlens scale state_pool "
    "initial_state_indices chunk_size persistent",
    cula.lightning.linear_attention_decode: "q k v s out softmax_scale stride_q stride_k stride_v "
    "stride_s stride_o s_offsets decay_scales HEAD_DIM K_SPLIT_DIM V_SPLIT_DIM",
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda f: f.__qualname__)
def test_signatures(function):
    assert names(function) == SIGNATURES[function]


def test_cula_chooses_one_prefill_for_every_device():
    assert cula.utils.get_kda_fused_fwd("cpu") is cula.kda.kda_prefill_hopper
    with pytest.raises(RuntimeError):
        cula.utils.get_kda_fused_fwd("abacus")


def flash_kda_inputs(tokens=40, dtype=torch.bfloat16, batch=1):
    q, k, v, x, beta = make_inputs(FAMILIES["kda"], batch, tokens, dtype=dtype)
    return (
        q,
        3 * k,
        v,
        (4 * x).to(dtype),
        (6 * beta - 3).to(dtype),
        torch.randn(2),
        torch.randn(2, 16),
    )


def kda_oracle(q, k, v, x, logits, A_log, dt_bias, lower_bound, scale, **options):
    g = ops.fused_kda_gate(x.double(), A_log.double(), dt_bias.double(), lower_bound, torch.float64)
    q, k = (F.normalize(t.double(), dim=-1, eps=0) for t in (q, k))
    return ops.naive_recurrent_kda(
        q, k, v.double(), g, logits.double().sigmoid(), scale, output_final_state=True, **options
    )


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
def test_flash_kda_writes_in_place(state_dtype):
    q, k, v, g, beta, A_log, dt_bias = flash_kda_inputs(90)
    cu_seqlens = torch.tensor([0, 30, 30, 90])
    h0 = torch.randn(3, 2, 16, 16).to(state_dtype)
    out, final = torch.full_like(v, 7), torch.full_like(h0, 7)
    result = flash_kda.fwd(q, k, v, g, beta, 0.3, out, A_log, dt_bias, -4.0, h0, final, cu_seqlens)
    assert result is None
    o, ht = kda_oracle(
        q,
        k,
        v,
        g,
        beta,
        A_log,
        dt_bias,
        -4.0,
        0.3,
        initial_state=h0.double(),
        cu_seqlens=cu_seqlens,
        state_v_first=True,
    )
    assert error(out, o) < 6e-3 and error(final, ht) < 6e-3
    assert torch.equal(final[1], h0[1])


def test_flash_kda_scale_zero_and_checks():
    q, k, v, g, beta, A_log, dt_bias = flash_kda_inputs()
    out = torch.full_like(v, 7)
    args = (q, k, v, g, beta, 0.0, out, A_log, dt_bias)
    flash_kda.fwd(*args, -5.0)
    assert not out.any()
    out.fill_(7)
    with pytest.raises(ValueError, match="lower_bound is -6"):
        flash_kda.fwd(*args, -6.0)
    with pytest.raises(ValueError, match="final_state has shape"):
        flash_kda.fwd(*args, -5.0, None, torch.zeros(2, 2, 16, 16))
    with pytest.raises(TypeError, match="final_state has type"):
        flash_kda.fwd(*args, -5.0, None, torch.zeros(1, 2, 16, 16).double())
    with pytest.raises(RuntimeError, match="requires a gradient"):
        flash_kda.fwd(q.requires_grad_(), *args[1:], -5.0)
    assert bool((out == 7).all())


def test_flash_kda_workspace():
    small, large = flash_kda.get_workspace_size(128, 2), flash_kda.get_workspace_size(4096, 2, 4)
    assert 0 <= small <= large
    with pytest.raises(TypeError, match="T_total"):
        flash_kda.get_workspace_size(1.5, 2)


def test_flash_qla_operator():
    q, k, v, g, beta = make_inputs(FAMILIES["gdn"], batch=1, tokens=90, heads_v=4)
    options = {"cu_seqlens": torch.tensor([0, 40, 40, 90], dtype=torch.int32)}
    h0 = torch.randn(3, 4, 16, 16)
    o, ht = flash_qla.chunk_gated_delta_rule(q, k, v, g, beta, 0.2, h0, True, True, **options)
    o_ref, ht_ref = ops.chunk_gdn(
        q, k, v, g, beta, 0.2, h0, True, use_qk_l2norm_in_kernel=True, **options
    )
    assert torch.equal(o, o_ref) and torch.equal(ht, ht_ref)
    assert not flash_qla.chunk_gated_delta_rule(q, k, v, g, beta, 0)[0].any()
    with pytest.raises(NotImplementedError, match="head_first"):
        flash_qla.chunk_gated_delta_rule(q, k, v, g, beta, head_first=True)


@pytest.mark.parametrize("state_v_first", [False, True])
def test_flash_qla_forward_and_backward(state_v_first):
    q, k, v, g, beta = make_inputs(FAMILIES["gdn"], batch=1, tokens=90)
    h0 = torch.randn(1, 2, 16, 16)
    g_place, A, o, h, ht, cache = flash_qla.chunk_gated_delta_rule_fwd(
        q, k, v, g, beta, 0.2, h0, output_h=True, state_v_first=state_v_first
    )
    assert h.shape == (1, 2, 2, 16, 16) and torch.equal(h[:, 0], h0) and cache is None
    do, dht = torch.randn_like(o), torch.randn_like(ht)
    found = flash_qla.chunk_gated_delta_rule_bwd(
        q,
        k,
        v,
        g_place,
        beta,
        A,
        do,
        dht,
        0.2,
        h0,
        state_v_first=state_v_first,
        cp_cache=cache,
    )
    leaves = [t.clone().requires_grad_() for t in (q, k, v, beta, g, h0)]
    q, k, v, beta, g, h0 = leaves
    o_ref, ht_ref = FAMILIES["gdn"].naive(
        q, k, v, g, beta, scale=0.2, initial_state=h0, output_final_state=True,
        state_v_first=state_v_first,
    )  # fmt: skip
    ((o_ref * do).sum() + (ht_ref * dht).sum()).backward()
    assert error(o, o_ref.detach()) < 1e-5
    for a, leaf in zip(found, leaves, strict=True):
        assert error(a, leaf.grad) < 2e-5
    with pytest.raises(ValueError, match="A has shape"):
        flash_qla.chunk_gated_delta_rule_bwd(q, k, v, g, beta, torch.ones(2), do)


def test_cula_chunk_and_prefill():
    q, k, v, x, beta, A_log, dt_bias = flash_kda_inputs(70, torch.float32)
    beta = beta.sigmoid()
    options = {
        "use_qk_l2norm_in_kernel": True,
        "use_gate_in_kernel": True,
        "safe_gate": True,
        "lower_bound": -5.0,
        "A_log": A_log,
        "dt_bias": dt_bias.flatten(),
    }
    h0 = torch.randn(1, 2, 16, 16)
    o, ht = cula.kda.chunk_kda(q, k, v, x, beta, None, h0, True, **options)
    o_v, ht_v = cula.kda.kda_prefill_hopper(q, k, v, x, beta, None, h0.mT, True, **options)
    assert error(o_v, o) < 1e-6 and error(ht_v.mT, ht) < 1e-6
    assert cula.kda.kda_prefill_hopper(q, k, v, x, beta, **options)[1] is None
    states = cula.kda.chunk_kda(q, k, v, x, beta, return_intermediate_states=True, **options)[2]
    assert states.shape == (1, 2, 2, 16, 16)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("layout", ["vk", "kv"])
@pytest.mark.parametrize("softplus", [(1.0, 20.0), (2.0, 5.0)])
def test_cula_decode(packed, layout, softplus):
    q, k, v, a, b = make_inputs(FAMILIES["kda"], batch=3, tokens=1, heads_v=4, dim_v=32)
    a, b, k = 4 * a, 6 * b - 3, 3 * k
    A_log, dt_bias = torch.randn(4), torch.randn(4, 16)
    pool = torch.randn(6, 4, 16, 32)
    before = pool.clone()
    slots = torch.tensor([4, -1, 0], dtype=torch.int32)
    source = pool.mT.contiguous() if layout == "vk" else pool
    tensors = [t.transpose(0, 1) if packed else t for t in (q, k, v, a, b)]
    out = torch.full_like(tensors[2], 7)
    o = cula.kda.kda_decode(
        A_log,
        dt_bias,
        *tensors,
        source,
        slots,
        softplus_beta=softplus[0],
        softplus_threshold=softplus[1],
        out=out,
        state_layout=layout,
    )
    assert o.data_ptr() == out.data_ptr() and o.shape == out.shape
    g = -A_log.exp()[:, None] * F.softplus(a + dt_bias, *softplus)
    q, k = (F.normalize(t, dim=-1) for t in (q, k))
    o_ref, ht = ops.naive_recurrent_kda(
        q, k, v, g, b.sigmoid(), initial_state=before[[4, 0, 0]], output_final_state=True
    )
    o_ref[1] = 0  # the dead row: zero, not what the buffer held
    assert error(o.transpose(0, 1) if packed else o, o_ref) < 1e-5
    after = source.mT if layout == "vk" else source
    assert error(after[[4, 0]], ht[[0, 2]]) < 1e-5
    assert torch.equal(after[[1, 2, 3, 5]], before[[1, 2, 3, 5]])


def test_cula_update_of_the_gated_delta_rule():
    q, k, v, a, b = make_inputs(FAMILIES["gdn"], batch=2, tokens=1)
    A_log, dt_bias, pool = torch.randn(2), torch.randn(2), torch.randn(3, 2, 16, 16)
    before = pool.clone()
    slots = torch.tensor([2, 1], dtype=torch.int32)
    o = cula.kda.fused_sigmoid_gating_delta_rule_update(
        A_log, a, dt_bias, 1.0, 20.0, q, k, v, b, pool, slots, state_layout="kv"
    )
    g = ops.fused_gdn_gate(a, A_log, dt_bias)
    o_ref, ht = FAMILIES["gdn"].naive(
        q, k, v, g, b.sigmoid(), initial_state=before[[2, 1]], output_final_state=True
    )
    assert error(o, o_ref) < 1e-5 and error(pool[[2, 1]], ht) < 1e-5
    with pytest.raises(ValueError, match=r"^a has shape"):
        cula.kda.fused_sigmoid_gating_delta_rule_update(
            A_log, a[..., :1], dt_bias, 1.0, 20.0, q, k, v, b, pool, slots, state_layout="kv"
        )
    with pytest.raises(ValueError, match="state_layout"):
        cula.kda.fused_sigmoid_gating_delta_rule_update(
            A_log, a, dt_bias, 1.0, 20.0, q, k, v, b, pool, slots, state_layout="xy"
        )


def test_cula_lightning():
    q, k, v = make_inputs(FAMILIES["lightning"], batch=1, tokens=90)
    decay = torch.tensor([0.0, 0.4])
    naive = ops.naive_recurrent_simple_gla
    h0 = torch.randn(1, 2, 16, 16)
    o, ht = cula.lightning.lightning_attn_fwd(q, k, v, decay, 1.0, h0, True)
    o_ref, ht_ref = naive(q, k, v, -decay, 1.0, h0, state_v_first=True)
    assert error(o, o_ref) < 1e-5 and error(ht, ht_ref) < 1e-5
    cu_seqlens = torch.tensor([0, 50, 50, 90], dtype=torch.int32)
    o, pool = cula.lightning.lightning_attn_fwd_varlen(q, k, v, decay, cu_seqlens)
    o_ref, ht_ref = naive(q, k, v, -decay, 1.0, cu_seqlens=cu_seqlens, state_v_first=True)
    assert error(o, o_ref) < 1e-5 and error(pool, ht_ref) < 1e-5
    again = torch.zeros(5, 2, 16, 16)
    slots = torch.tensor([4, 0, 2], dtype=torch.int32)
    o, same = cula.lightning.lightning_attn_fwd_varlen(
        q, k, v, decay, cu_seqlens, 1.0, again, slots
    )
    assert same is again and error(again[[4, 0, 2]], ht_ref) < 1e-5
    with pytest.raises(ValueError, match=r"state_pool has 2 slots; .* at least 3"):
        cula.lightning.lightning_attn_fwd_varlen(q, k, v, decay, cu_seqlens, 1.0, again[:2])


def test_cula_lightning_decode():
    q, k, v = (t[:, 0] for t in make_inputs(FAMILIES["lightning"], batch=3, tokens=1))
    decay, state = torch.tensor([0.1, 0.4]), torch.randn(5, 2, 16, 16)
    before, out = state.clone(), torch.empty_like(v)
    slots = torch.tensor([3, 0, 4], dtype=torch.int32)

    def step(**changes):
        strides = {
            "stride_q": q.stride(0),
            "stride_k": k.stride(0),
            "stride_v": v.stride(0),
            "stride_s": state.stride(0),
            "stride_o": out.stride(0),
        }
        sizes = {"HEAD_DIM": 16, "K_SPLIT_DIM": 16, "V_SPLIT_DIM": 16}
        options = {**strides, "s_offsets": slots, "decay_scales": decay, **sizes, **changes}
        return cula.lightning.linear_attention_decode(q, k, v, state, out, 1.0, **options)

    assert step() is None
    o_ref, ht = ops.naive_recurrent_simple_gla(
        q[:, None], k[:, None], v[:, None], -decay, 1.0, before[[3, 0, 4]], state_v_first=True
    )
    assert error(out, o_ref[:, 0]) < 1e-5 and error(state[[3, 0, 4]], ht) < 1e-5
    assert torch.equal(state[[1, 2]], before[[1, 2]])
    for name, value in (("stride_q", 5), ("HEAD_DIM", 8), ("K_SPLIT_DIM", 5)):
        with pytest.raises(ValueError, match=name):
            step(**{name: value})
