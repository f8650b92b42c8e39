"""Forward results of every operator against the naive recurrence in fp64."""

import pytest
import torch
from families import FAMILIES, doubled, error, make_inputs
from torch.nn import functional as F

import linattn
from linattn import ops

FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
FORMS = pytest.mark.parametrize("form", ["chunk", "recurrent"])
BOUND = {torch.float32: 1e-5, torch.bfloat16: 6e-3, torch.float16: 6e-3}


def reference(family, inputs, initial_state=None, **options):
    h0 = None if initial_state is None else initial_state.double()
    return family.naive(*doubled(inputs), initial_state=h0, output_final_state=True, **options)


@FAMILY
@FORMS
@pytest.mark.parametrize("dtype", list(BOUND), ids=str)
def test_matches_naive(family, form, dtype):
    inputs = make_inputs(family, dtype=dtype, dim_k=32, dim_v=24, heads_v=4)
    h0 = torch.randn(2, 4, 32, 24)
    o, ht = getattr(family, form)(*inputs, initial_state=h0, output_final_state=True)
    o_ref, ht_ref = reference(family, inputs, h0)
    assert o.dtype == dtype and ht.dtype == torch.float32
    assert error(o, o_ref) < BOUND[dtype]
    assert error(ht, ht_ref) < BOUND[dtype]


@FAMILY
@FORMS
def test_forced_reference_agrees(family, form):
    inputs = make_inputs(family, tokens=130)
    o, ht = getattr(family, form)(*inputs, output_final_state=True)
    with linattn.force("reference"):
        o_ref, ht_ref = getattr(family, form)(*inputs, output_final_state=True)
        assert linattn.last_implementation() == "reference"
    assert error(o, o_ref) < 1e-5
    assert error(ht, ht_ref) < 1e-5


@FAMILY
def test_no_final_state_unless_asked(family):
    inputs = make_inputs(family, tokens=3)
    for op in (family.chunk, family.recurrent):
        o, ht = op(*inputs, initial_state=torch.zeros(2, 2, 16, 16))
        assert ht is None and o.shape == inputs[2].shape


@FAMILY
@FORMS
def test_packed_sequences(family, form):
    inputs = make_inputs(family, batch=1, tokens=100)
    cu_seqlens = torch.tensor([0, 1, 1, 67, 93])
    h0 = torch.randn(4, 2, 16, 16)
    inputs[2][:, 93:] = float("nan")  # no sequence owns these rows
    o, ht = getattr(family, form)(
        *inputs, initial_state=h0, output_final_state=True, cu_seqlens=cu_seqlens
    )
    owned = [t[:, :93] for t in inputs]
    o_ref, ht_ref = reference(family, owned, h0, cu_seqlens=cu_seqlens)
    assert error(o[:, :93], o_ref) < 1e-5
    assert error(ht, ht_ref) < 1e-5
    assert not o[:, 93:].any()
    assert torch.equal(ht[1], h0[1])  # an empty sequence passes its state through


@FAMILY
@FORMS
def test_value_first_states(family, form):
    inputs = make_inputs(family, dim_k=8, dim_v=24)
    h0 = torch.randn(2, 2, 8, 24)
    op = getattr(family, form)
    o, ht = op(*inputs, initial_state=h0, output_final_state=True)
    o_v, ht_v = op(
        *inputs, initial_state=h0.mT.contiguous(), output_final_state=True, state_v_first=True
    )
    assert error(o_v, o) < 1e-6 and error(ht_v.mT, ht) < 1e-6


@FAMILY
def test_intermediate_states(family):
    inputs = make_inputs(family, batch=1, tokens=200, dtype=torch.bfloat16)
    states = family.chunk(*inputs, return_intermediate_states=True)[2]
    assert states.shape == (1, 4, 2, 16, 16) and states.dtype == torch.bfloat16
    assert not states[:, 0].any()
    for row in (1, 2, 3):
        _, prefix = reference(family, [t[:, : 64 * row] for t in inputs])
        assert error(states[:, row], prefix) < 6e-3
    thin = family.chunk(*inputs, return_intermediate_states=True, state_every=128)[2]
    assert torch.equal(thin, states[:, ::2])


@FAMILY
def test_intermediate_states_of_packed_sequences(family):
    inputs = make_inputs(family, batch=1, tokens=200)
    cu_seqlens = torch.tensor([0, 70, 70, 200], dtype=torch.int32)
    states = family.chunk(*inputs, cu_seqlens=cu_seqlens, return_intermediate_states=True)[2]
    assert states.shape[1] == 2 + 0 + 3
    assert not states[0, 0].any() and not states[0, 2].any()
    _, prefix = reference(family, [t[:, 70:134] for t in inputs])
    assert error(states[:, 3], prefix) < 1e-5


