"""Inputs as model code has them: views of a projection, absent states, half of the outputs used."""

import pytest
import torch
from acceptance import FAMILY, FORMS, gradients, run, same
from families import doubled, error, make_inputs

K, V = 12, 7


def fused(inputs):
    """All inputs as slices of one projection [B,T,columns] that starts one element in."""
    batch, tokens = inputs[0].shape[:2]
    widths = [t[0, 0].numel() for t in inputs]
    base = torch.full((batch * tokens * sum(widths) + 1,), float("nan"))
    projection = base[1:].view(batch, tokens, sum(widths))
    parts = projection.split(widths, -1)
    return [part.unflatten(-1, t.shape[2:]).copy_(t) for part, t in zip(parts, inputs, strict=True)]


def heads_first(inputs):
    return [t.transpose(1, 2).contiguous().transpose(1, 2) for t in inputs]


def every_other(inputs):
    return [torch.stack([t, torch.full_like(t, float("nan"))], -1)[..., 0] for t in inputs]


def one_element_in(inputs):
    return [torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape) for t in inputs]


@pytest.mark.parametrize("view", [fused, heads_first, every_other, one_element_in])
@FORMS
@FAMILY
def test_views_are_read_as_what_they_show(family, form, view):
    inputs = make_inputs(family, tokens=37, heads_v=4, dim_k=K, dim_v=V)
    seen = view(inputs)
    assert any(t.storage_offset() or not t.is_contiguous() for t in seen)

    def call(tensors):
        leaves = [t.detach().requires_grad_() for t in tensors]
        o, ht = run(family, form, leaves, output_final_state=True)
        o.sum().backward()  # an expanded gradient
        return [o, ht, *(t.grad for t in leaves)]

    for a, b in zip(call(seen), call(inputs), strict=True):
        same(a.detach(), b.detach())


@FAMILY
def test_expanded_inputs(family):
    """One row of keys for all tokens, one head for all heads: strides of zero."""
    inputs = make_inputs(family, tokens=37, heads_v=4, dim_k=K, dim_v=V)
    inputs[1] = inputs[1][:, :1].expand(-1, 37, -1, -1)
    inputs[2] = inputs[2][:, :, :1].expand(-1, -1, 4, -1)
    dense = [t.contiguous() for t in inputs]
    for form in ("chunk", "recurrent"):
        same(run(family, form, inputs)[0], run(family, form, dense)[0])


@pytest.mark.parametrize("loss", ["o", "ht", "both"])
@pytest.mark.parametrize("state", [True, False], ids=["h0", "no_h0"])
@FORMS
@FAMILY
def test_any_of_h0_and_dht_may_be_absent(family, form, state, loss):
    inputs = make_inputs(family, tokens=37, heads_v=4, dim_k=K, dim_v=V)
    h0 = torch.randn(2, 4, K, V) if state else None

    def chosen(o, ht):
        return {"o": [o], "ht": [ht], "both": [o, ht]}[loss]

    def op(*tensors):
        return chosen(*run(family, form, tensors[:-1], initial_state=tensors[-1],
                           output_final_state=loss != "o"))  # fmt: skip

    def naive(*tensors):
        return chosen(*family.naive(*tensors[:-1], initial_state=tensors[-1],
                                    output_final_state=True))  # fmt: skip

    outputs, found = gradients(op, [*inputs, h0])
    wide = [*doubled(inputs), None if h0 is None else h0.double()]
    outputs_ref, wanted = gradients(naive, wide)
    for a, b in zip(outputs, outputs_ref, strict=True):
        assert error(a, b) < 1e-5
    for a, b in zip(found, wanted, strict=True):
        if b is None:  # torch has no gradient of q where o is not used; the operator has zeros
            assert a is None or not a.any()
        else:
            assert error(a, b) < 2e-5
