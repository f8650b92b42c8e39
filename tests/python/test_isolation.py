"""What a call does not own changes nothing and is not changed: poison, dead rows, slots."""

import pytest
import torch
from acceptance import FAMILY, FORMS, embedded, gradients, padded_slots, run, same, surroundings
from families import FAMILIES, error, make_inputs

NAN, HUGE = float("nan"), 1e30
POISON = pytest.mark.parametrize("poison", [NAN, HUGE], ids=["nan", "1e30"])
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["f32", "bf16", "f16"]
)
K, V = 12, 7


def packed_call(family, form, poison):
    """A packed call with a tail and a state that is not read; returns what it gives."""
    inputs = make_inputs(family, batch=1, tokens=90, heads_v=4, dim_k=K, dim_v=V)
    for t in inputs:
        t[:, 80:] = poison
    h0 = torch.randn(3, 4, K, V, generator=torch.Generator().manual_seed(1))
    h0[1] = poison
    inputs, h0 = [embedded(t, poison) for t in inputs], embedded(h0, poison)
    out = embedded(torch.full_like(inputs[2], poison), poison)
    before = [surroundings(t) for t in (*inputs, h0, out)]
    o, ht = run(
        family,
        form,
        inputs,
        initial_state=h0,
        output_final_state=True,
        cu_seqlens=torch.tensor([0, 3, 70, 80]),
        has_initial_state=torch.tensor([True, False, True]),
        out=out,
    )
    for t, memory in zip((*inputs, h0, out), before, strict=True):
        same(surroundings(t), memory)
    return o, ht


@POISON
@FORMS
@FAMILY
def test_poison_around_every_tensor(family, form, poison):
    for a, b in zip(packed_call(family, form, poison), packed_call(family, form, 0.0), strict=True):
        same(a, b)
    o, _ = packed_call(family, form, poison)
    assert not o[:, 80:].any() and bool(o.isfinite().all())


@POISON
@FAMILY
def test_poison_in_the_backward_pass(family, poison):
    def call(filling):
        tensors = make_inputs(family, batch=1, tokens=90, heads_v=4, dim_k=K, dim_v=V)
        h0 = torch.randn(3, 4, K, V, generator=torch.Generator().manual_seed(1))
        leaves = [embedded(t, filling) for t in (*tensors, h0)]
        for t in leaves[:-1]:
            t[:, 80:] = filling
        leaves[-1][1] = filling
        leaves = [t.requires_grad_() for t in leaves]
        o, ht = run(
            family,
            "chunk",
            leaves[:-1],
            initial_state=leaves[-1],
            output_final_state=True,
            cu_seqlens=torch.tensor([0, 3, 70, 80]),
            has_initial_state=torch.tensor([True, False, True]),
        )
        do = torch.randn(o.shape, generator=torch.Generator().manual_seed(2))
        do[:, 80:] = filling
        torch.autograd.backward([o, ht], [embedded(do, filling), torch.ones_like(ht)])
        return [t.grad for t in leaves]

    found = call(poison)
    for a, b in zip(found, call(0.0), strict=True):
        same(a, b)
    for t in found[:-1]:
        assert not t[:, 80:].any() and bool(t.isfinite().all())


@POISON
@FAMILY
def test_poison_in_the_pool(family, poison):
    """Slots that no row starts from, the space between slots, and slots whose mask is false."""

    def call(filling):
        inputs = make_inputs(family, batch=3, tokens=2, heads_v=4, dim_k=K, dim_v=V)
        states = torch.randn(8, 4, K, V, generator=torch.Generator().manual_seed(1))
        for slot in (0, 1, 3, 6, 7):
            states[slot] = filling
        pool = padded_slots(states, filling)
        between = surroundings(pool)
        o, same_pool = run(
            family,
            "recurrent",
            [embedded(t, filling) for t in inputs],
            initial_state=pool,
            output_final_state=True,
            state_indices=torch.tensor([5, 2, 7]),
            has_initial_state=torch.tensor([True, True, False]),
            output_state_indices=torch.tensor([5, 4, 1]),
        )
        assert same_pool is pool
        same(surroundings(pool), between)
        for slot in (0, 2, 3, 6, 7):
            same(pool[slot], states[slot])
        return o, pool[[5, 4, 1]]

    for a, b in zip(call(poison), call(0.0), strict=True):
        same(a, b)
        assert bool(a.isfinite().all())


