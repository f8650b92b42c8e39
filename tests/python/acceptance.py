"""Shared by the acceptance tests: calls that say what ran, gradients, tensors in foreign memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from families import FAMILIES, Family
from torch import Tensor

import linattn

FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
DELTA = pytest.mark.parametrize(
    "family", [FAMILIES[n] for n in ("kda", "gdn", "delta")], ids=["kda", "gdn", "delta"]
)
FORMS = pytest.mark.parametrize("form", ["chunk", "recurrent"])


def run(family: Family, form: str, inputs: Sequence[Tensor], **options: Any) -> Any:
    """The family's operator, which has to run on the fast CPU implementation."""
    result = getattr(family, form)(*inputs, **options)
    assert linattn.last_implementation() == "cpu"
    return result


def gradients(
    op: Callable[..., Any], tensors: Sequence[Tensor | None], seed: int = 0
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Outputs of ``op(*tensors)`` and the tensors' gradients of a random sum of the outputs."""
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in tensors]
    outputs = [o for o in op(*leaves) if o is not None]
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(o.shape, generator=generator).to(o.dtype) for o in outputs]
    torch.autograd.backward(outputs, weights)
    assert linattn.last_implementation() in ("cpu", None)
    return [o.detach() for o in outputs], [None if t is None else t.grad for t in leaves]


def reference(family: Family, inputs: Sequence[Tensor], **options: Any) -> Any:
    """The same call on the fp64 oracle, from the inputs' own values in fp32."""
    wide = [t.float() for t in inputs]
    if options.get("initial_state") is not None:
        options["initial_state"] = options["initial_state"].float()
    with linattn.force("reference"):
        return family.chunk(*wide, **options)


def embedded(t: Tensor, filling: float) -> Tensor:
    """A copy of t whose every axis but the last is a slice of a larger one full of ``filling``."""
    room = [n + 2 for n in t.shape]
    base = torch.full(room, filling, dtype=t.dtype)
    view = base[tuple(slice(1, n + 1) for n in t.shape)]
    return view.copy_(t)


def surroundings(t: Tensor) -> Tensor:
    """The bytes of t's memory with those of t itself cleared."""
    memory = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage()).clone()
    torch.as_strided(memory, t.shape, t.stride(), t.storage_offset()).zero_()
    return memory.view(torch.uint8)


def padded_slots(pool: Tensor, filling: float, padding: int = 33) -> Tensor:
    """The pool with ``padding`` foreign elements after every slot."""
    slots, inner = pool.shape[0], pool[0].numel()
    base = torch.full((slots, inner + padding), filling, dtype=pool.dtype)
    view = torch.as_strided(base, pool.shape, (inner + padding, *pool.stride()[1:]))
    return view.copy_(pool)


def same(a: Any, b: Any) -> None:
    """Bit for bit, NaN equal to NaN of the same bits."""
    if a is None or b is None:
        assert a is None and b is None
        return
    assert a.shape == b.shape and a.dtype == b.dtype
    assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
