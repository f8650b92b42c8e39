"""Every family's operators behind one signature, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from linattn import ops


@dataclass(frozen=True)
class Family:
    """Operators called as ``op(*inputs, **options)``; ``inputs`` are q, k, v and what follows."""

    name: str
    chunk: Callable[..., Any]
    recurrent: Callable[..., Any]
    naive: Callable[..., Any]
    gate: str = "none"  # none, head, channel
    beta: bool = False

    def names(self) -> tuple[str, ...]:
        gate = ("g",) if self.gate != "none" else ()
        return ("q", "k", "v", *gate, *(("beta",) if self.beta else ()))


def _gdn_recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options: Any) -> Any:
    return ops.fused_recurrent_gated_delta_rule(q, k, v, g, beta=beta, **options)


def _gdn_naive(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options: Any) -> Any:
    return ops.naive_recurrent_gated_delta_rule(q, k, v, beta, g, **options)


def _layer(op: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        return op(*args, layer_idx=1, num_layers=4, **options)

    return call


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "kda",
            ops.chunk_kda,
            ops.fused_recurrent_kda,
            ops.naive_recurrent_kda,
            gate="channel",
            beta=True,
        ),
        Family(
            "gdn",
            ops.chunk_gated_delta_rule,
            _gdn_recurrent,
            _gdn_naive,
            gate="head",
            beta=True,
        ),
        Family(
            "delta",
            ops.chunk_delta_rule,
            ops.fused_recurrent_delta_rule,
            ops.naive_recurrent_delta_rule,
            beta=True,
        ),
        Family(
            "gla",
            ops.chunk_gla,
            ops.fused_recurrent_gla,
            ops.naive_recurrent_gla,
            gate="channel",
        ),
        Family(
            "simple_gla",
            ops.chunk_simple_gla,
            ops.fused_recurrent_simple_gla,
            ops.naive_recurrent_simple_gla,
            gate="head",
        ),
        Family(
            "lightning",
            _layer(ops.chunk_lightning_attn),
            _layer(ops.fused_recurrent_lightning_attn),
            _layer(ops.naive_recurrent_lightning_attn),
        ),
    )
}


def make_inputs(
    family: Family,
    batch: int = 2,
    tokens: int = 70,
    heads: int = 2,
    heads_v: int | None = None,
    dim_k: int = 16,
    dim_v: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> list[Tensor]:
    """Inputs in the family's order: unit keys, log decays in (-1, 0), beta in (0, 1)."""
    heads_v = heads if heads_v is None else heads_v
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    inputs = [
        normal(batch, tokens, heads, dim_k).to(dtype),
        F.normalize(normal(batch, tokens, heads, dim_k), dim=-1).to(dtype),
        normal(batch, tokens, heads_v, dim_v).to(dtype),
    ]
    if family.gate == "head":
        inputs.append(-uniform(batch, tokens, heads_v))
    elif family.gate == "channel":
        inputs.append(-uniform(batch, tokens, heads_v, dim_k))
    if family.beta:
        inputs.append(uniform(batch, tokens, heads_v))
    return inputs


def doubled(inputs: list[Tensor]) -> list[Tensor]:
    return [t.double() for t in inputs]


def error(a: Tensor, reference: Tensor) -> float:
    """``||a - reference|| / ||reference||``; NaN and inf never pass."""
    a, reference = a.double(), reference.double()
    assert a.shape == reference.shape, (a.shape, reference.shape)
    if not bool(torch.isfinite(a).all()):
        return float("inf")
    norm = reference.norm().item()
    difference = (a - reference).norm().item()
    return difference / norm if norm > 0 else difference
