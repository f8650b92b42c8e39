"""Arguments that the library cannot see: hints, old names, what FLA has and linattn has not."""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import _abi

FLOAT_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def no_tensor(name: str, value: object) -> TypeError:
    return TypeError(f"{name} has type {type(value).__name__}; allowed: torch.Tensor")


def renamed(error: Exception, names: dict[str, str]) -> Exception:
    """An error that speaks of an argument, with the name that the caller knows it by."""
    first, space, rest = str(error).partition(" ")
    return type(error)(names[first] + space + rest) if first in names else error


def real(name: str, value: Any) -> float:
    if not isinstance(value, Real):
        raise TypeError(f"{name} has type {type(value).__name__}; allowed: a real number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is beyond what a double holds") from None


def integer(name: str, value: Any) -> int:
    if not isinstance(value, Integral):
        raise TypeError(f"{name} has type {type(value).__name__}; allowed: an integer")
    return int(value)


def switch(name: str, value: Any) -> bool:
    """A bool, or what stands for one: an integer, numpy's bool, None for False."""
    if value is True or value is False:
        return value
    if value is not None and not isinstance(value, (Integral, np.bool_)):
        raise TypeError(f"{name} has type {type(value).__name__}; allowed: bool")
    return bool(value)


def check_tensor(
    name: str, t: Any, types: tuple[torch.dtype, ...], axes: str, shape: tuple[int, ...]
) -> None:
    """The library's rules in its words, for a tensor that is used before the library sees it."""
    if not isinstance(t, Tensor):
        raise no_tensor(name, t)
    if t.dtype not in types:
        allowed = ", ".join(str(dtype)[6:] for dtype in types)
        raise TypeError(f"{name} has type {str(t.dtype)[6:]}; allowed: {allowed}")
    if tuple(t.shape) != tuple(shape):
        found, wanted = (",".join(map(str, sizes)) for sizes in (t.shape, shape))
        raise ValueError(f"{name} has shape [{found}]; allowed: {axes} = [{wanted}]")


def check_gate(g: Any, A_log: Any, dt_bias: Any, axes: int) -> None:
    """Inputs of a gate alone: ``g [...,HV]`` (``axes`` 1) or ``[...,HV,K]`` (2)."""
    types = (*FLOAT_TYPES, torch.float64)
    if not isinstance(g, Tensor):
        raise no_tensor("g", g)
    names = "[...,HV]" if axes == 1 else "[...,HV,K]"
    if g.dim() < axes:
        raise ValueError(f"g has shape {list(g.shape)}; allowed: {names}")
    check_tensor("g", g, types, names, g.shape)
    heads = g.shape[g.dim() - axes :]
    if A_log is not None:
        check_tensor("A_log", A_log, types, "[HV]", heads[:1])
    if dt_bias is not None and axes == 2 and isinstance(dt_bias, Tensor) and dt_bias.dim() == 1:
        check_tensor("dt_bias", dt_bias, types, "[HV*K] or [HV,K]", (heads.numel(),))
    elif dt_bias is not None:
        check_tensor("dt_bias", dt_bias, types, "[HV]" if axes == 1 else "[HV,K] or [HV*K]", heads)


def refuse(**arguments: Any) -> None:
    """Arguments of FLA that are not offered: each must be at the default given with it.

    ``refuse(gv=(gv, None))``.
    """
    for name, (value, default) in arguments.items():
        if value is not default:
            raise NotImplementedError(
                f"{name} is {_brief(value)}; linattn offers {name}={default} alone"
            )


def _brief(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return repr(value)


def check_chunk_size(chunk_size: int | None, allowed: tuple[int, ...]) -> None:
    """A hint about speed in FLA: it has to be one that FLA takes, and changes nothing."""
    if chunk_size is None:
        return
    size = integer("chunk_size", chunk_size)
    legal = size in allowed if allowed else size > 0 and size & (size - 1) == 0
    if not legal:
        names = ", ".join(map(str, allowed)) if allowed else "a power of two"
        raise ValueError(f"chunk_size is {size}; allowed: {names}")


def check_chunk_indices(chunk_indices: Any, cu_seqlens: Tensor | None) -> None:
    if chunk_indices is None:
        return
    if not isinstance(chunk_indices, Tensor):
        raise no_tensor("chunk_indices", chunk_indices)
    if cu_seqlens is None:
        raise ValueError("chunk_indices is given without cu_seqlens, to whose chunks it belongs")
    if chunk_indices.dim() != 2 or chunk_indices.shape[1] != 2:
        raise ValueError(
            f"chunk_indices has shape {list(chunk_indices.shape)}; allowed: [chunks,2]"
        )
    if chunk_indices.dtype not in (torch.int32, torch.int64):
        raise TypeError(
            f"chunk_indices has type {str(chunk_indices.dtype)[6:]}; allowed: int32, int64"
        )


def bits(
    qk_norm: bool,
    state_v_first: bool,
    auto_cp: bool,
    batch_invariant: bool,
    safe_gate: bool = False,
) -> int:
    """Bits of linattn_problem.flags."""
    flags = 0
    if qk_norm is not False and switch("use_qk_l2norm_in_kernel", qk_norm):
        flags |= _abi.FLAG_QK_NORM
    if state_v_first is not False and switch("state_v_first", state_v_first):
        flags |= _abi.FLAG_STATE_V_FIRST
    if auto_cp is not True and not switch("auto_cp", auto_cp):
        flags |= _abi.FLAG_NO_AUTO_CP
    if batch_invariant is not False and switch("batch_invariant", batch_invariant):
        flags |= _abi.FLAG_BATCH_INVARIANT
    if safe_gate is not False and switch("safe_gate", safe_gate):
        flags |= _abi.FLAG_SAFE_GATE
    return flags


def form_of_gate(use_gate_in_kernel: bool, lower_bound: float | None) -> int:
    if use_gate_in_kernel is False or not switch("use_gate_in_kernel", use_gate_in_kernel):
        if lower_bound is not None and real("lower_bound", lower_bound) == 0.0:
            # 0 in the problem means no bound, so the library would not see this one.
            raise ValueError(
                "lower_bound is 0; it is taken with the gate computed inside alone "
                "(use_gate_in_kernel=True), and then in [-5, 0)"
            )
        return _abi.GATE_GIVEN
    return _abi.GATE_RAW_SOFTPLUS if lower_bound is None else _abi.GATE_RAW_BOUNDED


def form_of_beta(use_beta_sigmoid_in_kernel: bool, allow_neg_eigval: bool) -> int:
    inside = switch("use_beta_sigmoid_in_kernel", use_beta_sigmoid_in_kernel)
    if switch("allow_neg_eigval", allow_neg_eigval):
        if not inside:
            raise ValueError(
                "allow_neg_eigval is True; it needs use_beta_sigmoid_in_kernel=True, of whose "
                "sigmoid it takes the double"
            )
        return _abi.BETA_SIGMOID2
    return _abi.BETA_SIGMOID if inside else _abi.BETA_VALUE


def renamed_layout(state_v_first: bool, transpose_state_layout: bool | None) -> bool:
    """The value of ``state_v_first``, which FLA used to call ``transpose_state_layout``."""
    if transpose_state_layout is None:
        return state_v_first
    if state_v_first:
        raise ValueError(
            "state_v_first is True and transpose_state_layout is given; the second is the old "
            "name of the first"
        )
    value = switch("transpose_state_layout", transpose_state_layout)
    warnings.warn(
        "transpose_state_layout is the old name of state_v_first",
        DeprecationWarning,
        stacklevel=3,
    )
    return value
