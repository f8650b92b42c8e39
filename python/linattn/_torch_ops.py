"""The operators as torch sees them: namespace ``linattn::``, with shapes and gradients.

Three operators serve every family. Autograd, torch.compile, torch.export and other tracers go
through them; a plain eager call without a gradient goes to _call directly, which spares the
dispatcher's time. ``out``, ``force`` and the last implementation are matters of the eager call
and no part of a schema.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from . import _abi, _state
from ._call import run_backward, run_forward
from ._problem import GRADIENT_OF, Switches, num_sequences, state_shape

_SWITCHES = (
    "int family, int form, int gate, int gate_form, int beta_form, int flags, float scale, "
    "float lower_bound"
)
_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? g_gamma, Tensor? beta, Tensor? A_log, "
    "Tensor? dt_bias"
)

_library = torch.library.Library("linattn", "DEF")
_library.define(
    f"forward({_INPUTS}, Tensor? initial_state, Tensor? cu_seqlens, {_SWITCHES}, "
    "ScalarType? final_type, SymInt state_every, SymInt rows) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    f"forward_pool({_INPUTS}, Tensor(a!) pool, Tensor? cu_seqlens, Tensor state_indices, "
    "Tensor? output_state_indices, Tensor? has_initial_state, Tensor? num_accepted_tokens, "
    f"{_SWITCHES}, int null_state_index, SymInt state_every, SymInt rows) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    f"backward({_INPUTS}, Tensor? initial_state, Tensor? cu_seqlens, Tensor do, Tensor? dht, "
    f"{_SWITCHES}, bool[] needs) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)

_NUM_INPUTS = 10  # q .. cu_seqlens, the tensors of `forward`


def _switches(switches: tuple[Any, ...], null_state_index: int = 0) -> Switches:
    family, form, gate, gate_form, beta_form, flags, scale, lower_bound = switches
    return (family, form, gate, gate_form, beta_form, flags, null_state_index, scale, lower_bound)


def _absent(q: Tensor) -> Tensor:
    """Stands for an output that was not asked for: a schema cannot return an optional tensor."""
    return q.new_empty(0)


def _forward(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    inputs, switches, (final_type, state_every, rows) = args[:10], args[10:18], args[18:]
    o, final_state, states = run_forward(
        _switches(switches), (*inputs, None, None, None, None), final_type, state_every, rows, None
    )
    q = inputs[0]
    return (
        o,
        _absent(q) if final_state is None else final_state,
        _absent(q) if states is None else states,
    )


def _forward_fake(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, cu_seqlens, flags = args[0], args[1], args[2], args[9], args[15]
    final_type, _, rows = args[18:]
    final_state = _absent(q)
    if final_type is not None:
        shape = state_shape(q, v, num_sequences(q, cu_seqlens), flags)
        final_state = q.new_empty(shape, dtype=final_type)
    states = _absent(q)
    if _wanted(rows):
        states = k.new_empty((q.shape[0], *state_shape(q, v, rows, flags)))
    return q.new_empty(v.shape), final_state, states


def _wanted(rows: Any) -> bool:
    # -1 is a constant of the call, never a symbol; a symbolic count is a wanted one.
    return not isinstance(rows, int) or rows >= 0


def _forward_pool(*args: Any) -> tuple[Tensor, Tensor]:
    inputs, switches, (null_state_index, state_every, rows) = args[:14], args[14:22], args[22:]
    o, _, states = run_forward(
        _switches(switches, null_state_index), inputs, None, state_every, rows, None
    )
    return o, _absent(inputs[0]) if states is None else states


def _forward_pool_fake(*args: Any) -> tuple[Tensor, Tensor]:
    q, k, v, flags, rows = args[0], args[1], args[2], args[19], args[24]
    states = _absent(q)
    if _wanted(rows):
        states = k.new_empty((q.shape[0], *state_shape(q, v, rows, flags)))
    return q.new_empty(v.shape), states


def _backward(*args: Any) -> tuple[Tensor, ...]:
    inputs, do, dht, switches, needs = args[:10], args[10], args[11], args[12:20], args[20]
    gradients = run_backward(
        _switches(switches), (*inputs, None, None, None, None), do, dht, tuple(needs)
    )
    return tuple(_absent(inputs[0]) if t is None else t for t in gradients)


def _backward_fake(*args: Any) -> tuple[Tensor, ...]:
    q, needs = args[0], args[20]
    return tuple(
        args[position].new_empty(args[position].shape) if needed else _absent(q)
        for position, needed in zip(GRADIENT_OF, needs, strict=True)
    )


class _Differentiable(torch.autograd.Function):
    """linattn::forward with its gradient."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *args: Any) -> tuple[Tensor, ...]:
        if keyset is None:
            output: tuple[Tensor, ...] = _forward(*args)
        else:
            output = _below_autograd(torch.ops.linattn.forward.default, keyset, args)
        ctx.save_for_backward(*args[:_NUM_INPUTS])
        family, _, *rest = args[_NUM_INPUTS:18]
        # One backward pass serves both forms: it is the same function of the inputs.
        ctx.switches = (family, _abi.CHUNK, *rest)
        ctx.force = _state.local.force
        ctx.set_materialize_grads(False)
        final_type = args[18]
        absent = output[1:] if final_type is None else output[2:]
        ctx.mark_non_differentiable(*absent)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        # Unpacked once: under non-reentrant checkpointing a second look recomputes or fails.
        inputs = ctx.saved_tensors
        do, dht, _ = gradients
        # One for the key set, ten inputs, eleven numbers.
        results: list[Any] = [None] * (1 + _NUM_INPUTS + 11)
        if do is None and dht is None:
            return tuple(results)
        if do is None:
            do = inputs[0].new_zeros(()).expand(inputs[2].shape)
        needs = [bool(ctx.needs_input_grad[1 + position]) for position in GRADIENT_OF]
        with _forced_again(ctx.force):
            found = torch.ops.linattn.backward(*inputs, do, dht, *ctx.switches, needs)
        for position, needed, gradient in zip(GRADIENT_OF, needs, found, strict=True):
            if needed:
                results[1 + position] = gradient
        return tuple(results)


