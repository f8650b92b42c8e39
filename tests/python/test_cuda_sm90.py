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
    g = 2 * torch.rand(1, tokens, heads_v, *channels, generator=generator)
    g *= torch.as_tensor(log_gate).reshape(-1, *(1,) * len(channels))
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
        options.setdefault("safe_gate", bool(g.min() >= -5))
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
@pytest.mark.parametrize("log_gate", [0.0, -0.05])
def test_a_sequence_alone_equals_itself_in_a_batch(gate, log_gate):
    lengths = [5000, 300, 4600]
    *inputs, offsets = make_inputs(lengths, gate, log_gate=log_gate)
    o, ht = run(*inputs, offsets, batch_invariant=True)
    for n, length in enumerate(lengths):
        begin = int(offsets[n])
        own = [t[:, begin : begin + length] for t in inputs]
        alone, alone_ht = run(*own, torch.tensor([0, length]), batch_invariant=True)
        assert torch.equal(alone, o[:, begin : begin + length])
        assert torch.equal(alone_ht[0], ht[n])


MIXED = torch.tensor([0.0, -0.05])  # of the value heads: one that keeps everything


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


@pytest.mark.parametrize(
    "log_gate", [0.0, -0.002, -0.05, MIXED], ids=["0", "-.002", "-.05", "mixed"]
)
@gates
@pytest.mark.parametrize("lengths", [[4500], [1024, 3072], [2500, 0, 1, 33, 1100]], ids=str)
def test_cut_sequences_equal_whole_ones(gate, lengths, log_gate):
    *inputs, offsets = make_inputs(lengths, gate, log_gate=log_gate)
    whole = run(*inputs, offsets, auto_cp=False)
    for options in ({}, {"batch_invariant": True}):
        cut = run(*inputs, offsets, **options)
        for a, b in zip(cut, whole, strict=True):
            assert relative(a, b) < 4e-3
    o, ht = run(*inputs, offsets, "reference")
    assert error(cut[0], o) < 6e-3
    assert error(cut[1], ht) < 6e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["delta_rule", "simple_gla"])
def test_cut_sequences_of_other_families(name, dtype):
    q, k, v, g, b, _ = make_inputs([6000], heads=2, log_gate=MIXED)
    k = torch.nn.functional.normalize(k.float(), dim=-1)
    q, k, v = (t.to("cuda", dtype) for t in (q, k, v))
    h0 = torch.randn(1, 2, 128, 128, device="cuda")
    operator = getattr(ops, f"chunk_{name}")
    own = {"beta": b.cuda()} if name == "delta_rule" else {"g": g.cuda()}
    norm = {"use_qk_l2norm_in_kernel": True} if name == "delta_rule" else {}
    with linattn.force("cuda_sm90"):
        cut, whole = (
            operator(q, k, v, **own, **norm, initial_state=h0, output_final_state=True, auto_cp=cp)
            for cp in (True, False)
        )
    for x, y in zip(cut, whole, strict=True):
        assert 0 < relative(x, y) < 4e-3


def test_cuts_and_intermediate_states():
    *inputs, offsets = make_inputs([5000, 700], log_gate=MIXED)
    h0 = torch.randn(2, 2, 128, 128, device="cuda")
    options = {"initial_state": h0, "return_intermediate_states": True, "state_every": 512}
    cut = run(*inputs, offsets, **options)
    whole = run(*inputs, offsets, auto_cp=False, **options)
    assert len(cut) == 3
    for a, b in zip(cut, whole, strict=True):
        assert relative(a, b) < 4e-3


@gates
def test_two_streams_and_a_graph_give_the_same_bits(gate):
    lengths = [8192]
    *inputs, _ = make_inputs(lengths, gate, heads=2, heads_v=4, log_gate=MIXED.repeat(2))
    options = {} if gate == "head" else {"safe_gate": bool(inputs[3].min() >= -5)}
    inputs = [t.cuda() for t in inputs]
    expected = run(*inputs, **options)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for _ in range(8):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(run(*inputs, **options))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(*inputs, **options)
    for _ in range(3):
        for t in captured:
            t.zero_()
        graph.replay()
        results.append([t.clone() for t in captured])
    torch.cuda.synchronize()
    for result in results:
        for a, b in zip(result, expected, strict=True):
            assert torch.equal(a, b)


@gates
@pytest.mark.parametrize("log_gate", [0.0, -0.05])
def test_repeats_are_bitwise_the_same(gate, log_gate):
    *inputs, offsets = make_inputs([5000, 40], gate, log_gate=log_gate)
    first = run(*inputs, offsets)
    for _ in range(3):
        for a, b in zip(first, run(*inputs, offsets), strict=True):
            assert torch.equal(a, b)


@gates
@pytest.mark.parametrize("log_gate", [0.0, -0.05, -2.5])
# In the first and second half of a chunk; of sequences that stay whole and that are cut.
@pytest.mark.parametrize(("tokens", "at"), [(500, 329), (500, 345), (6000, 4009), (6000, 4025)])
def test_later_tokens_change_nothing_before_them(gate, log_gate, tokens, at):
    *inputs, _ = make_inputs([tokens], gate, log_gate=log_gate)
    o, _ = run(*inputs)
    changed = [t.clone() for t in inputs]
    for t in changed:
        t[:, at:] = t[:, at:] * 0.5
    changed[3][:, at:] = -1.0
    other, _ = run(*changed)
    assert torch.equal(o[:, :at], other[:, :at])
    assert not torch.equal(o[:, at:], other[:, at:])


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
