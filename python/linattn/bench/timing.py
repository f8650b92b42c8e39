"""Clocks, and what the machine can do: copy bandwidth and matrix product rate of the same run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

Call = Callable[[], object]


Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}

# The threads of an OpenMP runtime, torch's among them, spin for some 15 ms after their last task
# before they sleep: time enough to take a core from whatever is timed next.
IDLE_SECONDS = 0.03


def cpu_rounds(
    calls: Sequence[Call], seconds: float, least: int = 3, clock: Clock = time.perf_counter
) -> list[float]:
    """Best time of each call in seconds, all of them in turns so that noise hits all alike.

    Threads of the call before get time to fall asleep, or they would take a core from this one.
    A turn is two calls, since the first one wakes threads and caches up.
    """
    best = [float("inf")] * len(calls)
    start, rounds = time.perf_counter(), 0
    while rounds < least or time.perf_counter() - start < seconds:
        for i, call in enumerate(calls):
            time.sleep(IDLE_SECONDS)
            for _ in range(2):
                begin = clock()
                call()
                best[i] = min(best[i], clock() - begin)
        rounds += 1
    return best


def short_calls(
    call: Call, count: int = 2000, repeats: int = 7, clock: Clock = time.perf_counter
) -> float:
    """Seconds of one call that is too short to be timed alone: best average of a batch."""
    best = float("inf")
    for _ in range(repeats):
        begin = clock()
        for _ in range(count):
            call()
        best = min(best, (clock() - begin) / count)
    return best


def graph_time(call: Call, replays: int = 11, enough: float = 2e-3, most: int = 50) -> float:
    """Median seconds of the kernels of one call on a CUDA device, without what the host does.

    So many calls stand in one captured graph that its own launch does not count. They follow each
    other as the steps of a decode loop do: what fits the L2 stays there.
    """
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
        one = event_time(call, repeats=3)
    torch.cuda.synchronize()
    count = max(1, min(most, int(enough / one)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    for _ in range(2):
        graph.replay()
    return event_time(graph.replay, replays) / count


def event_time(call: Call, repeats: int = 21) -> float:
    """Median seconds between two events around the call on the current stream."""
    import torch

    pairs = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        pairs.append(begin.elapsed_time(end) / 1e3)
    return sorted(pairs)[repeats // 2]


def host_time(call: Call, count: int = 200, repeats: int = 5) -> float:
    """Best average of what a call costs the host, which never waits for the device."""
    import torch

    best = float("inf")
    for _ in range(repeats):
        torch.cuda.synchronize()  # an empty queue: a full one would make the host wait
        best = min(best, short_calls(call, count, repeats=1))
    torch.cuda.synchronize()
    return best


def kernel_times(call: Call, repeats: int = 5) -> dict[str, float]:
    """Mean seconds of each kernel of a call, by name, from torch's profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    times: dict[str, float] = {}
    for event in profiler.key_averages():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            name = short_kernel_name(event.key)
            times[name] = times.get(name, 0.0) + event.self_device_time_total / 1e6 / repeats
    return times


def short_kernel_name(signature: str) -> str:
    """`void a::scan<true, 128>(Params)` is `scan`."""
    return signature.removeprefix("void ").split("<")[0].split("(")[0].split("::")[-1].strip()


@dataclass(frozen=True)
class Roof:
    """What this machine reached just now."""

    bytes_per_s: float  # of a large copy, read and write counted
    flops_per_s: float  # of a matrix product in the type named below
    flops_type: str
    cores: int

    def floor(self, flops: float, moved: float) -> float:
        """Seconds below which the work cannot go."""
        return max(flops / self.flops_per_s, moved / self.bytes_per_s)


class CopyProbe:
    """Copies 256 MiB with every core, with numpy and (where it is there) torch; the best counts."""

    def __init__(self, megabytes: int = 256) -> None:
        self.source = np.zeros(megabytes * 2**20, np.uint8)
        self.target = np.ones_like(self.source)
        cores = len(os.sched_getaffinity(0))
        self.pool = ThreadPoolExecutor(cores)
        edges = np.linspace(0, len(self.source), cores + 1).astype(int)
        self.slices = [slice(a, b) for a, b in pairwise(edges)]

    def _numpy(self) -> None:
        work = [self.pool.submit(np.copyto, self.target[s], self.source[s]) for s in self.slices]
        for part in work:
            part.result()

    def calls(self) -> list[Call]:
        found: list[Call] = [self._numpy]
        torch = _torch()
        if torch is not None:
            source, target = torch.from_numpy(self.source), torch.from_numpy(self.target)
            found.append(lambda: target.copy_(source))
        return found

    def bandwidth(self, seconds: float) -> float:
        return 2 * len(self.source) / seconds


class ProductProbe:
    """The fp32 product of two 2048 x 2048 matrices, torch's or else numpy's."""

    size = 2048

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        a, b = (rng.standard_normal((self.size, self.size), dtype=np.float32) for _ in range(2))
        out = np.empty_like(a)
        torch = _torch()
        if torch is None:
            self.call: Call = lambda: np.matmul(a, b, out=out)
            self.name = "numpy matmul fp32 2048^3"
        else:
            ta, tb, tout = (torch.from_numpy(x) for x in (a, b, out))
            self.call = lambda: torch.mm(ta, tb, out=tout)
            self.name = "torch.mm fp32 2048^3"

    def rate(self, seconds: float) -> float:
        return 2 * self.size**3 / seconds


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch


def cpu_roof(seconds: float = 1.0, clock: Clock = time.perf_counter) -> Roof:
    copy, product = CopyProbe(), ProductProbe()
    times = cpu_rounds([*copy.calls(), product.call], seconds, least=4, clock=clock)
    return Roof(copy.bandwidth(min(times[:-1])), product.rate(times[-1]), product.name,
                len(os.sched_getaffinity(0)))  # fmt: skip


def cuda_roof(index: int) -> Roof:
    import torch

    with torch.cuda.device(index):
        source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
        copy = event_time(lambda: target.copy_(source))
        product = event_time(lambda: a @ a)
        cores = torch.cuda.get_device_properties(index).multi_processor_count
    return Roof(2 * 2**30 / copy, 2 * 8192**3 / product, "torch.mm bf16 8192^3", cores)
