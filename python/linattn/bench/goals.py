"""Ratios that the project holds itself to on a CPU, from the measurements of one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .measure import Measurement
from .timing import Roof


class Goal(NamedTuple):
    family: str
    what: str
    value: float
    unit: str  # "%", "x", "us"
    reach: str
    met: bool

    @property
    def value_text(self) -> str:
        return f"{self.value:.3g} {self.unit}"


def _at_least(family: str, what: str, value: float, unit: str, reach: float) -> Goal:
    return Goal(family, what, value, unit, f">= {reach:g} {unit}", value >= reach)


def _at_most(family: str, what: str, value: float, unit: str, reach: float) -> Goal:
    return Goal(family, what, value, unit, f"<= {reach:g} {unit}", value <= reach)


def cpu_goals(measurements: Iterable[Measurement], roof: Roof, wall: bool = True) -> Iterator[Goal]:
    """`wall` is False for CPU seconds, which cannot show how threads share one head."""
    by_work: dict[tuple[str, str, str], Measurement] = {
        (m.workload.case.family, m.workload.kind, m.workload.case.dtype): m
        for m in measurements
        if not m.refused
    }
    for family in dict.fromkeys(family for family, _, _ in by_work):
        chunk = by_work.get((family, "chunk", "f32"))
        if chunk:
            share = 100 * chunk.flops_per_s / roof.flops_per_s
            yield _at_least(family, f"chunk fp32, of {roof.flops_type}", share, "%", 50)
            yield from _over_torch(family, "chunk fp32", chunk)
        yield from _against_chunk(family, chunk, by_work, wall)
        decode = by_work.get((family, "decode", "f32"))
        if decode:
            share = 100 * decode.bytes_per_s / roof.bytes_per_s
            yield _at_least(family, "decode fp32, of copy bandwidth", share, "%", 75)
            yield from _over_torch(family, "decode fp32", decode)
        call = by_work.get((family, "call", "f32"))
        if call and call.call_s == call.call_s:
            over = 1e6 * (call.call_s - call.kernel_s)
            yield _at_most(family, "Python and torch around a call", over, "us", 15)


def _against_chunk(
    family: str,
    chunk: Measurement | None,
    by_work: dict[tuple[str, str, str], Measurement],
    wall: bool,
) -> Iterator[Goal]:
    half = by_work.get((family, "chunk", "bf16"))
    if chunk and half:
        yield _at_most(family, "chunk bf16, time of fp32's", half.kernel_s / chunk.kernel_s, "x", 1)
    backward = by_work.get((family, "backward", "f32"))
    if chunk and backward:
        ratio = backward.kernel_s / chunk.kernel_s
        yield _at_most(family, "chunk backward, time of forward's", ratio, "x", 3.2)
    if backward:
        yield from _over_torch(family, "chunk backward", backward)
    long = by_work.get((family, "long", "f32"))
    if chunk and long and wall:
        # The rate of a core is that of the full load, divided by the cores: they cancel.
        share = long.flops_per_s / chunk.flops_per_s
        yield _at_least(family, "one head, of cores x rate of a core", share, "x", 0.8)


def _over_torch(family: str, what: str, m: Measurement) -> Iterator[Goal]:
    if "torch" in m.peers_s:
        yield _at_least(family, f"{what}, over plain torch", m.speedup("torch"), "x", 5)
