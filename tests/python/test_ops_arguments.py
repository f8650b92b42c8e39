"""Arguments refused before the call, and that the library's own text arrives."""

import warnings

import pytest
import torch
from families import FAMILIES, make_inputs

from linattn import ops

FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
FORMS = pytest.mark.parametrize("form", ["chunk", "recurrent"])


def kda():
    return make_inputs(FAMILIES["kda"], tokens=5)


@FAMILY
@FORMS
def test_unknown_keyword(family, form):
    with pytest.raises(TypeError, match="use_magic"):
        getattr(family, form)(*make_inputs(family, tokens=5), use_magic=True)


@FAMILY
@FORMS
def test_every_input_must_be_a_tensor(family, form):
    inputs = make_inputs(family, tokens=5)
    for position, name in enumerate(family.names()):
        wrong = list(inputs)
        wrong[position] = [1.0, 2.0]
        with pytest.raises(TypeError, match=rf"{name}k? has type list"):
            getattr(family, form)(*wrong)


@pytest.mark.parametrize(
    "name",
    [
        "initial_state",
        "cu_seqlens",
        "state_indices",
        "output_state_indices",
        "has_initial_state",
        "num_accepted_tokens",
        "out",
    ],
)
def test_every_option_must_be_a_tensor(name):
    with pytest.raises(TypeError, match=rf"{name} has type int"):
        ops.fused_recurrent_kda(*kda(), **{name: 3})


@pytest.mark.parametrize(
    ("op", "option"),
    [
        (ops.chunk_kda, {"cp_context": object()}),
        (ops.chunk_gated_delta_rule, {"cp_context": object()}),
        (ops.chunk_gated_delta_rule, {"head_first": True}),
        (ops.chunk_delta_rule, {"head_first": True}),
        (ops.chunk_simple_gla, {"head_first": True}),
        (ops.chunk_lightning_attn, {"head_first": True}),
        (ops.fused_recurrent_lightning_attn, {"head_first": True}),
        (ops.fused_recurrent_lightning_attn, {"reverse": True}),
        (ops.fused_recurrent_simple_gla, {"reverse": True}),
        (ops.fused_recurrent_gla, {"reverse": True}),
        (ops.fused_recurrent_gla, {"gv": torch.zeros(1)}),
        (ops.fused_recurrent_gated_delta_rule, {"gv": torch.zeros(1)}),
    ],
    ids=lambda value: value.__name__ if callable(value) else next(iter(value)),
)
def test_what_fla_has_and_linattn_has_not(op, option):
    q, k, v, g, beta = make_inputs(FAMILIES["gdn"], tokens=5)
    inputs = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "layer_idx": 0, "num_layers": 2}
    import inspect

    taken = {n: inputs[n] for n in inspect.signature(op).parameters if n in inputs}
    with pytest.raises(NotImplementedError, match=next(iter(option))):
        op(**taken, **option)


@pytest.mark.parametrize("family", ["kda", "gdn", "delta"])
@FORMS
def test_headwise_beta(family, form):
    inputs = make_inputs(FAMILIES[family], tokens=5)
    inputs[-1] = torch.rand(2, 5, 2, 16)
    with pytest.raises(NotImplementedError, match="beta"):
        getattr(FAMILIES[family], form)(*inputs)


def test_old_name_of_the_layout():
    inputs, h0 = kda(), torch.randn(2, 2, 16, 16)
    expected = ops.chunk_kda(*inputs, initial_state=h0, state_v_first=True)[0]
    with pytest.warns(DeprecationWarning, match="state_v_first"):
        o, _ = ops.chunk_kda(*inputs, initial_state=h0, transpose_state_layout=True)
    assert torch.equal(o, expected)
    with pytest.raises(ValueError, match="transpose_state_layout"):
        ops.chunk_kda(*inputs, state_v_first=True, transpose_state_layout=True)


def test_hints_change_nothing():
    q, k, v, g, beta = make_inputs(FAMILIES["gdn"], batch=1, tokens=90)
    cu_seqlens = torch.tensor([0, 40, 90])
    o, _ = ops.chunk_gdn(q, k, v, g, beta, cu_seqlens=cu_seqlens)
    hinted, _ = ops.chunk_gdn(
        q,
        k,
        v,
        g,
        beta,
        cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=cu_seqlens.clone(),
        chunk_indices=torch.tensor([[0, 0], [1, 0]]),
        chunk_size=16,
    )
    assert torch.equal(o, hinted)
    assert torch.equal(
        ops.chunk_kda(*kda(), disable_recompute=True, chunk_size=32)[0], ops.chunk_kda(*kda())[0]
    )


