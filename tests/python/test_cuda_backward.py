"""Gradients on CUDA tensors, through autograd: against the CPU's fp64 reference, graphs, layers."""

import pytest
import torch
from families import FAMILIES, error, make_inputs

import linattn
from linattn import nn


def _why_not() -> str | None:
    if not torch.cuda.is_available():
        return "no CUDA device"
    entries = linattn.implementations(device="cuda")["backward"]["cuda"]
    if not any(entry.available for entry in entries):
        return "; ".join(entry.reason for entry in entries) or "this build has no CUDA kernels"
    return None


REASON = _why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")
FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
TOLERANCE = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 1e-2}


def gradients(family, inputs, h0, device, **options):
    """Gradients of a fixed weighted sum of o and the final state."""
    leaves = [t.detach().to(device).requires_grad_() for t in (*inputs, h0)]
    o, ht = family.chunk(*leaves[:-1], initial_state=leaves[-1], output_final_state=True, **options)
    generator = torch.Generator().manual_seed(7)
    weight_o = torch.randn(o.shape, generator=generator).to(device, o.dtype)
    weight_ht = torch.randn(ht.shape, generator=generator).to(device, ht.dtype)
    torch.autograd.backward([o, ht], [weight_o, weight_ht])
    return [leaf.grad for leaf in leaves]


def expected(family, inputs, h0, **options):
    """On the same numbers, in fp32 tensors, by the fp64 reference."""
    with linattn.force("reference"):
        return gradients(family, [t.float() for t in inputs], h0, "cpu", **options)


@FAMILY
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_equals_the_oracle(family, dtype):
    for tokens, dim_k, dim_v, heads_v in [(70, 128, 128, 2), (100, 64, 64, 4), (33, 100, 36, 2)]:
        inputs = make_inputs(family, 2, tokens, 2, heads_v, dim_k, dim_v, dtype)
        h0 = torch.randn(2, heads_v, dim_k, dim_v, generator=torch.Generator().manual_seed(1))
        wanted = expected(family, inputs, h0)
        found = gradients(family, inputs, h0, "cuda")
        assert linattn.last_implementation().startswith("cuda_")
        for name, a, b in zip((*family.names(), "h0"), found, wanted, strict=True):
            assert error(a.cpu(), b) < TOLERANCE[dtype], (name, tokens, error(a.cpu(), b))


@FAMILY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_packed_sequences(family, dtype):
    inputs = make_inputs(family, 1, 90, dim_k=64, dim_v=64, dtype=dtype)
    h0 = torch.randn(3, 2, 64, 64, generator=torch.Generator().manual_seed(1))
    offsets = torch.tensor([0, 65, 65, 87])
    wanted = expected(family, inputs, h0, cu_seqlens=offsets, state_v_first=True)
    found = gradients(family, inputs, h0, "cuda", cu_seqlens=offsets.cuda(), state_v_first=True)
    for a, b in zip(found, wanted, strict=True):
        assert error(a.cpu(), b) < TOLERANCE[dtype]
    for a in found[: len(inputs)]:
        assert not a[:, 87:].any()  # rows nobody owns


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_in_a_graph_and_twice_the_same_bits(dtype):
    family = FAMILIES["kda"]
    inputs = [t.cuda().requires_grad_() for t in make_inputs(family, 2, 100, 2, 2, 64, 64, dtype)]
    weight = torch.randn(2, 100, 2, 64, device="cuda", dtype=dtype)

    def step():
        o = family.chunk(*inputs)[0]
        return torch.autograd.grad(o, inputs, weight)

    eager = step()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # fails on any synchronisation
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    for a, b in zip(eager, captured, strict=True):
        assert torch.equal(a, b)


LAYERS = {
    nn.KimiDeltaAttention: {"head_dim": 32},
    nn.GatedDeltaNet: {"head_dim": 32},
    nn.GatedLinearAttention: {},
    nn.LightningAttention: {"head_dim": 32, "layer_idx": 1, "num_layers": 4},
}


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_layers_learn_as_on_the_cpu(layer):
    module = layer(hidden_size=64, num_heads=2, **LAYERS[layer])
    x = torch.randn(2, 50, 64)

    def run(device):
        moved, leaf = module.to(device), x.detach().to(device).requires_grad_()
        moved.zero_grad()
        out = moved(leaf)
        (out[0] if isinstance(out, tuple) else out).square().sum().backward()
        return [leaf.grad.cpu(), *(p.grad.detach().cpu() for p in moved.parameters())]

    with linattn.force("cpu"):
        wanted = run("cpu")
    for a, b in zip(run("cuda"), wanted, strict=True):
        assert error(a, b) < 1e-4


def test_explain_shows_the_walk():
    found = linattn.explain("chunk_kda_bwd", *[t.cuda() for t in make_inputs(FAMILIES["kda"])])
    assert found.implementation.startswith("cuda_")
