"""Checks of constructor and call arguments: each error names argument, value and what is legal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MAX_DIM_K = 256


def positive(name: str, value: int) -> int:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r}: must be an integer of at least 1")
    return value


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(map(repr, allowed))}")
    return value


def multiple(name: str, value: int, of_name: str, of: int) -> int:
    if positive(name, value) % of != 0:
        raise ValueError(f"{name}={value}: must be a multiple of {of_name}={of}")
    return value


def scaled(name: str, ratio: float, of_name: str, of: int) -> int:
    """``ratio * of``, which must be a whole number."""
    result = round(ratio * of)
    if result < 1 or abs(ratio * of - result) > 1e-5 * result:
        raise ValueError(
            f"{name}={ratio!r}: times {of_name}={of} must be a whole number of at least 1, "
            f"not {ratio * of}"
        )
    return result


def key_dim(name: str, value: int) -> int:
    if positive(name, value) > MAX_DIM_K:
        raise ValueError(f"{name}={value}: must be at most {MAX_DIM_K}")
    return value


def layer_index(layer_idx: int | None) -> int | None:
    if layer_idx is not None and (not isinstance(layer_idx, int) or layer_idx < 0):
        raise ValueError(f"layer_idx={layer_idx!r}: must be None or an integer of at least 0")
    return layer_idx


def sequences(x: Tensor, name: str, channels: int, cu_seqlens: Tensor | None) -> int:
    """Checks ``x [B, T, channels]`` and the offsets; returns the number of sequences."""
    if x.dim() != 3 or x.shape[2] != channels:
        raise ValueError(f"{name} has shape {tuple(x.shape)}: must be [B, T, {channels}]")
    if cu_seqlens is None:
        return x.shape[0]
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"cu_seqlens has type {cu_seqlens.dtype}: must be int32 or int64")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        shape = tuple(cu_seqlens.shape)
        raise ValueError(f"cu_seqlens has shape {shape}: must be [N+1] with N of at least 1")
    if x.shape[0] != 1:
        raise ValueError(f"{name} has batch {x.shape[0]}: must be 1 with cu_seqlens")
    return cu_seqlens.shape[0] - 1
