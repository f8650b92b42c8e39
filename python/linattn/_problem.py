"""Tensors and problems as the library describes them: integers, packed as the header says."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _abi
from ._library import Device

# (family, form, gate, gate_form, beta_form, flags, null_state_index, scale, lower_bound)
Switches = tuple[int, int, int, int, int, int, int, float, float]
# q, k, v, g, g_gamma, beta, A_log, dt_bias, initial_state, cu_seqlens, state_indices,
# output_state_indices, has_initial_state, num_accepted_tokens
Inputs = Sequence[Tensor | None]
# type, rank, device_type, device_index, 5 sizes, 5 strides
Descriptor = tuple[int, ...]

INPUT_NAMES = _abi.PROBLEM_TENSORS[:14]
GRADIENT_NAMES = _abi.PROBLEM_TENSORS[19:]
# Which input each gradient belongs to, as positions in Inputs.
GRADIENT_OF = (0, 1, 2, 3, 5, 6, 7, 8)

_TYPES = {
    getattr(torch, name): getattr(_abi, constant)
    for name, constant in (
        ("float32", "F32"),
        ("bfloat16", "BF16"),
        ("float16", "F16"),
        ("int32", "I32"),
        ("int64", "I64"),
        ("bool", "BOOL"),
        ("float64", "F64"),
        ("int16", "I16"),
        ("int8", "I8"),
        ("uint8", "U8"),
    )
    if hasattr(_abi, constant)
}
_DEVICES = {"cpu": _abi.DEVICE_CPU, "cuda": _abi.DEVICE_CUDA, "meta": _abi.DEVICE_META}

_ABSENT: Descriptor = (_abi.NONE,) + (0,) * 13
_PROBLEM = struct.Struct("@" + _abi.PROBLEM_SCALARS_FORMAT + _abi.TENSOR_FORMAT * 27)


def describe(
    shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Descriptor:
    rank = len(shape)
    fill = (0,) * (5 - rank)
    kind = _DEVICES.get(device.type, _abi.DEVICE_OTHER)
    index = device.index or 0
    type_ = _TYPES.get(dtype, _abi.OTHER_TYPE)
    return (type_, rank, kind, index, *shape[:5], *fill, *stride[:5], *fill)


def describe_tensor(t: Tensor | None) -> Descriptor:
    if t is None:
        return _ABSENT
    shape = tuple(t.shape)
    # Axes of one element may have any stride; one form of them, as in the key of the plan.
    stride = contiguous_strides(shape) if t.is_contiguous() else t.stride()
    return describe(shape, stride, t.dtype, t.device)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def describe_new(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Descriptor:
    return describe(shape, contiguous_strides(shape), dtype, device)


def pack_problem(
    switches: Switches,
    pass_: int,
    state_every: int,
    descriptors: Sequence[Descriptor],
    force: int,
) -> bytes:
    family, form, gate, gate_form, beta_form, flags, null_index, scale, lower_bound = switches
    values: list[Any] = [_PROBLEM.size, family, form, pass_, gate, gate_form, beta_form, flags]
    values += [null_index, state_every, force, 0, scale, lower_bound]
    for descriptor in descriptors:
        values += descriptor
    try:
        return _PROBLEM.pack(*values)
    except (struct.error, OverflowError):
        raise _too_large(switches, state_every) from None


def _too_large(switches: Switches, state_every: int) -> ValueError:
    """Which number does not fit where the library takes it."""
    integers = {"null_state_index": switches[6], "state_every": state_every}
    for name, value in integers.items():
        if not -(2**63) <= value < 2**63:
            return ValueError(f"{name} is {value}; allowed: 64-bit integers")
    return ValueError("scale and lower_bound: allowed are numbers that a double holds")


def device_of(device: torch.device) -> Device:
    return Device(_DEVICES.get(device.type, _abi.DEVICE_OTHER), device.index or 0)


def axis(t: Tensor | None, index: int) -> Any:
    """Size of an axis, 0 where the tensor has none: validation speaks about the rank."""
    return t.shape[index] if t is not None and index < t.dim() else 0


def num_sequences(q: Tensor, cu_seqlens: Tensor | None) -> Any:
    return axis(q, 0) if cu_seqlens is None else axis(cu_seqlens, 0) - 1


def state_shape(q: Tensor, v: Tensor, count: Any, flags: int) -> tuple[Any, ...]:
    inner = (axis(q, 3), axis(v, 3))
    if flags & _abi.FLAG_STATE_V_FIRST:
        inner = (inner[1], inner[0])
    return (count, axis(v, 2), *inner)


def forward_descriptors(
    switches: Switches,
    inputs: Inputs,
    final_type: torch.dtype | None,
    rows: int,
    out: Tensor | None,
) -> list[Descriptor]:
    """The 27 descriptors of a forward problem with the outputs this module makes."""
    q, k, v = inputs[:3]
    assert q is not None and v is not None and k is not None
    flags = switches[5]
    descriptors = [describe_tensor(t) for t in inputs]
    if out is None:
        descriptors.append(describe_new(tuple(v.shape), q.dtype, q.device))
    else:
        descriptors.append(describe_tensor(out))
    if final_type is None:
        descriptors.append(_ABSENT)
    else:
        shape = state_shape(q, v, num_sequences(q, inputs[9]), flags)
        descriptors.append(describe_new(shape, final_type, q.device))
    if rows < 0:
        descriptors.append(_ABSENT)
    else:
        shape = (axis(q, 0), *state_shape(q, v, rows, flags))
        descriptors.append(describe_new(shape, k.dtype, q.device))
    return descriptors + [_ABSENT] * 10


def backward_descriptors(
    inputs: Inputs, do: Tensor, dht: Tensor | None, needs: Sequence[bool]
) -> list[Descriptor]:
    descriptors = [describe_tensor(t) for t in inputs] + [_ABSENT] * 3
    descriptors += [describe_tensor(do), describe_tensor(dht)]
    for position, needed in zip(GRADIENT_OF, needs, strict=True):
        t = inputs[position]
        if not needed or t is None:
            descriptors.append(_ABSENT)
        else:
            descriptors.append(describe_new(tuple(t.shape), t.dtype, t.device))
    return descriptors
