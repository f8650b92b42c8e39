"""Lengths, splits, prefixes, batches, repeats, threads: what must not change a result."""

import os
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from acceptance import FAMILY, FORMS, gradients, run, same
from families import error, make_inputs

LENGTHS = (0, 1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 75, 127, 128, 129, 1238)
K, V = 16, 8
# bf16 of such a size is what processors with matrix tiles have a path of its own for.
SHAPES = pytest.mark.parametrize(
    "shape",
    [
        {"dim_k": K, "dim_v": V},
        {"dim_k": 64, "dim_v": 48, "dtype": torch.bfloat16},
    ],
    ids=["f32", "bf16"],
)


def offsets(lengths):
    return torch.cumsum(torch.tensor([0, *lengths]), 0)


def cut(inputs, begin, end):
    return [t[:, begin:end] for t in inputs]


@pytest.mark.parametrize("states", [True, False], ids=["states", "no_states"])
@SHAPES
@FORMS
@FAMILY
def test_packed_lengths_are_separate_sequences_bitwise(family, form, shape, states):
    lengths = LENGTHS if form == "chunk" else LENGTHS[:-1]
    inputs = make_inputs(family, batch=1, tokens=sum(lengths), heads=1, heads_v=2, **shape)
    h0 = torch.randn(len(lengths), 2, shape["dim_k"], shape["dim_v"]) if states else None
    options = {"output_final_state": True, "batch_invariant": True}
    ends = offsets(lengths)
    o, ht = run(family, form, inputs, initial_state=h0, cu_seqlens=ends, **options)
    for n, (begin, end) in enumerate(pairwise(ends.tolist())):
        own = None if h0 is None else h0[n : n + 1]
        o_n, ht_n = run(family, form, cut(inputs, begin, end), initial_state=own, **options)
        same(o[:, begin:end], o_n)
        same(ht[n : n + 1], ht_n)


@FAMILY
def test_packed_lengths_have_the_gradients_of_separate_sequences(family):
    lengths = LENGTHS[:-1]
    inputs = make_inputs(family, batch=1, tokens=sum(lengths), dim_k=K, dim_v=V, heads=1, heads_v=2)
    h0 = torch.randn(len(lengths), 2, K, V)
    ends = offsets(lengths)

    def packed(*tensors):
        return run(family, "chunk", tensors[:-1], initial_state=tensors[-1],
                   output_final_state=True, cu_seqlens=ends)  # fmt: skip

    def separate(*tensors):
        parts = [
            run(family, "chunk", cut(tensors[:-1], begin, end),
                initial_state=tensors[-1][n : n + 1], output_final_state=True)
            for n, (begin, end) in enumerate(pairwise(ends.tolist()))
        ]  # fmt: skip
        return torch.cat([o for o, _ in parts], 1), torch.cat([ht for _, ht in parts])

    outputs, found = gradients(packed, [*inputs, h0])
    outputs_ref, wanted = gradients(separate, [*inputs, h0])
    for a, b in zip([*outputs, *found], [*outputs_ref, *wanted], strict=True):
        assert error(a, b) < 2e-5


@pytest.mark.parametrize("at", [0, 1, 63, 64, 65, 100, 129, 130])
@FAMILY
def test_split_anywhere(family, at):
    """Prefix and suffix with the carried state are the whole, gradients included."""
    inputs = make_inputs(family, batch=2, tokens=130, heads_v=4, dim_k=K, dim_v=V)
    h0 = torch.randn(2, 4, K, V)

    def whole(*tensors):
        return run(family, "chunk", tensors[:-1], initial_state=tensors[-1],
                   output_final_state=True)  # fmt: skip

    def halves(*tensors):
        *inner, state = tensors
        outputs = []
        for part in (cut(inner, 0, at), cut(inner, at, 130)):
            o, state = run(family, "chunk", part, initial_state=state, output_final_state=True)
            outputs.append(o)
        return torch.cat(outputs, 1), state

    outputs, found = gradients(halves, [*inputs, h0])
    outputs_ref, wanted = gradients(whole, [*inputs, h0])
    for a, b in zip(outputs, outputs_ref, strict=True):
        assert error(a, b) < 1e-5
    for a, b in zip(found, wanted, strict=True):
        assert error(a, b) < 2e-5


@FAMILY
def test_decode_is_prefill(family):
    inputs = make_inputs(family, batch=2, tokens=70, heads_v=4, dim_k=K, dim_v=V)
    o, ht = run(family, "chunk", inputs, output_final_state=True)
    pool = torch.zeros(5, 4, K, V)
    slots = torch.tensor([4, 1])
    tokens = [
        run(family, "recurrent", cut(inputs, t, t + 1), initial_state=pool, state_indices=slots)[0]
        for t in range(70)
    ]
    assert error(torch.cat(tokens, 1), o) < 1e-5 and error(pool[slots], ht) < 1e-5