# (form, tokens, columns of the indices): decode, prefill from slots, speculative decoding.
KINDS = {
    "decode": ("recurrent", 1, 0),
    "prefill": ("chunk", 70, 0),
    "short": ("recurrent", 5, 0),
    "speculative": ("recurrent", 3, 3),
}


@pytest.mark.parametrize("kind", KINDS)
@DTYPES
@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=["i32", "i64"])
@pytest.mark.parametrize("name", ["kda", "gdn", "lightning"])
def test_dead_rows(kind, dtype, state, index, name):
    form, tokens, columns = KINDS[kind]
    family, slots, null = FAMILIES[name], 24, 6
    inputs = make_inputs(family, batch=7, tokens=tokens, dim_k=K, dim_v=V, dtype=dtype)
    live, dead = [1, 3, 6], {0: -1, 2: -7, 4: slots, 5: null}
    table = torch.full((7, max(columns, 1)), -1, dtype=index)
    table[live] = torch.tensor([[11, 3, 20], [0, 23, 9], [14, 5, 2]], dtype=index)[
        :, : max(columns, 1)
    ]
    for row, value in dead.items():
        table[row] = value
        for t in inputs:
            t[row] = NAN
    pool = padded_slots(torch.randn(slots, 2, K, V).to(state), NAN)
    before = pool.clone()
    options = {"null_state_index": null, "batch_invariant": True}
    accepted = torch.tensor([1, 3, 1, 2, 1, 1, 1], dtype=index)
    if columns:
        options["num_accepted_tokens"] = accepted
    indices = table if columns else table[:, 0]
    o, _ = run(family, form, inputs, initial_state=pool, state_indices=indices, **options)
    assert not o[list(dead)].any()
    written = set(table[live].flatten().tolist())
    for slot in set(range(slots)) - written:
        same(pool[slot], before[slot])
    # The live rows alone give the same bits.
    alone = before.clone()
    if columns:
        options["num_accepted_tokens"] = accepted[live]
    o_alone, _ = run(
        family,
        form,
        [t[live] for t in inputs],
        initial_state=alone,
        state_indices=indices[live],
        **options,
    )
    same(o[live], o_alone)
    same(pool, alone)


@FORMS
@FAMILY
def test_random_slots_with_padding_and_outputs_of_their_own(family, form):
    batch, slots = 9, 24
    inputs = make_inputs(family, batch=batch, tokens=4, heads_v=4, dim_k=K, dim_v=V)
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(slots, generator=generator)
    read, write = order[:batch], order[batch : 2 * batch]
    states = torch.randn(slots, 4, K, V, generator=generator)
    options = {"output_final_state": True}
    o_dense, ht = run(family, form, inputs, initial_state=states[read], **options)
    for target in (None, write):
        pool = padded_slots(states, NAN)
        o, _ = run(
            family,
            form,
            inputs,
            initial_state=pool,
            state_indices=read.to(torch.int32),
            output_state_indices=None if target is None else target.to(torch.int32),
            **options,
        )
        assert error(o, o_dense) < 1e-6
        written = read if target is None else target
        assert error(pool[written], ht) < 1e-6
        rest = [slot for slot in range(slots) if slot not in written.tolist()]
        same(pool[rest], states[rest])


@FORMS
@FAMILY
@pytest.mark.parametrize("first", [True, False], ids=["from_state", "from_zero"])
def test_states_that_are_no_square(family, form, first):
    """K != V in both layouts: a transposed read shows."""
    inputs = make_inputs(family, tokens=20, heads_v=4, dim_k=V, dim_v=K)
    h0 = torch.randn(2, 4, V, K) if first else None
    o, ht = run(family, form, inputs, initial_state=h0, output_final_state=True)
    turned = h0.mT.contiguous() if first else None
    o_v, ht_v = run(
        family, form, inputs, initial_state=turned, output_final_state=True, state_v_first=True
    )
    assert error(o_v, o) < 1e-6 and ht_v.shape == (2, 4, K, V) and error(ht_v.mT, ht) < 1e-6


def test_gradient_of_a_masked_state_is_zero():
    family = FAMILIES["kda"]
    inputs = make_inputs(family, tokens=9, dim_k=K, dim_v=V)
    h0 = torch.full((2, 2, K, V), NAN)
    h0[1] = 1.0
    mask = torch.tensor([False, True])

    def op(*tensors):
        return run(family, "chunk", tensors[:-1], initial_state=tensors[-1], has_initial_state=mask)

    _, found = gradients(op, [*inputs, h0])
    assert not found[-1][0].any() and bool(found[-1][1].any())
    assert all(bool(t.isfinite().all()) for t in found)
