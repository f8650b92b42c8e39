"""Gradients of every operator against autograd through the naive recurrence in fp64."""

import itertools

import pytest
import torch
from families import FAMILIES, doubled, error, make_inputs
from torch.utils.checkpoint import checkpoint

from linattn import ops

FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
FORMS = pytest.mark.parametrize("form", ["chunk", "recurrent"])
BOUND = 2e-5


def weights(o, ht):
    generator = torch.Generator().manual_seed(7)
    return (
        torch.randn(o.shape, generator=generator).to(o.dtype),
        torch.randn(ht.shape, generator=generator).to(ht.dtype),
    )


def gradients(op, tensors, needs=None, use_o=True, use_ht=True, **options):
    """Gradients of a weighted sum of o and the final state; the last tensor is the state."""
    needs = [True] * len(tensors) if needs is None else needs
    leaves = [t.detach().clone().requires_grad_(n) for t, n in zip(tensors, needs, strict=True)]
    o, ht = op(*leaves[:-1], initial_state=leaves[-1], output_final_state=use_ht, **options)
    loss = 0.0
    weight_o, weight_ht = weights(o, ht if use_ht else o)
    if use_o:
        loss = loss + (o * weight_o).sum()
    if use_ht:
        loss = loss + (ht * weight_ht).sum()
    loss.backward()
    return [leaf.grad for leaf in leaves]


def expected(family, tensors, **options):
    return gradients(family.naive, doubled(tensors), **options)


@FAMILY
@FORMS
@pytest.mark.parametrize(("use_o", "use_ht"), [(True, True), (True, False), (False, True)])
def test_all_gradients(family, form, use_o, use_ht):
    tensors = [*make_inputs(family, heads_v=4, dim_v=24), torch.randn(2, 4, 16, 24)]
    options = {"use_o": use_o, "use_ht": use_ht}
    found = gradients(getattr(family, form), tensors, **options)
    # Without o in the loss q has no part in it: torch gives None, the operator zeros.
    for name, a, b in zip((*family.names(), "h0"), found, expected(family, tensors, **options),
                          strict=True):  # fmt: skip
        b = torch.zeros_like(a) if b is None else b
        assert a.shape == b.shape and error(a, b) < BOUND, (name, error(a, b))


@FAMILY
def test_any_subset_needs_a_gradient(family):
    tensors = [*make_inputs(family, tokens=20), torch.randn(2, 2, 16, 16)]
    everything = gradients(family.chunk, tensors)
    for needs in itertools.product([False, True], repeat=len(tensors)):
        if not any(needs):
            continue
        for wanted, found, full in zip(
            needs, gradients(family.chunk, tensors, needs), everything, strict=True
        ):
            assert (found is not None) == wanted
            if wanted:
                assert error(found, full) < 1e-6


@FAMILY
def test_packed_sequences_and_value_first_states(family):
    tensors = [*make_inputs(family, batch=1, tokens=90), torch.randn(3, 2, 16, 16)]
    options = {"cu_seqlens": torch.tensor([0, 65, 65, 90]), "state_v_first": True}
    for form in (family.chunk, family.recurrent):
        found = gradients(form, tensors, **options)
        for a, b in zip(found, expected(family, tensors, **options), strict=True):
            assert error(a, b) < BOUND


@FAMILY
def test_has_initial_state(family):
    tensors = [*make_inputs(family, tokens=9), torch.randn(2, 2, 16, 16)]
    has = torch.tensor([True, False])
    found = gradients(family.chunk, tensors, has_initial_state=has)
    tensors[-1][1] = 0
    want = expected(family, tensors)
    assert not found[-1][1].any() and error(found[-1][0], want[-1][0]) < BOUND
    assert error(found[0], want[0]) < BOUND