@pytest.mark.parametrize("form, tokens", [("chunk", 200), ("chunk", 1500), ("recurrent", 20)])
@SHAPES
@FAMILY
def test_no_token_changes_what_is_before_it(family, form, tokens, shape):
    """One head, so that a long sequence may be cut into segments."""
    inputs = make_inputs(family, batch=1, tokens=tokens, heads=1, **shape)
    other = make_inputs(family, batch=1, tokens=tokens, heads=1, seed=1, **shape)
    options = {"return_intermediate_states": True} if form == "chunk" else {}
    o, *_, states = run(family, form, inputs, **options)
    for at in {0, 1, 63 % tokens, 64 % tokens, 100 % tokens, tokens - 1}:
        changed = [torch.cat([a[:, :at], b[:, at:]], 1) for a, b in zip(inputs, other, strict=True)]
        o_changed, *_, states_changed = run(family, form, changed, **options)
        same(o_changed[:, :at], o[:, :at])
        assert not torch.equal(o_changed[:, at:], o[:, at:])
        if form == "chunk":
            same(states_changed[:, : at // 64 + 1], states[:, : at // 64 + 1])


@SHAPES
@FORMS
@FAMILY
def test_a_sequence_is_the_same_in_any_batch(family, form, shape):
    tokens = 300 if form == "chunk" else 20
    options = {"batch_invariant": True, "output_final_state": True}
    shape = {**shape, "tokens": tokens, "heads": 1, "heads_v": 2}
    alone = make_inputs(family, batch=1, **shape)
    h0 = torch.randn(1, 2, shape["dim_k"], shape["dim_v"])
    o, ht = run(family, form, alone, initial_state=h0, **options)
    for batch, row in ((2, 0), (2, 1), (5, 3), (9, 8)):
        inputs = make_inputs(family, batch=batch, seed=batch, **shape)
        state = torch.randn(batch, *h0.shape[1:])
        for t, own in zip((*inputs, state), (*alone, h0), strict=True):
            t[row] = own[0]
        o_b, ht_b = run(family, form, inputs, initial_state=state, **options)
        same(o_b[row], o[0])
        same(ht_b[row], ht[0])
    others = make_inputs(family, batch=1, seed=7, **{**shape, "tokens": 33})
    packed = [torch.cat([a, b, a], 1) for a, b in zip(others, alone, strict=True)]
    state = torch.cat([h0 + 1, h0, h0 - 1])
    ends = offsets([33, tokens, 33])
    o_p, ht_p = run(family, form, packed, initial_state=state, cu_seqlens=ends, **options)
    same(o_p[:, 33:-33], o)
    same(ht_p[1:2], ht)


@FAMILY
def test_the_same_call_gives_the_same_bits(family):
    """Forward and backward, with heads that share keys and one head cut into segments."""
    for shape in ({"heads_v": 6, "tokens": 150}, {"batch": 1, "heads": 1, "tokens": 1500}):
        tensors = make_inputs(family, dim_k=K, dim_v=V, **shape)

        def op(*inputs):
            return run(family, "chunk", inputs, output_final_state=True)

        first, again = gradients(op, tensors), gradients(op, tensors)
        for a, b in zip([*first[0], *first[1]], [*again[0], *again[1]], strict=True):
            same(a, b)


DIGEST = """
import hashlib, torch
from acceptance import run
from families import FAMILIES, make_inputs
from linattn._library import library
digest = hashlib.sha256()
for family in FAMILIES.values():
    small = dict(dim_k=16, dim_v=8)
    for form, shape in (
        ("chunk", dict(tokens=150, heads_v=6, **small)),
        ("chunk", dict(batch=1, heads=1, tokens=1500, **small)),
        ("chunk", dict(batch=1, heads=1, tokens=700, dim_k=64, dim_v=80, dtype=torch.bfloat16)),
        ("recurrent", dict(batch=5, tokens=2, heads_v=4, **small)),
    ):
        inputs = make_inputs(family, **shape)
        for auto_cp in (True, False):
            for t in run(family, form, inputs, output_final_state=True, auto_cp=auto_cp):
                digest.update(t.float().numpy().tobytes())
        if form == "chunk":
            run(family, form, [t.requires_grad_() for t in inputs])[0].sum().backward()
            for t in inputs:
                digest.update(t.grad.float().numpy().tobytes())
print(library().linattn_get_num_threads(), digest.hexdigest())
"""


def digest(threads):
    paths = [os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "LINATTN_NUM_THREADS": str(threads),
    }
    command = [sys.executable, "-c", DIGEST]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    counted, value = done.stdout.split()
    assert counted == str(threads)
    return value


def test_bits_do_not_depend_on_the_number_of_threads():
    assert len({digest(threads) for threads in (1, 2, 5)}) == 1