@FAMILY
@FORMS
def test_state_types(family, form):
    inputs = make_inputs(family, tokens=5)
    h0 = torch.randn(2, 2, 16, 16).to(torch.bfloat16)
    _, ht = getattr(family, form)(
        *inputs, initial_state=h0, output_final_state=True, output_state_dtype=torch.float16
    )
    assert ht.dtype == torch.float16
    assert error(ht, reference(family, inputs, h0)[1]) < 2e-3


@FAMILY
@FORMS
def test_scale(family, form):
    inputs = make_inputs(family, tokens=9)
    op = getattr(family, form)
    assert error(op(*inputs, scale=0.5)[0], 2 * op(*inputs)[0]) < 1e-6  # default is 16**-0.5
    assert not op(*inputs, scale=0)[0].any()


@FAMILY
@FORMS
def test_out_is_written(family, form):
    inputs = make_inputs(family, tokens=9)
    op = getattr(family, form)
    room = torch.full((2, 9, 2, 32), 7.0)
    out = room[..., ::2]
    o, _ = op(*inputs, out=out)
    assert o is out and torch.equal(out, op(*inputs)[0])
    assert bool((room[..., 1::2] == 7).all())


@FAMILY
@FORMS
def test_strided_inputs(family, form):
    inputs = make_inputs(family, tokens=40)
    op = getattr(family, form)
    expected = op(*inputs)[0]
    strided = [torch.stack([t, torch.full_like(t, float("nan"))], -1)[..., 0] for t in inputs]
    assert not strided[0].is_contiguous()
    assert torch.equal(op(*strided)[0], expected)
    swapped = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in inputs]
    assert torch.equal(op(*swapped)[0], expected)


@FAMILY
def test_empty_calls(family):
    inputs = make_inputs(family, tokens=0)
    h0 = torch.randn(2, 2, 16, 16)
    for op in (family.chunk, family.recurrent):
        o, ht = op(*inputs, initial_state=h0, output_final_state=True)
        assert o.shape == (2, 0, 2, 16) and torch.equal(ht, h0)


@FAMILY
def test_has_initial_state(family):
    inputs = make_inputs(family, tokens=5)
    h0 = torch.randn(2, 2, 16, 16)
    expected = family.recurrent(
        *inputs, initial_state=h0 * torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)
    )
    h0 = h0.clone()
    h0[0] = float("nan")
    has = torch.tensor([False, True])
    for op in (family.chunk, family.recurrent):
        o, _ = op(*inputs, initial_state=h0, has_initial_state=has)
        assert error(o, expected[0]) < 1e-5


@FAMILY
@FORMS
def test_state_pool(family, form):
    inputs = make_inputs(family, batch=4, tokens=3)
    wide = torch.randn(6, 2, 16, 20)
    pool = torch.empty_strided((6, 2, 16, 16), (600, 256, 16, 1)).copy_(wide[..., :16])
    before = pool.clone()
    slots = torch.tensor([4, -1, 2, 5], dtype=torch.int32)
    o, final = getattr(family, form)(
        *inputs,
        initial_state=pool,
        output_final_state=True,
        state_indices=slots,
        null_state_index=5,
    )
    assert final is pool
    o_ref, ht_ref = reference(family, inputs, before[[4, 0, 2, 0]])
    for row, slot in ((0, 4), (2, 2)):
        assert error(o[row], o_ref[row]) < 1e-5
        assert error(pool[slot], ht_ref[row]) < 1e-5
    assert not o[1].any() and not o[3].any()
    untouched = [0, 1, 3, 5]
    assert torch.equal(pool[untouched], before[untouched])


@FAMILY
def test_separate_output_slots(family):
    inputs = make_inputs(family, batch=2, tokens=1)
    pool = torch.randn(5, 2, 16, 16)
    before = pool.clone()
    family.recurrent(
        *inputs,
        initial_state=pool,
        state_indices=torch.tensor([0, 1]),
        output_state_indices=torch.tensor([3, -1]),
    )
    _, ht = reference(family, inputs, before[:2])
    assert error(pool[3], ht[0]) < 1e-5
    assert torch.equal(pool[[0, 1, 2, 4]], before[[0, 1, 2, 4]])