def forward(args: tuple[Any, ...], eager: bool) -> tuple[Tensor, Tensor, Tensor]:
    """linattn::forward; with ``eager`` without torch's dispatcher, which takes half the time."""
    if eager:
        result: tuple[Tensor, Tensor, Tensor] = _Differentiable.apply(None, *args)
        return result
    result = torch.ops.linattn.forward(*args)
    return result


def _forced_again(force: int) -> Any:
    """The backward pass may run on autograd's own thread, where the caller's choice is not set."""
    return _state.forced(force) if force != _state.local.force else nullcontext()


class _OnceDifferentiable(torch.autograd.Function):
    """linattn::backward, whose own gradient is refused."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *args: Any) -> tuple[Tensor, ...]:
        return _below_autograd(torch.ops.linattn.backward.default, keyset, args)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        raise RuntimeError(
            "linattn: the gradient of a gradient is not available; the naive_* references of "
            "linattn.ops have it"
        )


def _below_autograd(op: Any, keyset: Any, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
    with torch._C._AutoDispatchBelowAutograd():
        result: tuple[Tensor, ...] = op.redispatch(keyset & torch._C._after_autograd_keyset, *args)
        return result


def _autograd(op: str, function: type[torch.autograd.Function]) -> None:
    """What torch.library.register_autograd does, without the look through the schema in each call.

    That look costs 0.1 ms for a schema of twenty arguments.
    """

    def kernel(keyset: Any, *args: Any) -> Any:
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            return function.apply(keyset, *args)
        return _below_autograd(getattr(torch.ops.linattn, op).default, keyset, args)

    _library.impl(op, kernel, "Autograd", with_keyset=True)


for _name, _function, _fake in (
    ("forward", _forward, _forward_fake),
    ("forward_pool", _forward_pool, _forward_pool_fake),
    ("backward", _backward, _backward_fake),
):
    _library.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"linattn::{_name}", _fake, lib=_library)
_autograd("forward", _Differentiable)
_autograd("backward", _OnceDifferentiable)
