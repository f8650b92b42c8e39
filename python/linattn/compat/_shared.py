"""What the compatible modules have in common."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._arguments import no_tensor


def need_tensors(**tensors: Any) -> None:
    for name, t in tensors.items():
        if not isinstance(t, Tensor):
            raise no_tensor(name, t)


def check_room(name: str, room: Tensor, shape: tuple[int, ...], dtypes: tuple[Any, ...]) -> None:
    """A caller's tensor that a result is written into; checked before anything is written."""
    need_tensors(**{name: room})
    if tuple(room.shape) != shape:
        raise ValueError(f"{name} has shape {list(room.shape)}; allowed: {list(shape)}")
    if room.dtype not in dtypes:
        allowed = ", ".join(map(str, dtypes))
        raise TypeError(f"{name} has type {room.dtype}; allowed: {allowed}")


def count_sequences(q: Tensor, cu_seqlens: Tensor | None) -> int:
    if cu_seqlens is None:
        return q.shape[0] if q.dim() > 0 else 0
    need_tensors(cu_seqlens=cu_seqlens)
    return cu_seqlens.shape[0] - 1 if cu_seqlens.dim() == 1 else 0


STATE_TYPES = (torch.float32, torch.bfloat16, torch.float16)
