"""The call path: tensors to a cached plan, outputs, one crossing into the library.

There are no rules here. A problem not seen before goes to linattn_plan, which validates it and
says what is wrong; the same problem again is one look-up in a dictionary. The key is all that the
problem is made of, so an entry never goes stale.
"""

from __future__ import annotations

import ctypes
import logging
import struct
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from . import _abi, _state
from ._arguments import renamed
from ._library import explain_json, follow_torch_threads, library, raise_status
from ._problem import (
    GRADIENT_OF,
    INPUT_NAMES,
    Inputs,
    Switches,
    axis,
    backward_descriptors,
    describe_new,
    device_of,
    forward_descriptors,
    num_sequences,
    pack_problem,
    state_shape,
)

logger = logging.getLogger("linattn")

_ARGS = struct.Struct("@" + _abi.ARGS_FORMAT)
_ARGS_BYTES = _ARGS.size
_pack_args = _ARGS.pack
# The forward pass has no gradients: those pointers are padding.
_FORWARD_ARGS = struct.Struct("@" + _abi.ARGS_FORMAT[:-10] + "80x")
_pack_forward_args = _FORWARD_ARGS.pack
# A CPU call is over when it returns, so small workspaces can be one piece of memory a thread.
_SCRATCH_BYTES = 1 << 20
_TOKEN_TENSORS = (0, 1, 2, 3, 5)


def _raw_stream(index: int) -> int:
    """The current stream of a CUDA device as the number that a cudaStream_t is."""
    stream: int = torch._C._cuda_getCurrentRawStream(index)
    return stream


def _new_scratch() -> int:
    _state.local.scratch = torch.empty(_SCRATCH_BYTES, dtype=torch.uint8)
    _state.local.scratch_pointer = _state.local.scratch.data_ptr()
    return _state.local.scratch_pointer


class Plan:
    """A plan of the library and what it takes to call it."""

    __slots__ = (
        "copies",
        "cuda_index",
        "device",
        "dtype",
        "final_shape",
        "handle",
        "implementation",
        "like_h0",
        "like_v",
        "o_shape",
        "row_shape",
        "run",
        "scratch",
        "workspace_bytes",
    )

    def __init__(self, problem: bytes, q: Tensor, what: str) -> None:
        self.handle: int | None = None  # until there is a plan: __del__ runs whatever fails
        lib = library()
        follow_torch_threads(torch.get_num_threads())
        handle = ctypes.c_void_p()
        device = device_of(q.device)
        status = lib.linattn_plan(problem, device, ctypes.byref(handle))
        if status != _abi.OK:
            raise_status(lib, status, problem, device)
        self.handle = handle.value
        self.run = lib.linattn_run
        self.device = q.device
        self.dtype = q.dtype
        self.cuda_index = q.device.index if q.device.type == "cuda" else -1
        self.workspace_bytes = lib.linattn_plan_workspace_bytes(handle)
        self.scratch = self.cuda_index < 0 and 0 < self.workspace_bytes <= _SCRATCH_BYTES
        self.implementation = lib.linattn_plan_implementation(handle).decode()
        # What the forward pass makes; filled in by _plan_forward.
        self.copies: tuple[int, ...] = ()
        self.o_shape: tuple[int, ...] = ()
        self.final_shape: tuple[int, ...] = ()
        self.row_shape: tuple[int, ...] = ()
        self.like_v = False
        self.like_h0 = False
        logger.info("%s -> %s on %s", what, self.implementation, q.device)

    def __del__(self) -> None:
        if self.handle is not None:
            library().linattn_plan_destroy(self.handle)


_FAMILY_NAMES = {
    _abi.KDA: "kda",
    _abi.GDN: "gdn",
    _abi.DELTA: "delta",
    _abi.GLA: "gla",
    _abi.SIMPLE_GLA: "simple_gla",
    _abi.LIGHTNING: "lightning",
}


def _title(switches: Switches, pass_: str, q: Tensor, v: Tensor) -> str:
    form = "chunk" if switches[1] == _abi.CHUNK else "recurrent"
    return f"{_FAMILY_NAMES[switches[0]]} {form} {pass_} q {list(q.shape)} v {list(v.shape)}"


# Problems differ by T, so a server that packs batches of any length would fill a boundless cache.
_CAPACITY = 4096
_plans: dict[tuple[Any, ...], Plan] = {}


