"""Element types by name, and bfloat16 for numpy.

bfloat16 lives in numpy as `uint16` bit patterns. Two functions are all that is needed, so the
`ml_dtypes` package is not a dependency.
"""

from __future__ import annotations

import numpy as np

# Name -> (code in linattn.h, bytes, numpy type of the bits).
TYPES: dict[str, tuple[int, int, np.dtype]] = {
    "f32": (1, 4, np.dtype(np.float32)),
    "bf16": (2, 2, np.dtype(np.uint16)),
    "f16": (3, 2, np.dtype(np.float16)),
    "i32": (4, 4, np.dtype(np.int32)),
    "i64": (5, 8, np.dtype(np.int64)),
    "bool": (6, 1, np.dtype(np.uint8)),
}
FLOATS = ("f32", "bf16", "f16")


def code(name: str) -> int:
    return TYPES[name][0]


def item_bytes(name: str) -> int:
    return TYPES[name][1]


def encode(values: np.ndarray, name: str) -> np.ndarray:
    """Bits of `values` in type `name`: round to nearest even, NaN stays NaN."""
    if name != "bf16":
        with np.errstate(over="ignore"):  # past the f16 range is inf, as on hardware
            return np.ascontiguousarray(values).astype(TYPES[name][2])
    single = np.ascontiguousarray(values, dtype=np.float32)
    bits = single.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(single), np.uint32(0x7FC0), rounded).astype(np.uint16)


def decode(bits: np.ndarray, name: str) -> np.ndarray:
    """Values of `bits`: float32 for floating types, unchanged for the others."""
    if name == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.astype(np.float32) if name in FLOATS else bits


def rounded(values: np.ndarray, name: str) -> np.ndarray:
    """`values` as type `name` holds them, in float32."""
    return decode(encode(values, name), name)
