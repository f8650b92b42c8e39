"""The problem that a call of a public operator poses, taken where the call would be made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from . import _abi, _state
from ._library import Device
from ._problem import (
    GRADIENT_OF,
    Switches,
    backward_descriptors,
    describe_new,
    device_of,
    forward_descriptors,
    pack_problem,
)


class _Captured(Exception):
    pass


def problem_of(
    op: str | Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, Device, bytes, str]:
    """(operator, device, problem, name of the device)."""
    from . import ops

    name = op if isinstance(op, str) else op.__name__
    backward = name.endswith("_bwd")
    base = name.removesuffix("_bwd")
    if base.startswith("chunk_"):
        base = base.removesuffix("_fwd")
    operator = getattr(ops, base, None)
    if operator is None or not base.startswith(("chunk_", "fused_recurrent_")):
        operators = [n for n in ops.__all__ if n.startswith(("chunk_", "fused_recurrent_"))]
        raise ValueError(f"op is {name!r}; allowed: {', '.join(operators)}")
    found: list[Any] = []

    def receive(
        switches: Switches,
        inputs: tuple[Tensor | None, ...],
        final_type: torch.dtype | None,
        every: int,
        rows: int,
        out: Tensor | None,
    ) -> None:
        q, v = inputs[0], inputs[2]
        assert q is not None and v is not None
        force = _state.local.force
        if backward:
            family, _, *rest = switches
            switches = (family, _abi.CHUNK, *rest)  # type: ignore[assignment]
            needs = [inputs[position] is not None for position in GRADIENT_OF]
            # q stands in for a do that does not exist; what is said of it is of v's shape.
            descriptors = backward_descriptors(inputs, q, None, needs)
            descriptors[_abi.PROBLEM_TENSORS.index("do_")] = describe_new(
                tuple(v.shape), q.dtype, q.device
            )
            problem = pack_problem(switches, _abi.BACKWARD, 0, descriptors, force)
        else:
            descriptors = forward_descriptors(switches, inputs, final_type, rows, out)
            problem = pack_problem(switches, _abi.FORWARD, every, descriptors, force)
        found.append((name, device_of(q.device), problem, str(q.device)))
        raise _Captured

    with _state.captured(receive), suppress(_Captured):
        operator(*args, **kwargs)
    result: tuple[str, Device, bytes, str] = found[0]
    return result