def _remember(key: tuple[Any, ...], plan: Plan) -> Plan:
    if len(_plans) >= _CAPACITY:
        # Oldest first; a call in flight on another thread holds its own reference.
        for old in list(_plans)[: _CAPACITY // 2]:
            _plans.pop(old, None)
    _plans[key] = plan
    return plan


def check_layouts(inputs: Inputs) -> None:
    """Called when reading a tensor's strides failed: says which tensor is not strided."""
    for name, t in zip(INPUT_NAMES, inputs, strict=True):
        if t is not None and t.layout != torch.strided:
            raise TypeError(f"{name} has layout {t.layout}; allowed: torch.strided")


def _refuse_headwise(beta: Tensor | None, v: Tensor) -> None:
    if beta is not None and beta.dim() == 4 and beta.shape == v.shape:
        raise NotImplementedError(
            f"beta has shape {list(beta.shape)}, a value for every value channel; linattn offers "
            "one for every head alone, [B,T,HV]"
        )


def _plan_forward(
    key: tuple[Any, ...],
    switches: Switches,
    inputs: Inputs,
    final_type: torch.dtype | None,
    state_every: int,
    rows: int,
    out: Tensor | None,
    force: int,
) -> Plan:
    q, k, v = inputs[:3]
    assert q is not None and v is not None and k is not None
    _refuse_headwise(inputs[5], v)
    descriptors = forward_descriptors(switches, inputs, final_type, rows, out)
    copies: list[int] = []
    if q.device.type == "cuda":
        # Kernels read rows of channels; the CPU takes any stride.
        for index in _TOKEN_TENSORS:
            t = inputs[index]
            if t is not None and t.dim() > 0 and t.shape[-1] > 1 and t.stride(-1) != 1:
                descriptors[index] = describe_new(tuple(t.shape), t.dtype, t.device)
                copies.append(index)
    problem = pack_problem(switches, _abi.FORWARD, state_every, descriptors, force)
    try:
        plan = Plan(problem, q, _title(switches, "forward", q, v))
    except (ValueError, TypeError) as error:
        raise renamed(error, {"o": "out"}) from None
    plan.copies = tuple(copies)
    plan.o_shape = tuple(v.shape)
    plan.like_v = v.is_contiguous() and v.dtype == q.dtype and v.device == q.device
    plan.final_shape = state_shape(q, v, num_sequences(q, inputs[9]), switches[5])
    h0 = inputs[8]
    plan.like_h0 = (
        h0 is not None
        and inputs[10] is None
        and h0.is_contiguous()
        and h0.dtype == final_type
        and tuple(h0.shape) == plan.final_shape
    )
    plan.row_shape = (axis(q, 0), *state_shape(q, v, max(rows, 0), switches[5]))
    return _remember(key, plan)


def check_out(
    switches: Switches,
    inputs: Inputs,
    final_type: torch.dtype | None,
    state_every: int,
    rows: int,
    out: Tensor,
) -> None:
    """Raises what a call that writes to ``out`` itself would raise."""
    q, v = inputs[0], inputs[2]
    assert q is not None and v is not None
    _refuse_headwise(inputs[5], v)
    descriptors = forward_descriptors(switches, inputs, final_type, rows, out)
    problem = pack_problem(switches, _abi.FORWARD, state_every, descriptors, 0)
    try:
        explain_json(problem, device_of(q.device))
    except (TypeError, ValueError) as error:
        raise renamed(error, {"o": "out"}) from None


Outputs = tuple[Tensor, Tensor | None, Tensor | None]


def run_forward(
    switches: Switches,
    inputs: Inputs,
    final_type: torch.dtype | None,
    state_every: int,
    rows: int,
    out: Tensor | None,
) -> Outputs:
    """Runs a forward problem on the tensors' bytes: (o, final_state or None, states or None).

    ``final_type`` is None when no final state is wanted, ``rows`` is -1 when no intermediate
    states are.
    """
    plain = [t.resolve_neg() if t is not None else None for t in inputs]
    found = find_forward(switches, plain, final_type, state_every, rows, out, False, False)
    assert found is not None
    return found


def find_forward(
    switches: Switches,
    inputs: Inputs,
    final_type: torch.dtype | None,
    state_every: int,
    rows: int,
    out: Tensor | None,
    grad: bool,
    strict: bool = True,
) -> Outputs | None:
    """run_forward, but None where with ``strict`` an input is of a subclass, with ``grad`` one
    needs a gradient, or one is negated lazily.

    One pass over the inputs checks them and makes the key: each attribute of a tensor costs 0.1
    microseconds, and there are up to fourteen tensors.
    """
    force = _state.local.force if _state.special else 0
    key: list[Any] = [switches, final_type, state_every, rows, force]
    pointers: list[int] = []
    try:
        for t in inputs:
            if t is None:
                key.append(None)
                pointers.append(0)
                continue
            kind = type(t)
            if (
                (kind is not Tensor and kind is not Parameter and strict)
                or (grad and t.requires_grad)
                or t.is_neg()
            ):
                return None
            # Cheaper than asking for strides and device, and hashed faster.
            place = t.is_cpu or t.device
            key += (t.shape, t.is_contiguous() or t.stride(), t.dtype, place)
            pointers.append(t.data_ptr())
        if out is not None:
            key += (out.shape, out.stride(), out.dtype, out.device)
    except RuntimeError:
        check_layouts(inputs)
        raise
    found = tuple(key)
    plan = _plans.get(found)
    if plan is None:
        plan = _plan_forward(found, switches, inputs, final_type, state_every, rows, out, force)
    if plan.copies:
        held = {index: inputs[index].contiguous() for index in plan.copies}  # type: ignore[union-attr]
        for index, t in held.items():
            pointers[index] = t.data_ptr()
    if out is not None:
        o = out
    elif plan.like_v:
        o = torch.empty_like(inputs[2])  # type: ignore[arg-type]
    else:
        o = torch.empty(plan.o_shape, dtype=plan.dtype, device=plan.device)
    final_state = states = None
    final_pointer = states_pointer = workspace_pointer = 0
    if final_type is not None:
        if plan.like_h0:
            final_state = torch.empty_like(inputs[8])  # type: ignore[arg-type]
        else:
            final_state = torch.empty(plan.final_shape, dtype=final_type, device=plan.device)
        final_pointer = final_state.data_ptr()
    if rows >= 0:
        states = torch.empty(plan.row_shape, dtype=plan.dtype, device=plan.device)
        states_pointer = states.data_ptr()
    if plan.scratch:
        workspace_pointer = _state.local.scratch_pointer or _new_scratch()
    elif plan.workspace_bytes:
        workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=plan.device)
        workspace_pointer = workspace.data_ptr()
    packed = _pack_forward_args(
        _ARGS_BYTES,
        0,
        workspace_pointer,
        *pointers,
        o.data_ptr(),
        final_pointer,
        states_pointer,
    )
    stream = None if plan.cuda_index < 0 else _raw_stream(plan.cuda_index)
    status = plan.run(plan.handle, packed, stream)
    if status:
        raise_status(library(), status)
    _state.local.last = plan.implementation
    return o, final_state, states