@FAMILY
def test_expanded_and_strided_gradients_of_the_output(family):
    inputs = make_inputs(family, tokens=30)
    leaves = [t.clone().requires_grad_() for t in inputs]
    family.chunk(*leaves)[0].sum().backward()
    again = [t.clone().requires_grad_() for t in inputs]
    family.chunk(*again)[0].backward(torch.ones(2, 30, 2, 16))
    for a, b in zip(leaves, again, strict=True):
        assert torch.equal(a.grad, b.grad)
    once_more = [t.clone().requires_grad_() for t in inputs]
    grad = torch.ones(2, 2, 16, 30).permute(0, 3, 1, 2)
    family.chunk(*once_more)[0].backward(grad)
    for a, b in zip(once_more, again, strict=True):
        assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("lower_bound", [None, -4.0])
def test_kda_raw_inputs(lower_bound):
    q, k, v, x, beta = make_inputs(FAMILIES["kda"], tokens=40, heads_v=4)
    A_log, dt_bias = torch.randn(4) * 0.5, torch.randn(4, 16)
    tensors = [2 * q, 3 * k, v, 4 * x, 6 * beta - 3, A_log, dt_bias]

    def fused(q, k, v, x, beta, A_log, dt_bias):
        return ops.chunk_kda(
            q,
            k,
            v,
            x,
            beta,
            A_log=A_log,
            dt_bias=dt_bias,
            lower_bound=lower_bound,
            use_gate_in_kernel=True,
            use_qk_l2norm_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            allow_neg_eigval=True,
        )[0]

    def plain(q, k, v, x, beta, A_log, dt_bias):
        def norm(t):
            return t * torch.rsqrt(t.square().sum(-1, keepdim=True) + 1e-6)

        g = ops.fused_kda_gate(x, A_log, dt_bias, lower_bound, torch.float64)
        return ops.naive_recurrent_kda(norm(q), norm(k), v, g, 2 * beta.sigmoid())[0]

    results = []
    for function, dtype in ((fused, torch.float32), (plain, torch.float64)):
        leaves = [t.detach().to(dtype).clone().requires_grad_() for t in tensors]
        function(*leaves).sin().sum().backward()
        results.append([t.grad for t in leaves])
    for a, b in zip(*results, strict=True):
        assert a.shape == b.shape and error(a, b) < BOUND


def test_gdn_raw_inputs():
    q, k, v, x, logits = make_inputs(FAMILIES["gdn"], tokens=40)
    tensors = [q, k, v, 4 * x, logits, torch.randn(2), torch.randn(2)]
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [t.detach().to(dtype).clone().requires_grad_() for t in tensors]
        *main, A_log, dt_bias = leaves
        if dtype == torch.float32:
            o, _ = ops.chunk_gdn(
                *main,
                use_gate_in_kernel=True,
                A_log=A_log,
                dt_bias=dt_bias,
                use_beta_sigmoid_in_kernel=True,
            )
        else:
            q, k, v, x, logits = main
            g = ops.fused_gdn_gate(x, A_log, dt_bias, torch.float64)
            o, _ = FAMILIES["gdn"].naive(q, k, v, g, logits.sigmoid())
        o.sin().sum().backward()
        results.append([t.grad for t in leaves])
    for a, b in zip(*results, strict=True):
        assert error(a, b) < BOUND


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@FAMILY
def test_gradients_have_their_inputs_types(family, dtype):
    inputs = make_inputs(family, dtype=dtype)
    h0 = torch.randn(2, 2, 16, 16).to(dtype)
    found = gradients(family.chunk, [*inputs, h0])
    for a, t, b in zip(found, (*inputs, h0), expected(family, [*inputs, h0]), strict=True):
        assert a.dtype == t.dtype and error(a, b) < 1e-2


@FAMILY
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(family, reentrant):
    tensors = [*make_inputs(family, tokens=20), torch.randn(2, 2, 16, 16)]

    def through_checkpoint(*inputs, initial_state, output_final_state):
        def op(state, *inner):
            return family.chunk(*inner, initial_state=state, output_final_state=output_final_state)

        return checkpoint(op, initial_state, *inputs, use_reentrant=reentrant)

    for a, b in zip(
        gradients(through_checkpoint, tensors), gradients(family.chunk, tensors), strict=True
    ):
        assert torch.equal(a, b)


