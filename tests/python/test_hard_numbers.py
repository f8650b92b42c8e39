"""Gates, betas, keys and sizes at which such kernels fail, against the recurrence in fp64."""

import pytest
import torch
from acceptance import DELTA, FAMILY, FORMS, gradients, reference, run
from families import FAMILIES, doubled, error, make_inputs
from torch.nn import functional as F

from linattn import ops

NINF = float("-inf")
# Log decays; a list alternates token by token.
GATES = {
    "zero": 0.0,
    "tiny": -1e-8,
    "one": -1.0,
    "five": -5.0,
    "eight": -8.0,
    "thirty": -30.0,
    "ten_thousand": -1e4,
    "infinite": NINF,
    "alternating": [0.0, -5.0],
    "alternating_infinite": [0.0, NINF],
    "resets": [-0.1] * 6 + [NINF],
    "random": None,
}
GATED = pytest.mark.parametrize("name", ["kda", "gdn", "gla", "simple_gla"])
BOUNDS = {torch.float32: (1e-5, 2e-5), torch.bfloat16: (6e-3, 1e-2)}


def decays(kind, shape):
    value = GATES[kind]
    if value is None:
        return -(10 ** torch.empty(shape).uniform_(-4, 1.5))
    tokens = torch.tensor(value if isinstance(value, list) else [value])
    tokens = tokens.repeat(shape[1])[: shape[1]]
    return tokens.view(1, -1, *[1] * (len(shape) - 2)).expand(shape).contiguous()


def check_gradients(op, naive, tensors, bounds):
    """Outputs and gradients against the plain recurrence; all finite."""
    outputs, found = gradients(op, tensors)
    outputs_ref, wanted = gradients(naive, doubled(tensors))
    for a, b in zip(outputs, outputs_ref, strict=True):
        assert error(a, b) < bounds[0]
    for position, (a, b) in enumerate(zip(found, wanted, strict=True)):
        # Gradients that are all but zero have absolute precision only.
        size = max(b.norm().item(), 1e-6 * b.numel() ** 0.5)
        assert bool(a.isfinite().all())
        assert (a.double() - b).norm().item() < bounds[1] * size, position


@pytest.mark.parametrize("dtype", BOUNDS, ids=["f32", "bf16"])
@pytest.mark.parametrize("gate", GATES)
@GATED
def test_hard_gates(name, gate, dtype):
    family = FAMILIES[name]
    inputs = make_inputs(family, tokens=100, heads_v=4, dtype=dtype)
    inputs[3] = decays(gate, inputs[3].shape)
    h0 = torch.randn(2, 4, 16, 16)

    def op(*tensors):
        return run(family, "chunk", tensors[:-1], initial_state=tensors[-1],
                   output_final_state=True)  # fmt: skip

    def naive(*tensors):
        return family.naive(*tensors[:-1], initial_state=tensors[-1], output_final_state=True)

    check_gradients(op, naive, [*inputs, h0], BOUNDS[dtype])


@FORMS
@pytest.mark.parametrize("lower_bound", [None, -5.0], ids=["softplus", "bounded"])
@pytest.mark.parametrize("factor", [-20.0, 3.0, 6.0])
def test_huge_gate_factors(form, lower_bound, factor):
    """exp(A_log) from next to nothing to 400: log decays of 0 and of minus thousands."""
    family = FAMILIES["kda"]
    q, k, v, x, beta = make_inputs(family, tokens=60, heads_v=4)
    A_log, dt_bias = torch.full((4,), factor), torch.randn(4, 16)
    tensors = [q, k, v, 10 * x + 3, beta, A_log, dt_bias]

    def op(q, k, v, x, beta, A_log, dt_bias):
        return run(family, form, (q, k, v, x, beta), A_log=A_log, dt_bias=dt_bias,
                   use_gate_in_kernel=True, lower_bound=lower_bound)  # fmt: skip

    def naive(q, k, v, x, beta, A_log, dt_bias):
        g = ops.fused_kda_gate(x, A_log, dt_bias, lower_bound, torch.float64)
        return ops.naive_recurrent_kda(q, k, v, g, beta)

    check_gradients(op, naive, tensors, BOUNDS[torch.float32])


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
@FORMS
@DELTA
def test_betas(family, form, beta):
    inputs = make_inputs(family, tokens=80, heads_v=4)
    inputs[-1] = torch.full_like(inputs[-1], beta)
    outputs_ref = family.naive(*doubled(inputs), output_final_state=True)
    outputs = run(family, form, inputs, output_final_state=True)
    for a, b in zip(outputs, outputs_ref, strict=True):
        assert error(a, b) < 1e-5  # 0 where the oracle is 0


@pytest.mark.parametrize("negative", [False, True], ids=["sigmoid", "twice_sigmoid"])
@pytest.mark.parametrize("logit", [-30.0, 30.0])
@FORMS
@pytest.mark.parametrize("name", ["kda", "gdn"])
def test_saturated_beta_logits(name, form, logit, negative):
    family = FAMILIES[name]
    inputs = make_inputs(family, tokens=80)
    inputs[-1] = torch.full_like(inputs[-1], logit) + torch.randn_like(inputs[-1])

    def op(*tensors):
        return run(family, form, tensors, output_final_state=True,
                   use_beta_sigmoid_in_kernel=True, allow_neg_eigval=negative)  # fmt: skip

    def naive(*tensors):
        beta = tensors[-1].sigmoid() * (2 if negative else 1)
        return family.naive(*tensors[:-1], beta, output_final_state=True)

    check_gradients(op, naive, inputs, BOUNDS[torch.float32])


