"""The Hopper chunk kernels: pieces of sequences, batches, repeats and hard keys."""

import pytest
import torch

import linattn
from linattn import ops


def _why_not() -> str | None:
    if not torch.cuda.is_available():
        return "no CUDA device"
    if torch.cuda.get_device_capability() != (9, 0):
        return "the kernels are for compute capability 9.0"
    return None


REASON = _why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")


# "any channel": with gates of -inf among them, which another preparation takes.
gates = pytest.mark.parametrize("gate", ["head", "channel", "any channel"])


def make_inputs(lengths, gate="head", heads=1, heads_v=2, log_gate=-0.05, beta=None, keys="random"):
    generator = torch.Generator().manual_seed(0)
    tokens = sum(lengths)

    def normal(*size):
        return torch.randn(*size, generator=generator)

    q, k, v = (normal(1, tokens, n, 128) for n in (heads, heads, heads_v))
    if keys != "random":
        k = normal(1, 1, heads, 128) + (0.2 if keys == "near" else 0.0) * k
    channels = () if gate == "head" else (128,)
    g = log_gate * torch.rand(1, tokens, heads_v, *channels, generator=generator) * 2
    if gate == "any channel":
        g[:, 7::97, :, 3] = -torch.inf
    b = torch.rand(1, tokens, heads_v, generator=generator) if beta is None else beta
    b = torch.as_tensor(b).expand(1, tokens, heads_v)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return q.bfloat16(), k.bfloat16(), v.bfloat16(), g, b.contiguous().float(), offsets


def run(q, k, v, g, b, offsets=None, implementation="cuda_sm90", **options):
    device = "cpu" if implementation == "reference" else "cuda"
    cast = torch.Tensor.float if implementation == "reference" else torch.Tensor.clone
    inputs = [cast(t).to(device) for t in (q, k, v)]
    channel = g.dim() == 4
    if channel:
        options["safe_gate"] = bool(g.min() >= -5)
    operator = ops.chunk_kda if channel else ops.chunk_gated_delta_rule
    with linattn.force(implementation):
        return operator(
            *inputs, g.to(device), b.to(device), output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            cu_seqlens=None if offsets is None else offsets.to(device), **options,
        )  # fmt: skip


def error(a, ref):
    return ((a.double().cpu() - ref.double()).norm() / ref.double().norm()).item()


@gates
@pytest.mark.parametrize("log_gate", [0.0, -0.001, -0.05, -2.5])
def test_pieces_equal_the_oracle(gate, log_gate):
    *inputs, offsets = make_inputs([1500, 1, 700], gate, log_gate=log_gate)
    o, ht = run(*inputs, offsets, "reference")
    for options in ({}, {"auto_cp": False}, {"batch_invariant": True}):
        got, got_ht = run(*inputs, offsets, **options)
        assert error(got, o) < 6e-3
        assert error(got_ht, ht) < 6e-3


@gates
def test_a_sequence_alone_equals_itself_in_a_batch(gate):
    lengths = [2500, 300, 2100]
    *inputs, offsets = make_inputs(lengths, gate)
    o, ht = run(*inputs, offsets, batch_invariant=True)
    for n, length in enumerate(lengths):
        begin = int(offsets[n])
        own = [t[:, begin : begin + length] for t in inputs]
        alone, alone_ht = run(*own, torch.tensor([0, length]), batch_invariant=True)
        assert torch.equal(alone, o[:, begin : begin + length])
        assert torch.equal(alone_ht[0], ht[n])


@gates
def test_repeats_are_bitwise_the_same(gate):
    *inputs, offsets = make_inputs([1000, 40], gate)
    first = run(*inputs, offsets)
    for _ in range(3):
        for a, b in zip(first, run(*inputs, offsets), strict=True):
            assert torch.equal(a, b)


@gates
@pytest.mark.parametrize("log_gate", [-0.05, -2.5])
@pytest.mark.parametrize("at", [329, 345])  # in the first and second half of a chunk
def test_later_tokens_change_nothing_before_them(gate, log_gate, at):
    *inputs, _ = make_inputs([500], gate, log_gate=log_gate)
    o, _ = run(*inputs)
    changed = [t.clone() for t in inputs]
    for t in changed:
        t[:, at:] = t[:, at:] * 0.5
    other, _ = run(*changed)
    assert torch.equal(o[:, :at], other[:, :at])


@gates
@pytest.mark.parametrize(
    ("keys", "beta", "tolerance"),
    [("near", 1.0, 7e-3), ("near", 1.7, 1.2e-2), ("near", 2.0, 3e-2), ("same", 1.0, 1.2e-2),
     ("same", 1.7, 3e-2), ("same", 2.0, 2e-1)],
)  # fmt: skip
def test_repeated_keys_without_decay(gate, keys, beta, tolerance):
    *inputs, _ = make_inputs([2048], gate, log_gate=0.0, beta=beta, keys=keys)
    o, ht = run(*inputs, implementation="reference")
    got, got_ht = run(*inputs)
    assert error(got, o) < tolerance
    assert error(got_ht, ht) < tolerance
