"""Forward and backward apart from autograd, for training loops of one's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _abi, _state
from .._call import run_backward, run_forward
from .._operator import _autocast, _masked
from .._problem import GRADIENT_NAMES, GRADIENT_OF, INPUT_NAMES, Switches


@dataclass(frozen=True)
class Saved:
    """What the backward pass needs of a forward call: the problem and its input tensors."""

    switches: Switches
    inputs: tuple[Tensor | None, ...]


@dataclass(frozen=True)
class ForwardResult:
    """Outputs of a ``*_fwd`` call; ``saved`` goes to the ``*_bwd`` of the same operator."""

    o: Tensor
    final_state: Tensor | None
    intermediate_states: Tensor | None
    saved: Saved


class Gradients(NamedTuple):
    """Gradients of the inputs, each in its input's type; None for one absent or not wanted."""

    dq: Tensor | None = None
    dk: Tensor | None = None
    dv: Tensor | None = None
    dg: Tensor | None = None
    dbeta: Tensor | None = None
    dA_log: Tensor | None = None
    ddt_bias: Tensor | None = None
    dh0: Tensor | None = None


def _detached(inputs: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(None if t is None else t.detach().resolve_neg() for t in inputs)


def forward(operator: Callable[..., Any], *args: Any, **options: Any) -> ForwardResult:
    """Runs a public operator without autograd and keeps what its backward pass needs."""
    results: list[ForwardResult] = []

    def run(
        switches: Switches,
        inputs: tuple[Tensor | None, ...],
        final_type: torch.dtype | None,
        every: int,
        rows: int,
        out: Tensor | None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        inputs = _autocast(_detached(inputs))
        pool = inputs[10] is not None
        has_initial_state = inputs[12]
        if has_initial_state is not None and not pool:
            masked = _masked(inputs[8], has_initial_state)
            inputs = (*inputs[:8], masked, *inputs[9:12], None, inputs[13])
        outputs = run_forward(switches, inputs, final_type, every, rows, out)
        results.append(ForwardResult(*outputs, Saved(switches, inputs)))
        return outputs

    with torch.no_grad(), _state.captured(run):
        operator(*args, **options)
    return results[0]


def describe_call(operator: Callable[..., Any], *args: Any, **options: Any) -> Saved:
    """What ``forward`` would save of such a call, without running it."""
    found: list[Saved] = []

    def keep(switches: Switches, inputs: tuple[Tensor | None, ...], *_: Any) -> Any:
        found.append(Saved(switches, _autocast(_detached(inputs))))
        return inputs[0], None, None

    with torch.no_grad(), _state.captured(keep):
        operator(*args, **options)
    return found[0]


def backward(
    saved: Saved | ForwardResult,
    do: Tensor,
    dht: Tensor | None = None,
    wanted: tuple[str, ...] | None = None,
) -> Gradients:
    if isinstance(saved, ForwardResult):
        saved = saved.saved
    if not isinstance(saved, Saved):
        raise TypeError(
            f"saved has type {type(saved).__name__}; allowed: the result of the forward function "
            "or its .saved"
        )
    for name, t in (("do", do), ("dht", dht)):
        if not isinstance(t, Tensor) and not (t is None and name == "dht"):
            raise TypeError(f"{name} has type {type(t).__name__}; allowed: torch.Tensor")
    if wanted is not None and not isinstance(wanted, (tuple, list, set, frozenset)):
        names = ", ".join(GRADIENT_NAMES)
        raise TypeError(f"wanted has type {type(wanted).__name__}; allowed: a tuple of {names}")
    if wanted is None:
        needs = tuple(saved.inputs[position] is not None for position in GRADIENT_OF)
    else:
        for name in wanted:
            if name not in GRADIENT_NAMES:
                raise ValueError(f"wanted has {name!r}; allowed: {', '.join(GRADIENT_NAMES)}")
            source = GRADIENT_OF[GRADIENT_NAMES.index(name)]
            if saved.inputs[source] is None:
                raise ValueError(
                    f"wanted has {name!r}; {INPUT_NAMES[source]} was None in the forward call, so "
                    "it has no gradient; allowed: the gradients of given inputs"
                )
        needs = tuple(name in wanted for name in GRADIENT_NAMES)
    family, _, *rest = saved.switches
    switches: Any = (family, _abi.CHUNK, *rest)
    with torch.no_grad():
        return Gradients(*run_backward(switches, saved.inputs, do, dht, needs))
