"""How far a result may be from the oracle, and how far it is.

The error of a tensor is ||a - ref|| / ||ref||; NaN and inf never pass, and where the oracle is all
zero the result has to be exactly zero. One table holds every tolerance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .cases import Case, tensor_specs
from .slots import dead_rows, written_slots

# (output, gradient) by the widest rounding on the way: the type of q, or the tensor's own.
TOLERANCES: dict[str, tuple[float, float]] = {
    "f32": (1e-5, 2e-5),
    "f16": (2e-3, 1e-2),
    "bf16": (6e-3, 1e-2),
}
# Channel gates are anchored in bf16's range, so fp16 operands lose their three extra bits there.
F16_CHANNEL_OUTPUT = 6e-3
# Keys that repeat without any decay: an fp32 solve of 64 dependent rows.
F32_REPEATED_KEYS = 3e-5
# The same in 16 bits: (keys, largest beta) -> tolerance.
LOW_PRECISION_REPEATED = (
    ("near", 1.0, 7e-3),
    ("near", 1.7, 1.2e-2),
    ("near", 2.0, 3e-2),
    ("repeated", 1.0, 1.2e-2),
    ("repeated", 1.7, 3e-2),
    ("repeated", 2.0, 2e-1),
)
LARGEST_BETA = {"random": 1.0, "random2": 2.0, "zero": 0.0, "one": 1.0, "1.7": 1.7, "two": 2.0}
GRADIENTS = frozenset(("dq", "dk", "dv", "dg", "dbeta", "dA_log", "ddt_bias", "dh0"))


# Numbers that fp32 and bf16 hold only as subnormals count as zero: processors may flush them.
FLUSHED = 2.0**-126
# fp16 reaches its subnormals with ordinary numbers and has absolute precision there: an error is
# measured against at least its smallest normal number an element.
F16_SMALLEST_NORMAL = 2.0**-14


class Verdict(NamedTuple):
    tensor: str
    error: float
    tolerance: float
    widest: str = ""  # the type that sets the tolerance

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance  # False for NaN

    def __str__(self) -> str:
        return f"{self.tensor}: error {self.error:.3g}, tolerance {self.tolerance:.3g}"


def _largest_beta(case: Case) -> float:
    if case.beta_form == "value":
        return LARGEST_BETA[case.betas]
    return 2.0 if case.beta_form == "sigmoid2" else 1.0


def widest_type(case: Case, tensor: str) -> str:
    """The coarser of the types of q and of the tensor itself."""
    own = tensor_specs(case)[tensor].dtype
    return max((case.dtype, own), key=lambda name: TOLERANCES[name][0])


def tolerance(case: Case, tensor: str) -> float:
    """The table's entry for one tensor of a case."""
    widest = widest_type(case, tensor)
    gradient = tensor in GRADIENTS
    allowed = TOLERANCES[widest][gradient]
    repeated = case.is_delta and case.keys in ("near", "repeated")
    if widest == "f32":
        if repeated and _largest_beta(case) > 1:
            allowed = max(allowed, F32_REPEATED_KEYS)
        return allowed
    if widest == "f16" and case.gate_kind == "channel" and not gradient:
        allowed = F16_CHANNEL_OUTPUT
    if repeated and not gradient:
        beta = _largest_beta(case)
        limit = next(t for keys, b, t in LOW_PRECISION_REPEATED if keys == case.keys and beta <= b)
        allowed = max(allowed, limit)
    return allowed


def error(actual: np.ndarray, expected: np.ndarray, dtype: str = "f32") -> float:
    """||actual - expected|| / ||expected||; NaN if anything is not finite."""
    if not np.all(np.isfinite(actual)):
        return float("nan")
    a, e = (np.where(np.abs(x) < FLUSHED, 0.0, x).astype(np.float64) for x in (actual, expected))
    size = float(np.linalg.norm(e))
    distance = float(np.linalg.norm(a - e))
    if size == 0.0:
        return 0.0 if distance == 0.0 else float("inf")
    least = F16_SMALLEST_NORMAL * e.size**0.5 if dtype == "f16" else 0.0
    return distance / max(size, least)


def _rows_nobody_owns(
    case: Case, inputs: dict[str, np.ndarray], name: str, array: np.ndarray
) -> np.ndarray:
    """The part of an output that has to be exactly zero: tails and dead rows."""
    if name in ("o", "dq", "dk", "dv", "dg", "dbeta"):
        parts = [array[:, sum(case.lengths) :].ravel()] if case.varlen else []
        ends = np.cumsum(case.lengths)
        for n in dead_rows(case, inputs):
            part = array[0, ends[n] - case.lengths[n] : ends[n]] if case.varlen else array[n]
            parts.append(part.ravel())
        return np.concatenate(parts) if parts else array[:0].ravel()
    return array[:0].ravel()


def compare(
    case: Case,
    inputs: dict[str, np.ndarray],
    outputs: dict[str, np.ndarray],
    expected: dict[str, np.ndarray],
) -> list[Verdict]:
    verdicts = []
    specs = tensor_specs(case)
    for name, want in expected.items():
        got = outputs[name]
        nobody = _rows_nobody_owns(case, inputs, name, got)
        if np.any(nobody != 0):  # NaN != 0 too
            verdicts.append(Verdict(f"{name} (rows nobody owns)", float("inf"), 0.0))
        if name == "initial_state":  # a pool: untouched slots are compared bit by bit elsewhere
            slots = written_slots(case, inputs)
            got, want = got[slots], want[slots]
        measured = error(got, want, specs[name].dtype)
        verdicts.append(Verdict(name, measured, tolerance(case, name), widest_type(case, name)))
    return verdicts