@FORMS
@DELTA
def test_zero_rows_under_the_norm(family, form):
    inputs = make_inputs(family, tokens=80, heads_v=4)
    inputs[0] = inputs[0].clone()
    inputs[0][:, ::3] = 0
    inputs[1] = 5 * inputs[1]
    inputs[1][:, 1::3] = 0

    def op(*tensors):
        return run(family, form, tensors, use_qk_l2norm_in_kernel=True)

    def naive(q, k, *rest):
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
        return family.naive(q, k, *rest)

    check_gradients(op, naive, inputs, BOUNDS[torch.float32])


REPEATED = {
    "near": {1.0: 7e-3, 1.7: 1.2e-2, 2.0: 3e-2},
    "identical": {1.0: 1.2e-2, 1.7: 3e-2, 2.0: 2e-1},
}
REPETITIONS = [
    pytest.param(keys, beta, dtype, id=f"{keys}-{beta}-{str(dtype)[6:]}")
    for keys, bounds in REPEATED.items()
    for beta in bounds
    for dtype in (torch.bfloat16, torch.float32)
]


@pytest.mark.parametrize("keys, beta, dtype", REPETITIONS)
@DELTA
def test_repeated_keys_without_decay(family, keys, beta, dtype):
    """T = 2048 of the same key: an inverse by powers of the triangle explodes here."""
    inputs = make_inputs(family, batch=1, tokens=2048, heads=1, dim_k=32, dim_v=16)
    noise = 0.05 if keys == "near" else 0.0
    key = torch.randn(1, 1, 1, 32) + noise * torch.randn(1, 2048, 1, 32)
    inputs[1] = F.normalize(key, dim=-1)
    inputs[-1] = torch.full_like(inputs[-1], beta)
    if len(inputs) == 5:
        inputs[3] = torch.zeros_like(inputs[3])
    inputs[:3] = [t.to(dtype) for t in inputs[:3]]
    o, ht = run(family, "chunk", inputs, output_final_state=True)
    o_ref, ht_ref = reference(family, inputs, output_final_state=True)
    bound = REPEATED[keys][beta] if dtype == torch.bfloat16 else (3e-5 if beta > 1 else 1e-5)
    assert error(o, o_ref) < bound and error(ht, ht_ref) < bound


@pytest.mark.parametrize("norm", [False, True], ids=["unit", "norm"])
@DELTA
def test_one_key_over_and_over(family, norm):
    """k.k rounded to fp32 is wrong by the same amount 2048 times: up to 1.6e-4, by the key."""
    for seed in range(5):
        torch.manual_seed(seed)
        inputs = make_inputs(family, batch=1, tokens=2048, heads=1, dim_k=32, dim_v=16)
        key = torch.randn(32)
        inputs[1] = (3 * key if norm else F.normalize(key, dim=0)).expand(1, 2048, 1, 32)
        inputs[-1] = torch.full_like(inputs[-1], 2.0)
        if len(inputs) == 5:
            inputs[3] = torch.zeros_like(inputs[3])
        o, ht = run(family, "chunk", inputs, output_final_state=True, use_qk_l2norm_in_kernel=norm)
        q, k, *rest = doubled(inputs)
        if norm:
            q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
        o_ref, ht_ref = family.naive(q, k, *rest, output_final_state=True)
        assert error(o, o_ref) < 1e-5 and error(ht, ht_ref) < 1e-5


@FORMS
@FAMILY
def test_fp16_near_its_largest_number(family, form):
    """q.k and the sums on the way pass 65504; the results do not."""
    inputs = make_inputs(family, tokens=70, heads_v=4, dtype=torch.float16)
    inputs[0] = inputs[0] * 1000
    inputs[2] = (inputs[2] * 12000).clamp(-60000, 60000)
    scale = 2e-4
    o, ht = run(family, form, inputs, scale=scale, output_final_state=True)
    o_ref, ht_ref = reference(family, inputs, scale=scale, output_final_state=True)
    assert 1e3 < o_ref.abs().max() < 65504
    bound = 6e-3 if family.gate == "channel" else 2e-3
    assert error(o, o_ref) < bound and error(ht, ht_ref) < bound


SIZES = (32, 60, 64, 96, 100, 128, 192, 256)
HEADS = ((1, 8), (2, 8), (3, 9), (5, 5), (12, 12), (1, 3), (4, 4), (2, 4))


@pytest.mark.parametrize("turn", range(len(SIZES)))
@FAMILY
def test_head_counts_and_dimensions(family, turn):
    """Every head has data of its own; K, V and the heads of q and v differ."""
    heads, heads_v = HEADS[turn]
    inputs = make_inputs(family, batch=1, tokens=5, heads=heads, heads_v=heads_v,
                         dim_k=SIZES[turn], dim_v=SIZES[turn - 3])  # fmt: skip

    def op(*tensors):
        return run(family, "chunk", tensors, output_final_state=True)

    def naive(*tensors):
        return family.naive(*tensors, output_final_state=True)

    check_gradients(op, naive, inputs, BOUNDS[torch.float32])
    o, ht = run(family, "recurrent", inputs, output_final_state=True)
    o_c, ht_c = op(*inputs)
    assert error(o, o_c) < 1e-5 and error(ht, ht_c) < 1e-5
