"""Offsets beyond 2^31 elements over sparse memory; more rows than a grid axis holds."""

import mmap

import pytest
import torch
from acceptance import FAMILY, FORMS, gradients, reference, run, same
from families import FAMILIES, error, make_inputs

FAR = 2**31 + 96  # elements between two neighbours on an axis
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class Sparse:
    """Address space of which only the pages that are touched exist."""

    def __init__(self, elements):
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
            memory = mmap.mmap(-1, 4 * elements, flags=flags)
        except OSError as error:
            pytest.skip(f"no {4 * elements >> 30} GiB of address space: {error}")
        self.free = torch.frombuffer(memory, dtype=torch.float32)

    def place(self, t, stride):
        """A copy of t at such strides, behind what was placed before."""
        view = torch.as_strided(self.free, t.shape, stride)
        extent = 1 + sum((n - 1) * s for n, s in zip(t.shape, stride, strict=True))
        self.free = self.free[extent:]
        return view.copy_(t)


def far_strides(shape, axis):
    """Compact but for one axis, whose neighbours lie more than 2^31 elements apart."""
    strides, step = [0] * len(shape), 1
    for i in reversed(range(len(shape))):
        if i != axis:
            strides[i] = step
            step *= shape[i]
    strides[axis] = FAR
    return strides


@pytest.mark.parametrize("axis", range(4), ids=["batch", "token", "head", "channel"])
@pytest.mark.parametrize("name", ["kda", "gdn", "simple_gla"])
def test_far_strides_of_every_axis(name, axis):
    family = FAMILIES[name]
    inputs = make_inputs(family, batch=2, tokens=2, heads=2, dim_k=2, dim_v=2)
    h0 = torch.randn(2, 2, 2, 2)
    sparse = Sparse(9 * FAR)

    def placed(t):
        return sparse.place(t, far_strides(t.shape, min(axis, t.dim() - 1)))

    far = [placed(t) for t in inputs]
    state, out = placed(h0), placed(torch.zeros_like(inputs[2]))
    weights = torch.randn(inputs[2].shape, generator=torch.Generator().manual_seed(0))
    far_weights = placed(weights)
    for form in ("chunk", "recurrent"):
        options = {"output_final_state": True}
        o, ht = run(family, form, inputs, initial_state=h0, **options)
        o_far, ht_far = run(family, form, far, initial_state=state, out=out, **options)
        assert o_far is out
        same(out, o)
        same(ht_far, ht)

    def op(*tensors):
        return run(family, "chunk", tensors[:-1], initial_state=tensors[-1])

    _, wanted = gradients(op, [*inputs, h0])
    leaves = [t.detach().requires_grad_() for t in (*far, state)]
    o = run(family, "chunk", leaves[:-1], initial_state=leaves[-1])[0]
    o.backward(far_weights)
    for leaf, b in zip(leaves, wanted, strict=True):
        same(leaf.grad, b)


@pytest.mark.parametrize("first", [False, True], ids=["kv", "vk"])
@FORMS
@pytest.mark.parametrize("name", ["kda", "lightning"])
def test_pool_of_more_than_two_to_the_31(name, form, first):
    """8,192 slots of which the last lies 4.3e9 elements away; four of them exist."""
    family, slots, room = FAMILIES[name], 8192, 2**19
    inner = (2, 6, 4) if first else (2, 4, 6)
    pool = torch.as_strided(Sparse(slots * room).free, (slots, *inner), (room, 24, inner[2], 1))
    inputs = make_inputs(family, batch=4, tokens=3, dim_k=4, dim_v=6)
    read, write = torch.tensor([8191, 0, 5000, -1]), torch.tensor([4097, 8190, 5000, 3])
    states = torch.randn(4, *inner)
    pool[read[:3]] = states[:3]
    options = {"output_final_state": True, "state_v_first": first}
    o, same_pool = run(family, form, inputs, initial_state=pool, state_indices=read,
                       output_state_indices=write, **options)  # fmt: skip
    o_ref, ht_ref = run(family, form, inputs, initial_state=states, **options)
    assert same_pool is pool and not o[3].any() and not pool[3].any()
    assert error(o[:3], o_ref[:3]) < 1e-6 and error(pool[write[:3]], ht_ref[:3]) < 1e-6
    same(pool[read[:2]], states[:2])


@pytest.mark.parametrize("name", ["kda", "gdn", "lightning"])
def test_more_sequences_and_heads_than_65535(name):
    """N * HV = 65,540, as a batch and packed, in both forms and the backward pass."""
    family, count = FAMILIES[name], 16385
    inputs = make_inputs(family, batch=count, tokens=1, heads=2, heads_v=4, dim_k=3, dim_v=2)
    h0 = torch.randn(count, 4, 3, 2)
    options = {"initial_state": h0, "output_final_state": True}
    o_ref, ht_ref = reference(family, inputs, **options)
    for form in ("chunk", "recurrent"):
        o, ht = run(family, form, inputs, **options)
        assert error(o, o_ref) < 1e-5 and error(ht, ht_ref) < 1e-5
    packed = [t.transpose(0, 1) for t in inputs]
    o, ht = run(family, "chunk", packed, cu_seqlens=torch.arange(count + 1), **options)
    assert error(o[0], o_ref[:, 0]) < 1e-5 and error(ht, ht_ref) < 1e-5

    def batched(*tensors):
        return run(family, "chunk", tensors)[:1]

    def in_a_row(*tensors):
        rows = [t.transpose(0, 1) for t in tensors]
        return [run(family, "chunk", rows, cu_seqlens=torch.arange(count + 1))[0].transpose(0, 1)]

    (_, a), (_, b) = gradients(batched, inputs), gradients(in_a_row, inputs)
    for x, y in zip(a, b, strict=True):
        assert error(x, y) < 1e-6


@FORMS
@FAMILY
def test_a_sequence_of_262144_tokens(family, form):
    """The far end is right: equal to the last tokens run from the state before them."""
    tokens, last = 2**18, 100
    inputs = make_inputs(family, batch=1, tokens=tokens, heads=1, dim_k=3, dim_v=2)
    options = {"output_final_state": True}
    o, ht = run(family, form, inputs, **options)
    cut = tokens - last
    _, state = run(family, "chunk", [t[:, :cut] for t in inputs], **options)
    o_ref, ht_ref = family.naive(
        *[t[:, cut:].double() for t in inputs], initial_state=state.double(), **options
    )
    assert error(o[:, cut:], o_ref) < 1e-4 and error(ht, ht_ref) < 1e-4