def test_two_live_rows_may_not_share_a_slot():
    """They would race. Rows that are dead, and columns past the last token, write nothing."""
    family = FAMILIES["kda"]
    inputs = make_inputs(family, batch=3, tokens=2)
    pool = torch.randn(6, 2, 16, 16)
    before = pool.clone()

    def call(slots):
        slots = torch.tensor(slots)
        more = {"num_accepted_tokens": torch.ones(3, dtype=torch.int32)} if slots.dim() > 1 else {}
        family.recurrent(*inputs, initial_state=pool, state_indices=slots, output_final_state=True,
                         **more)  # fmt: skip

    for slots in ([4, 1, 4], [[0, 1], [2, 3], [4, 2]]):
        with pytest.raises(ValueError, match=r"state_indices sends sequences . and 2 to slot"):
            call(slots)
        assert torch.equal(pool, before)
    call([-1, 1, -1])
    call([[0, 1, 5], [2, 3, 5], [4, 4, 5]])


@FAMILY
def test_speculative_decoding(family):
    inputs = make_inputs(family, batch=2, tokens=3)
    pool = torch.randn(8, 2, 16, 16)
    before = pool.clone()
    slots = torch.tensor([[0, 1, 2], [5, 6, 7]])
    accepted = torch.tensor([2, 1])
    o, _ = family.recurrent(
        *inputs,
        initial_state=pool,
        state_indices=slots,
        num_accepted_tokens=accepted,
        output_final_state=True,
    )
    start = before[[1, 5]]
    o_ref, _ = reference(family, inputs, start)
    assert error(o, o_ref) < 1e-5
    for j in range(3):
        _, ht = reference(family, [t[:, : j + 1] for t in inputs], start)
        assert error(pool[slots[:, j]], ht) < 1e-5


@FAMILY
@FORMS
def test_flags_of_speed_change_nothing_much(family, form):
    inputs = make_inputs(family, batch=1, tokens=300, heads=1)
    op = getattr(family, form)
    o, _ = op(*inputs)
    assert error(op(*inputs, auto_cp=False)[0], o) < 1e-5
    assert error(op(*inputs, batch_invariant=True)[0], o) < 1e-5
    assert torch.equal(op(*inputs)[0], o)


def _raw(lower_bound):
    q, k, v, x, beta = make_inputs(FAMILIES["kda"], heads_v=4)
    return q * 2, k * 3, v, x * 4, beta * 6 - 3, torch.randn(4), torch.randn(4 * 16), lower_bound


@FORMS
@pytest.mark.parametrize("lower_bound", [None, -4.0])
@pytest.mark.parametrize("negative", [False, True])
def test_kda_computes_gate_norm_and_beta_inside(form, lower_bound, negative):
    q, k, v, x, logits, A_log, dt_bias, _ = _raw(lower_bound)
    op = getattr(FAMILIES["kda"], form)
    o, _ = op(
        q,
        k,
        v,
        x,
        logits,
        A_log=A_log,
        dt_bias=dt_bias,
        lower_bound=lower_bound,
        use_gate_in_kernel=True,
        use_qk_l2norm_in_kernel=True,
        use_beta_sigmoid_in_kernel=True,
        allow_neg_eigval=negative,
    )
    g = ops.fused_kda_gate(x.double(), A_log.double(), dt_bias.double(), lower_bound, torch.float64)
    beta = logits.double().sigmoid() * (2 if negative else 1)
    q, k = (F.normalize(t.double(), dim=-1, eps=0) for t in (q, k))
    o_ref, _ = ops.naive_recurrent_kda(q, k, v.double(), g, beta)
    assert error(o, o_ref) < 1e-5


@FORMS
def test_gdn_computes_gate_inside(form):
    q, k, v, x, beta = make_inputs(FAMILIES["gdn"], heads_v=4)
    A_log, dt_bias = torch.randn(4), torch.randn(4)
    o, _ = getattr(FAMILIES["gdn"], form)(
        q, k, v, 4 * x, beta, use_gate_in_kernel=True, A_log=A_log, dt_bias=dt_bias
    )
    g = ops.fused_gdn_gate(4 * x, A_log, dt_bias)
    assert error(o, FAMILIES["gdn"].naive(q, k, v, g, beta)[0]) < 1e-5


def test_gdn_recurrent_takes_a_channel_gate():
    q, k, v, g, beta = make_inputs(FAMILIES["gdn"], tokens=9)
    gk = -torch.rand(2, 9, 2, 16)
    o, _ = ops.fused_recurrent_gated_delta_rule(q, k, v, gk=gk, beta=beta)
    assert error(o, ops.naive_recurrent_kda(q, k, v, gk, beta)[0]) < 1e-5
    o, _ = ops.fused_recurrent_gated_delta_rule(q, k, v, g, gk, beta=beta)
    assert error(o, ops.naive_recurrent_kda(q, k, v, gk + g[..., None], beta)[0]) < 1e-5
    A_log = torch.randn(2)
    o, _ = ops.fused_recurrent_gated_delta_rule(
        q, k, v, g, gk, beta=beta, use_gate_in_kernel=True, A_log=A_log
    )
    total = gk + ops.fused_gdn_gate(g, A_log)[..., None]
    assert error(o, ops.naive_recurrent_kda(q, k, v, total, beta)[0]) < 1e-5


