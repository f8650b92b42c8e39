"""The problem that a call of a public operator poses, taken where the call would be made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from . import _abi, _state
from ._library import Device, explain_json
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


def operator_names() -> list[str]:
    from . import ops

    return [name for name in ops.__all__ if name.startswith(("chunk_", "fused_recurrent_"))]


def find_operator(name: str) -> Callable[..., Any] | None:
    """What a name, with ``_bwd`` or a chunk form's ``_fwd`` or without, is a pass of."""
    from . import ops

    base = name.removesuffix("_bwd")
    if base.startswith("chunk_"):
        base = base.removesuffix("_fwd")
    return getattr(ops, base) if base in operator_names() else None


def problem_of(
    op: str | Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device | None = None,
) -> tuple[str, Device, bytes, str]:
    """(operator, device, problem, name of the device).

    With ``device`` the tensors are taken to lie there, whatever their own device.
    """
    name = op if isinstance(op, str) else op.__name__
    backward = name.endswith("_bwd")
    operator = find_operator(name)
    if operator is None:
        raise ValueError(f"op is {name!r}; allowed: {', '.join(operator_names())}")
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
        pass_ = _abi.FORWARD
        if backward:
            family, _, *rest = switches
            switches = (family, _abi.CHUNK, *rest)  # type: ignore[assignment]
            pass_, every = _abi.BACKWARD, 0
            needs = [inputs[position] is not None for position in GRADIENT_OF]
            # q stands in for a do that does not exist; what is said of it is of v's shape.
            descriptors = backward_descriptors(inputs, q, None, needs)
            descriptors[_abi.PROBLEM_TENSORS.index("do_")] = describe_new(
                tuple(v.shape), q.dtype, q.device
            )
        else:
            descriptors = forward_descriptors(switches, inputs, final_type, rows, out)
        where = q.device if device is None else device
        if device is not None:
            at = device_of(device)
            descriptors = [
                (d[0], d[1], at.type, at.index, *d[4:]) if d[0] != _abi.NONE else d
                for d in descriptors
            ]
        problem = pack_problem(switches, pass_, every, descriptors, force)
        found.append((name, device_of(where), problem, str(where)))
        raise _Captured

    with _state.captured(receive), suppress(_Captured):
        operator(*args, **kwargs)
    result: tuple[str, Device, bytes, str] = found[0]
    return result


def workspace_of(
    op: str, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
) -> int:
    """Workspace of a call with such tensors, were they on ``device``."""
    _, at, problem, _ = problem_of(op, args, kwargs, device)
    size: int = explain_json(problem, at)["workspace_bytes"]
    return size
