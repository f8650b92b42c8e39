"""Arguments that the library cannot see: hints, old names, what FLA has and linattn has not."""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import Any

from torch import Tensor

from . import _abi


def no_tensor(name: str, value: object) -> TypeError:
    return TypeError(f"{name} has type {type(value).__name__}; allowed: torch.Tensor")


def renamed(error: Exception, names: dict[str, str]) -> Exception:
    """An error that speaks of an argument, with the name that the caller knows it by."""
    first, space, rest = str(error).partition(" ")
    return type(error)(names[first] + space + rest) if first in names else error


def real(name: str, value: Any) -> float:
    if not isinstance(value, Real):
        raise TypeError(f"{name} has type {type(value).__name__}; allowed: a real number")
    return float(value)


def integer(name: str, value: Any) -> int:
    if not isinstance(value, Integral):
        raise TypeError(f"{name} has type {type(value).__name__}; allowed: an integer")
    return int(value)


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


def bits(
    qk_norm: bool,
    state_v_first: bool,
    auto_cp: bool,
    batch_invariant: bool,
    safe_gate: bool = False,
) -> int:
    """Bits of linattn_problem.flags."""
    return (
        (_abi.FLAG_QK_NORM if qk_norm else 0)
        | (_abi.FLAG_STATE_V_FIRST if state_v_first else 0)
        | (0 if auto_cp else _abi.FLAG_NO_AUTO_CP)
        | (_abi.FLAG_BATCH_INVARIANT if batch_invariant else 0)
        | (_abi.FLAG_SAFE_GATE if safe_gate else 0)
    )


def form_of_gate(use_gate_in_kernel: bool, lower_bound: float | None) -> int:
    if not use_gate_in_kernel:
        return _abi.GATE_GIVEN
    return _abi.GATE_RAW_SOFTPLUS if lower_bound is None else _abi.GATE_RAW_BOUNDED


def form_of_beta(use_beta_sigmoid_in_kernel: bool, allow_neg_eigval: bool) -> int:
    if allow_neg_eigval:
        if not use_beta_sigmoid_in_kernel:
            raise ValueError(
                "allow_neg_eigval is True; it needs use_beta_sigmoid_in_kernel=True, of whose "
                "sigmoid it takes the double"
            )
        return _abi.BETA_SIGMOID2
    return _abi.BETA_SIGMOID if use_beta_sigmoid_in_kernel else _abi.BETA_VALUE


def renamed_layout(state_v_first: bool, transpose_state_layout: bool | None) -> bool:
    """The value of ``state_v_first``, which FLA used to call ``transpose_state_layout``."""
    if transpose_state_layout is None:
        return state_v_first
    if state_v_first:
        raise ValueError(
            "state_v_first is True and transpose_state_layout is given; the second is the old "
            "name of the first"
        )
    warnings.warn(
        "transpose_state_layout is the old name of state_v_first",
        DeprecationWarning,
        stacklevel=3,
    )
    return bool(transpose_state_layout)