def test_absent_gates_and_betas():
    q, k, v, g, _ = make_inputs(FAMILIES["gdn"], tokens=9, heads_v=4)
    ones, zeros = torch.ones_like(g), torch.zeros_like(g)
    naive_gdn = FAMILIES["gdn"].naive
    assert error(ops.fused_recurrent_gdn(q, k, v)[0], naive_gdn(q, k, v, zeros, ones)[0]) < 1e-5
    assert error(ops.fused_recurrent_gdn(q, k, v, g)[0], naive_gdn(q, k, v, g, ones)[0]) < 1e-5
    o = ops.naive_recurrent_delta_rule(q, k, v, ones)[0]
    assert error(ops.fused_recurrent_delta_rule(q, k, v)[0], o) < 1e-5
    o = ops.naive_recurrent_simple_gla(q, k, v, zeros)[0]
    assert error(ops.fused_recurrent_gla(q, k, v)[0], o) < 1e-5
    assert error(ops.fused_recurrent_simple_gla(q, k, v)[0], o) < 1e-5
    assert error(ops.chunk_simple_gla(q, k, v)[0], o) < 1e-5


@pytest.mark.parametrize("op", [ops.chunk_simple_gla, ops.fused_recurrent_simple_gla])
def test_simple_gla_adds_its_two_gates(op):
    q, k, v, g = make_inputs(FAMILIES["simple_gla"], tokens=9)
    gamma = torch.tensor([-0.3, -0.7])
    naive = ops.naive_recurrent_simple_gla
    assert error(op(q, k, v, g_gamma=gamma)[0], naive(q, k, v, gamma)[0]) < 1e-5
    assert error(op(q, k, v, g, gamma)[0], naive(q, k, v, g + gamma)[0]) < 1e-5


def test_lightning_decay():
    log_decay = ops.lightning_log_decay(4, 1, 4)
    assert torch.allclose(log_decay, -torch.arange(4) * (8 / 4) * (1 - 1 / 4))
    q, k, v = make_inputs(FAMILIES["lightning"], heads_v=4)
    o, _ = ops.chunk_lightning_attn(q, k, v, 1, 4)
    assert error(o, ops.naive_recurrent_simple_gla(q, k, v, log_decay)[0]) < 1e-5


def test_aliases():
    assert ops.chunk_gdn is ops.chunk_gated_delta_rule
    assert ops.fused_recurrent_gdn is ops.fused_recurrent_gated_delta_rule


def test_serving_entry_of_kda():
    q, k, v, g, beta = make_inputs(FAMILIES["kda"], batch=2, tokens=1)
    pool = torch.randn(4, 2, 16, 16)
    ours = pool.clone()
    out = torch.empty_like(v)
    o, final = ops.fused_recurrent_kda_fwd(
        q, k, v, g, beta, initial_state=pool, ssm_state_indices=torch.tensor([3, 0]), out=out
    )
    o_ref, _ = ops.fused_recurrent_kda(
        q, k, v, g, beta, initial_state=ours, state_indices=torch.tensor([3, 0])
    )
    assert o is out and final is pool
    assert torch.equal(o, o_ref) and torch.equal(pool, ours)
    state = torch.randn(2, 2, 16, 16)
    expected = ops.fused_recurrent_kda(
        q, k, v, g, beta, initial_state=state, output_final_state=True
    )
    o, final = ops.fused_recurrent_kda_fwd(q, k, v, g, beta, initial_state=state)
    assert final is state and error(final, expected[1]) < 1e-6 and error(o, expected[0]) < 1e-6
    o, final = ops.fused_recurrent_kda_fwd(
        q, k, v, g, beta, inplace_final_state=False, output_final_state=True
    )
    assert final.shape == (2, 2, 16, 16)


def test_inputs_are_not_modified():
    for family in FAMILIES.values():
        inputs = make_inputs(family)
        h0 = torch.randn(2, 2, 16, 16)
        copies = [t.clone() for t in (*inputs, h0)]
        for op in (family.chunk, family.recurrent):
            op(*inputs, initial_state=h0, output_final_state=True)
        assert all(torch.equal(a, b) for a, b in zip((*inputs, h0), copies, strict=True))
