"""What the project holds itself to: ratios of one run on a CPU, times on one kind of GPU."""

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


# Work on an H200 -> milliseconds to reach, the best of others there.
H200_MS = {
    "kda chunk T=8192 H=96": 2.6,
    "kda prefill T=8192 H=96 mild": 1.126,
    "kda prefill T=1300+547+2048+963+271+3063 H=96 mild": 1.293,
    "kda prefill T=8x1024 H=96 mild": 0.879,
    "kda prefill T=8192 H=64 mild": 0.57,
    "kda prefill T=1300+547+2048+963+271+3063 H=64 mild": 0.916,
    "kda prefill T=8x1024 H=64 mild": 0.591,
    "kda prefill T=512 H=64 mild": 0.05,
    "kda prefill T=1024 H=64 mild": 0.085,
    "kda prefill T=4096 H=64 mild": 0.291,
    "kda prefill T=16384 H=64 mild": 1.126,
    "kda prefill T=2x8192 H=64 mild": 1.121,
    "kda prefill T=8192 H=24 mild": 0.213,
    "kda prefill T=8192 H=16 mild": 0.15,
    "kda prefill T=8x2048 H=16 mild": 0.291,
    "kda prefill T=4x2048 H=12 mild": 0.123,
    "kda prefill T=2048 H=12 mild": 0.033,
    "kda prefill T=4096 H=8 mild": 0.046,
    "kda prefill T=1024 H=4 mild": 0.016,
    "kda prefill T=32768 H=32 mild": 1.112,
    "kda prefill T=8192 H=96 kept": 1.412,
    "kda prefill T=8192 H=64 kept": 1.186,
    "kda prefill T=2048 H=12 kept": 0.233,
    "kda prefill T=4096 H=8 kept": 0.421,
    "kda prefill T=32768 H=32 kept": 3.807,
    "gdn chunk T=32768 H=16 HV=64": 3.3,
    "gdn chunk T=8192 H=16 HV=64": 0.81,
    "gdn chunk T=8192 H=2 HV=8": 0.25,
    "gla chunk T=8192 H=32": 0.74,
    "lightning chunk T=8192 H=64": 0.72,
    "kda decode fp32 VK N=256 HV=128": 1.04,
    "gdn decode fp32 VK N=256 HV=128": 1.03,
    "kda decode fp32 VK N=64 HV=64": 0.133,
    "gdn decode fp32 VK N=64 HV=64": 0.132,
    "kda decode fp32 VK N=16 HV=64": 0.035,
    "gdn decode fp32 VK N=16 HV=64": 0.035,
    "kda decode fp32 VK N=1 HV=64": 0.0042,
    "gdn decode fp32 VK N=1 HV=64": 0.0042,
    "kda decode bf16 VK N=256 HV=128": 0.525,
    "gdn decode bf16 VK N=256 HV=128": 0.525,
}
# A call through C is to cost 4 us (bench/cuda/decode_call.cpp); ctypes adds one.
HOST_US = {"planned, by ctypes": 5.0, "through torch": 15.0}


def cuda_goals(measurements: Iterable[Measurement], machine: str) -> Iterator[Goal]:
    for m in measurements:
        family, what = m.workload.name.split(" ", 1)
        if m.refused:
            continue
        if m.workload.kind == "call":
            for (how, reach), cost in zip(HOST_US.items(), (m.kernel_s, m.call_s), strict=True):
                yield _at_most(family, f"host, a call {how}", 1e6 * cost, "us", reach)
        elif "H200" in machine and m.workload.name in H200_MS:
            yield _at_most(family, what, 1e3 * m.kernel_s, "ms", H200_MS[m.workload.name])
