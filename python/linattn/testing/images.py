"""Tensors as byte images in poisoned memory, so that a stray read or write shows.

Every tensor gets its own block: guard bytes, the elements at the strides that the case asks for,
guard bytes. All bytes that do not belong to an input are 0xFF, which is NaN in every floating
type; after the call everything outside the outputs has to be as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .cases import Case, Spec
from .dtypes import TYPES, decode, encode, item_bytes

GUARD = 256
TOKEN_TENSORS = frozenset(
    ("q", "k", "v", "g", "beta", "o", "do_", "dq", "dk", "dv", "dg", "dbeta")
)  # fmt: skip


@dataclass
class Image:
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # elements
    offset: int  # bytes from the start of `block` to element 0
    block: np.ndarray  # uint8

    def bits(self, block: np.ndarray | None = None) -> np.ndarray:
        """The elements as a (strided) view into `block`, by default this image's own."""
        source = (self.block if block is None else block)[self.offset :]
        usable = source[: len(source) // item_bytes(self.dtype) * item_bytes(self.dtype)]
        typed = usable.view(TYPES[self.dtype][2])
        byte_strides = tuple(s * item_bytes(self.dtype) for s in self.strides)
        return np.lib.stride_tricks.as_strided(typed, self.shape, byte_strides)

    def values(self, block: np.ndarray | None = None) -> np.ndarray:
        return decode(np.ascontiguousarray(self.bits(block)), self.dtype)

    def stray_writes(self, after: np.ndarray, allowed: Sequence[int] | None = None) -> int:
        """Bytes that a call changed outside the elements it may write.

        `allowed` is None for all elements, or the indices on the first axis (slots of a pool).
        """
        before = self.bits()
        patched = after.copy()
        target = self.bits(patched)
        if allowed is None:
            target[...] = before
        else:
            for index in allowed:
                target[index] = before[index]
        return int(np.count_nonzero(patched != self.block))


def compact_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def strides_for(case: Case, name: str, spec: Spec) -> tuple[int, ...]:
    compact = compact_strides(spec.shape)
    if name == "initial_state" and case.pool and case.pool.padding:
        return (compact[0] + case.pool.padding, *compact[1:])
    if name not in TOKEN_TENSORS or case.layout == "compact":
        return compact
    tokens, inner = spec.shape[1], spec.shape[2:]
    if case.layout == "fused":  # a slice of a wider row
        row = compact[1] + 24
        return (max(1, tokens) * row, row, *compact[2:])
    if case.layout == "heads_first":  # [B,H,T,..] seen as [B,T,H,..]
        heads, width = inner[0], int(np.prod(inner[1:], dtype=int))
        return (tokens * heads * width or 1, width, max(1, tokens) * width, *compact[3:])
    raise ValueError(f"unknown layout {case.layout!r}")


def make_image(case: Case, name: str, spec: Spec, values: np.ndarray | None) -> Image:
    strides = strides_for(case, name, spec)
    extent = 1 + sum((n - 1) * s for n, s in zip(spec.shape, strides, strict=True) if n > 0)
    size = item_bytes(spec.dtype)
    # A fused slice starts one element off the 256-byte boundary, as a column of a projection does.
    shift = size if case.layout == "fused" and name in TOKEN_TENSORS else 0
    length = GUARD + shift + extent * size + GUARD
    raw = np.full(length + GUARD, 0xFF, np.uint8)
    start = -raw.ctypes.data % GUARD
    image = Image(spec.dtype, spec.shape, strides, GUARD + shift, raw[start : start + length])
    if values is not None:
        image.bits()[...] = encode(values, spec.dtype)
    return image