@FAMILY
def test_saved_tensors_are_unpacked_once(family):
    inputs = [t.requires_grad_() for t in make_inputs(family, tokens=5)]
    unpacked = []

    def unpack(position):
        unpacked.append(position)
        return saved[position]

    saved = []

    def pack(t):
        saved.append(t)
        return len(saved) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        o, _ = family.chunk(*inputs)
    o.backward(torch.ones_like(o))
    assert sorted(unpacked) == list(range(len(saved))) and saved


@FAMILY
@FORMS
def test_gradient_of_a_gradient_is_refused(family, form):
    inputs = [t.requires_grad_() for t in make_inputs(family, tokens=5)]
    o, _ = getattr(family, form)(*inputs)
    (dq,) = torch.autograd.grad(o.sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="gradient of a gradient"):
        dq.sum().backward()


@FAMILY
@FORMS
def test_pool_with_a_gradient_is_refused(family, form):
    inputs = make_inputs(family, tokens=2)
    inputs[0].requires_grad_()
    pool = torch.randn(4, 2, 16, 16)
    before = pool.clone()
    options = {"initial_state": pool, "state_indices": torch.tensor([1, 2])}
    with pytest.raises(RuntimeError, match="state_indices"):
        getattr(family, form)(*inputs, **options)
    assert torch.equal(pool, before)
    with torch.no_grad():
        getattr(family, form)(*inputs, **options)
    assert not torch.equal(pool, before)


def test_out_with_a_gradient_is_refused():
    q, k, v, g, beta = make_inputs(FAMILIES["kda"], tokens=2)
    with pytest.raises(RuntimeError, match="out is given"):
        ops.chunk_kda(q.requires_grad_(), k, v, g, beta, out=torch.empty_like(v))


LOW_LEVEL = {
    "kda": (ops.chunk_kda_fwd, ops.chunk_kda_bwd),
    "gdn": (ops.chunk_gated_delta_rule_fwd, ops.chunk_gated_delta_rule_bwd),
    "delta": (ops.chunk_delta_rule_fwd, ops.chunk_delta_rule_bwd),
    "gla": (ops.chunk_gla_fwd, ops.chunk_gla_bwd),
    "simple_gla": (ops.chunk_simple_gla_fwd, ops.chunk_simple_gla_bwd),
    "lightning": (ops.chunk_lightning_attn_fwd, ops.chunk_lightning_attn_bwd),
}


@pytest.mark.parametrize("name", LOW_LEVEL)
def test_low_level_pair_is_the_operators_gradient(name):
    family, (fwd, bwd) = FAMILIES[name], LOW_LEVEL[name]
    options = {"layer_idx": 1, "num_layers": 4} if name == "lightning" else {}
    inputs = make_inputs(family, tokens=30)
    h0 = torch.randn(2, 2, 16, 16)
    want = gradients(family.chunk, [*inputs, h0])
    result = fwd(*inputs, initial_state=h0, output_final_state=True, **options)
    do, dht = weights(result.o, result.final_state)
    found = bwd(result, do, dht)
    names = {"q": "dq", "k": "dk", "v": "dv", "g": "dg", "beta": "dbeta"}
    for argument, b in zip((*family.names(), "h0"), want, strict=True):
        assert torch.equal(getattr(found, names.get(argument, "dh0")), b)
    some = bwd(result.saved, do, dht, wanted=("dv",))
    assert torch.equal(some.dv, found.dv) and some.dq is None and some.dh0 is None
    with pytest.raises(ValueError, match="wanted"):
        bwd(result, do, wanted=("dz",))
    with pytest.raises(TypeError, match="do"):
        bwd(result, None)