def run_backward(
    switches: Switches,
    inputs: Inputs,
    do: Tensor,
    dht: Tensor | None,
    needs: tuple[bool, ...],
) -> list[Tensor | None]:
    """Gradients in the order of GRADIENT_NAMES; None where ``needs`` is false."""
    force = _state.local.force if _state.special else 0
    q, _, v = inputs[0], inputs[1], inputs[2]
    assert q is not None and v is not None
    if q.device.type == "cuda":
        seen = list(inputs)
        for index in _TOKEN_TENSORS:
            t = seen[index]
            if t is not None and t.stride(-1) != 1:
                seen[index] = t.contiguous()
        inputs = seen
        if do.stride(-1) != 1:
            do = do.contiguous()
    key: list[Any] = [switches, needs, force]
    pointers: list[int] = []
    for t in (*inputs, do, dht):
        if t is None:
            key.append(None)
            pointers.append(0)
        else:
            key += (t.shape, t.stride(), t.dtype, t.device)
            pointers.append(t.data_ptr())
    found = tuple(key)
    plan = _plans.get(found)
    if plan is None:
        descriptors = backward_descriptors(inputs, do, dht, needs)
        problem = pack_problem(switches, _abi.BACKWARD, 0, descriptors, force)
        plan = _remember(found, Plan(problem, q, _title(switches, "backward", q, v)))
    gradients: list[Tensor | None] = []
    for position, needed in zip(GRADIENT_OF, needs, strict=True):
        t = inputs[position]
        if needed and t is not None:
            gradients.append(torch.empty(t.shape, dtype=t.dtype, device=t.device))
        else:
            gradients.append(None)
    workspace = None
    if plan.workspace_bytes:
        workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=plan.device)
    packed = _pack_args(
        _ARGS_BYTES,
        0,
        0 if workspace is None else workspace.data_ptr(),
        *pointers[:14],
        0,
        0,
        0,
        *pointers[14:],
        *(0 if t is None else t.data_ptr() for t in gradients),
    )
    stream = None if plan.cuda_index < 0 else _raw_stream(plan.cuda_index)
    status = plan.run(plan.handle, packed, stream)
    if status:
        raise_status(library(), status)
    _state.local.last = plan.implementation
    return gradients
