"""What every public operator does with its arguments before the call: one function for all.

Defaults are filled in here and arguments that are no tensors or numbers are refused; what is legal
is the library's to say.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_ad
from torch.autograd import profiler as _profiler
from torch.nn import Parameter

from . import _abi, _state, _torch_ops
from ._arguments import FLOAT_TYPES, check_tensor, integer, no_tensor, real, switch
from ._call import check_out, find_forward, run_forward
from ._problem import INPUT_NAMES, Switches, axis

_grad_enabled = torch.is_grad_enabled
_any_autocast = torch._C._is_any_autocast_enabled
_num_modes = torch._C._len_torch_dispatch_stack
_functorch_level = torch._C._functorch.peek_interpreter_stack
_compiling = torch.compiler.is_compiling

_PLAIN = (Tensor, Parameter)

Result = tuple[Tensor, Tensor | None, Tensor | None]


def call(
    family: int,
    form: int,
    gate: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    g_gamma: Tensor | None,
    beta: Tensor | None,
    scale: float | None,
    initial_state: Tensor | None,
    output_final_state: bool,
    flags: int,
    cu_seqlens: Tensor | None,
    *,
    gate_form: int = _abi.GATE_GIVEN,
    lower_bound: float | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    beta_form: int = _abi.BETA_VALUE,
    out: Tensor | None = None,
    state_indices: Tensor | None = None,
    output_state_indices: Tensor | None = None,
    null_state_index: int | None = None,
    has_initial_state: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    output_state_dtype: torch.dtype | None = None,
    intermediate_states: bool = False,
    state_every: int | None = None,
    cu_seqlens_cpu: Tensor | None = None,
) -> Result:
    """(o, final state or None, intermediate states or None).

    ``flags`` are the bits of linattn_problem; those of the null index are set here.
    """
    if type(scale) is not float:
        scale = _default_scale(q) if scale is None else real("scale", scale)
    if lower_bound is None:
        lower_bound = 0.0
    elif type(lower_bound) is not float:
        lower_bound = real("lower_bound", lower_bound)
    if null_state_index is None:
        null_state_index = 0
    else:
        null_state_index = integer("null_state_index", null_state_index)
        flags |= _abi.FLAG_NULL_STATE_INDEX
    if output_final_state is not True and output_final_state is not False:
        output_final_state = switch("output_final_state", output_final_state)
    final_type: torch.dtype | None = None
    if output_final_state and state_indices is None:
        final_type = torch.float32 if output_state_dtype is None else output_state_dtype
    if output_state_dtype is not None:
        _check_state_dtype(output_state_dtype, output_final_state, state_indices)
    every, rows = 0, -1
    if intermediate_states is not False or state_every is not None or cu_seqlens_cpu is not None:
        every, rows = _intermediate(q, cu_seqlens, cu_seqlens_cpu, intermediate_states, state_every)
    switches: Switches = (
        family,
        form,
        gate,
        gate_form,
        beta_form,
        flags,
        null_state_index,
        scale,
        lower_bound,
    )
    inputs = (
        q,
        k,
        v,
        g,
        g_gamma,
        beta,
        A_log,
        dt_bias,
        initial_state,
        cu_seqlens,
        state_indices,
        output_state_indices,
        has_initial_state,
        num_accepted_tokens,
    )
    result = None
    # Someone besides the library may have to see the call: a tracer, autocast, a profiler.
    if not (
        _compiling()
        or _num_modes()
        or _functorch_level() is not None
        or _any_autocast()
        or _forward_ad._current_level >= 0
        or _profiler._is_profiler_enabled
        or (_state.special and _state.local.capture is not None)
        or (out is not None and (type(out) is not Tensor or out.requires_grad))
    ):
        result = find_forward(switches, inputs, final_type, every, rows, out, _grad_enabled())
    if result is None:
        result = _traced(switches, inputs, final_type, every, rows, out)
    if state_indices is not None and output_final_state:
        return result[0], initial_state, result[2]
    return result


def _traced(
    switches: Switches,
    inputs: tuple[Any, ...],
    final_type: torch.dtype | None,
    every: int,
    rows: int,
    out: Tensor | None,
) -> Result:
    """The call through torch's dispatcher."""
    if not _compiling():
        for name, t in (*zip(INPUT_NAMES, inputs, strict=True), ("out", out)):
            if t is not None and not isinstance(t, Tensor):
                raise no_tensor(name, t)
        if _state.special and _state.local.capture is not None:
            result: Result = _state.local.capture(switches, inputs, final_type, every, rows, out)
            return result
        if any(type(t) in _PLAIN and t.is_meta for t in (*inputs, out)):
            # torch would answer meta tensors with the fake implementation and compute nothing.
            detached = tuple(None if t is None else t.detach() for t in inputs)
            return run_forward(switches, detached, final_type, every, rows, out)
        if _forward_ad._current_level >= 0:
            _refuse_tangents(inputs)
    inputs = _autocast(inputs)
    needs_grad = _grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    if out is not None and (needs_grad or (_grad_enabled() and out.requires_grad)):
        raise RuntimeError(
            "out is given and it or an input requires a gradient; a result written into a caller's "
            "tensor has none: leave out=None or call under torch.no_grad()"
        )
    if out is not None:
        if _compiling():
            check_tensor("out", out, (inputs[0].dtype,), "[B,T,HV,V]", inputs[2].shape)
        else:
            check_out(switches, inputs, final_type, every, rows, out)
    *plain, initial_state, cu_seqlens = inputs[:10]
    state_indices, output_state_indices, has_initial_state, num_accepted_tokens = inputs[10:]
    family, form, gate, gate_form, beta_form, flags, null_index, scale, lower_bound = switches
    numbers = (family, form, gate, gate_form, beta_form, flags, scale, lower_bound)
    final_state: Tensor | None
    if state_indices is not None:
        if needs_grad:
            raise RuntimeError(
                "state_indices is given and an input requires a gradient; the pool is updated in "
                "place, which has none: call under torch.no_grad(), or pass initial_state without "
                "state_indices"
            )
        if initial_state is None:
            raise ValueError("initial_state is None; state_indices needs it: it is the pool")
        o, states = torch.ops.linattn.forward_pool(
            *plain,
            initial_state,
            cu_seqlens,
            state_indices,
            output_state_indices,
            has_initial_state,
            num_accepted_tokens,
            *numbers,
            null_index,
            every,
            rows,
        )
        final_state = None
    else:
        if has_initial_state is not None:
            initial_state = _masked(initial_state, has_initial_state)
        if output_state_indices is not None or num_accepted_tokens is not None or null_index:
            # Not legal without state_indices: the library says which and why.
            return run_forward(switches, inputs, final_type, every, rows, out)
        args = (*plain, initial_state, cu_seqlens, *numbers, final_type, every, rows)
        o, final_state, states = _torch_ops.forward(args, eager=needs_grad and _eager(inputs))
        if final_type is None:
            final_state = None
    if out is not None:
        o = out.copy_(o)
    return o, final_state, states if _torch_ops._wanted(rows) else None