VALUES = [
    ({"chunk_size": 48}, ValueError, "chunk_size is 48; allowed: 32, 64"),
    ({"chunk_size": "64"}, TypeError, "chunk_size has type str"),
    ({"chunk_indices": torch.zeros(1, 2)}, ValueError, "chunk_indices is given without"),
    ({"cu_seqlens_cpu": torch.tensor([0, 5])}, ValueError, "cu_seqlens_cpu is given without"),
    ({"scale": "1"}, TypeError, "scale has type str"),
    ({"scale": torch.tensor(1.0)}, TypeError, "scale has type Tensor"),
    ({"scale": float("nan")}, ValueError, "scale is nan"),
    ({"lower_bound": "-5"}, TypeError, "lower_bound has type str"),
    ({"lower_bound": -5.0}, ValueError, "lower_bound is -5"),
    ({"null_state_index": 0.5}, TypeError, "null_state_index has type float"),
    ({"null_state_index": 0}, ValueError, "null_state_index is 0 without state_indices"),
    ({"allow_neg_eigval": True}, ValueError, "allow_neg_eigval is True"),
    ({"A_log": torch.zeros(2)}, ValueError, "A_log"),
    ({"output_state_dtype": torch.float64}, TypeError, "output_state_dtype is torch.float64"),
    ({"output_state_dtype": torch.float16}, ValueError, "output_final_state is False"),
    ({"state_every": 64}, ValueError, "state_every is 64"),
    ({"state_every": 0}, ValueError, "state_every is 0"),
    ({"state_every": 6.4}, TypeError, "state_every has type float"),
    (
        {"state_every": 96, "return_intermediate_states": True},
        ValueError,
        "state_every is 96; allowed: a positive multiple of 64",
    ),
    ({"has_initial_state": torch.tensor([True, True])}, ValueError, "initial_state"),
    ({"num_accepted_tokens": torch.tensor([1, 1])}, ValueError, "num_accepted_tokens"),
    ({"output_state_indices": torch.tensor([1, 1])}, ValueError, "output_state_indices"),
    ({"state_indices": torch.tensor([1, 1])}, ValueError, "initial_state is None"),
    ({"out": torch.empty(2, 5, 2, 15)}, ValueError, r"out has shape \[2,5,2,15\]"),
    ({"out": torch.empty(2, 5, 2, 16).double()}, TypeError, "out has type float64"),
    ({"initial_state": torch.zeros(2, 2, 16, 8)}, ValueError, "initial_state has shape"),
]


@pytest.mark.parametrize(
    ("option", "error", "text"), VALUES, ids=["-".join(option) for option, _, _ in VALUES]
)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_values(option, error, text, needs_grad):
    q, *rest = kda()
    if needs_grad and "out" in option:
        error, text = RuntimeError, "out is given"
    if needs_grad and "state_indices" in option:
        error, text = RuntimeError, "state_indices is given"
    with pytest.raises(error, match=text):
        ops.chunk_kda(q.requires_grad_(needs_grad), *rest, **option)


@pytest.mark.parametrize("form", ["chunk", "fused_recurrent"])
@pytest.mark.parametrize(
    ("layer", "error", "text"),
    [
        ((4, 4), ValueError, "layer_idx is 4"),
        ((-1, 4), ValueError, "layer_idx is -1"),
        ((0, 0), ValueError, "num_layers is 0"),
        ((0.5, 4), TypeError, "layer_idx has type float"),
    ],
)
def test_lightning_layers(form, layer, error, text):
    q, k, v = make_inputs(FAMILIES["lightning"], tokens=5)
    with pytest.raises(error, match=text):
        getattr(ops, f"{form}_lightning_attn")(q, k, v, *layer)


def test_odd_tensors():
    q, *rest = kda()
    with pytest.raises(TypeError, match="q has layout"):
        ops.chunk_kda(q.to_sparse(), *rest)
    with pytest.raises(TypeError, match="q has type"):
        ops.chunk_kda(q.to(torch.complex64), *rest)
    with pytest.raises(TypeError, match="k has type"):
        ops.chunk_kda(q, rest[0].double(), *rest[1:])
    for bad in (q[0], q[None, None], torch.tensor(1.0)):
        with pytest.raises(ValueError, match="q has"):
            ops.chunk_kda(bad, *rest)


def test_outputs_are_untouched_by_a_refused_call():
    q, k, v, g, beta = kda()
    out, pool = torch.full_like(v, 7.0), torch.full((4, 2, 16, 16), 7.0)
    with pytest.raises(ValueError, match="beta has shape"):
        ops.fused_recurrent_kda(
            q,
            k,
            v,
            g,
            beta[:, :4],
            initial_state=pool,
            state_indices=torch.tensor([0, 1]),
            out=out,
        )
    assert bool((out == 7).all()) and bool((pool == 7).all())


def test_no_warnings_on_the_plain_path():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for family in FAMILIES.values():
            family.chunk(*make_inputs(family, tokens=5))


def test_errors_use_the_callers_names():
    q, k, v, g, beta = kda()
    bad = g[..., :3]
    with pytest.raises(ValueError, match=r"^gk has shape"):
        ops.fused_recurrent_gla(q, k, v, bad)
    with pytest.raises(ValueError, match=r"^gk has shape"):
        ops.fused_recurrent_gated_delta_rule(q, k, v, gk=bad, beta=beta)
    with pytest.raises(ValueError, match=r"^g has shape"):
        ops.fused_recurrent_gated_delta_rule(q, k, v, g=bad, beta=beta)