def _refuse_tangents(inputs: tuple[Any, ...]) -> None:
    """Forward-mode gradients would be lost without a word."""
    for name, t in zip(INPUT_NAMES, inputs, strict=True):
        if t is not None and _forward_ad.unpack_dual(t).tangent is not None:
            raise NotImplementedError(
                f"{name} has a tangent; linattn offers reverse-mode gradients alone"
            )


def _eager(inputs: tuple[Any, ...]) -> bool:
    """Whether autograd alone has to see a call."""
    return (
        not _compiling()
        and not _num_modes()
        and _functorch_level() is None
        and not _profiler._is_profiler_enabled
        and all(t is None or type(t) in (Tensor, Parameter) for t in inputs)
    )


def _masked(initial_state: Tensor | None, has_initial_state: Tensor) -> Tensor:
    if initial_state is None:
        raise ValueError("initial_state is None, but is required by has_initial_state")
    check_tensor(
        "has_initial_state", has_initial_state, (torch.bool,), "[N]", tuple(initial_state.shape[:1])
    )
    # where, not a product: the rows of False may hold anything, NaN included.
    return torch.where(has_initial_state.view(-1, 1, 1, 1), initial_state, 0.0)


def _autocast(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """q, k and v in the type of an active autocast; gates, beta and states keep theirs."""
    kind = inputs[0].device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return inputs
    dtype = torch.get_autocast_dtype(kind)
    if dtype not in FLOAT_TYPES:
        return inputs
    cast = (t.to(dtype) if t.dtype in FLOAT_TYPES else t for t in inputs[:3])
    return (*cast, *inputs[3:])


def _default_scale(q: Any) -> float:
    if not isinstance(q, Tensor):
        raise no_tensor("q", q)
    # Without channels there is no default; validation refuses such a q.
    channels: int = axis(q, 3)
    return float(channels**-0.5) if channels else 1.0


def _check_state_dtype(dtype: Any, output_final_state: bool, state_indices: Tensor | None) -> None:
    if dtype not in FLOAT_TYPES:
        raise TypeError(
            f"output_state_dtype is {dtype}; allowed: torch.float32, torch.bfloat16, torch.float16"
        )
    if state_indices is not None:
        raise ValueError(
            f"output_state_dtype is {dtype} with state_indices; the pool keeps its own type"
        )
    if not output_final_state:
        raise ValueError(
            f"output_state_dtype is {dtype} and output_final_state is False; it is the type of "
            "the final state"
        )


def _intermediate(
    q: Tensor,
    cu_seqlens: Tensor | None,
    cu_seqlens_cpu: Tensor | None,
    wanted: bool,
    state_every: int | None,
) -> tuple[int, int]:
    """(state_every of the problem, rows of the intermediate states or -1)."""
    wanted = switch("return_intermediate_states", wanted)
    if cu_seqlens_cpu is not None:
        _check_host_offsets(cu_seqlens, cu_seqlens_cpu)
    if state_every is not None:
        state_every = integer("state_every", state_every)
        if state_every <= 0:
            raise ValueError(f"state_every is {state_every}; allowed: a positive multiple of 64")
    if not wanted:
        return state_every or 0, -1
    every = state_every or 64
    if cu_seqlens is None:
        return state_every or 0, -(-axis(q, 1) // every)
    host = cu_seqlens if cu_seqlens.device.type == "cpu" else cu_seqlens_cpu
    if _compiling() or host is None or host.dim() != 1 or type(host) is not Tensor:
        # Lengths are on the device and stay there: the bound that linattn_intermediate_rows_bound
        # gives.
        return state_every or 0, axis(q, 1) // every + axis(cu_seqlens, 0) - 1
    lengths = (host[1:] - host[:-1]).clamp_min(0)
    return state_every or 0, int(((lengths + every - 1) // every).sum())


def _check_host_offsets(cu_seqlens: Tensor | None, host: Any) -> None:
    if not isinstance(host, Tensor):
        raise no_tensor("cu_seqlens_cpu", host)
    if cu_seqlens is None:
        raise ValueError("cu_seqlens_cpu is given without cu_seqlens, whose copy it is")
    if host.device.type != "cpu":
        raise TypeError(f"cu_seqlens_cpu is on {host.device}; allowed: cpu")
    if host.shape != cu_seqlens.shape:
        raise ValueError(
            f"cu_seqlens_cpu has shape {list(host.shape)}; allowed: that of cu_seqlens, "
            f"{list(cu_seqlens.shape)}"
        )
