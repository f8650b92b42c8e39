"""Times one workload: the planned call, the operator, and each peer, on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .. import _abi
from .._errors import DispatchError
from .._library import Device
from ..testing.native import Plan, pack_problem
from .ours import Launch, memory_of, operator, operator_arguments
from .peers import Unavailable, prepare
from .timing import (
    CLOCKS,
    Clock,
    Roof,
    cpu_rounds,
    event_time,
    graph_time,
    host_time,
    kernel_times,
    short_calls,
)
from .workloads import Workload

Call = Callable[[], object]


@dataclass
class Measurement:
    workload: Workload
    implementation: str = ""
    kernel_s: float = float("nan")
    call_s: float = float("nan")
    workspace_bytes: int = 0
    kernels_s: dict[str, float] = field(default_factory=dict)  # CUDA, where asked: by kernel name
    peers_s: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)  # peer -> why it is not timed
    refused: str = ""  # why ours was not timed
    by_events: list[str] = field(default_factory=list)  # CUDA: could not be captured in a graph

    @property
    def flops_per_s(self) -> float:
        return self.workload.flops / self.kernel_s

    @property
    def bytes_per_s(self) -> float:
        return self.workload.bytes / self.kernel_s

    def floor_s(self, roof: Roof) -> float:
        return roof.floor(self.workload.flops, self.workload.bytes)

    def speedup(self, peer: str) -> float:
        return self.peers_s[peer] / self.kernel_s


def has_torch() -> bool:
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def _operator_call(workload: Workload, tensors: dict[str, Any], implementation: str | None) -> Call:
    """The public operator, as a user calls it; ``implementation`` alone, where one is asked for.

    The backward pass has no call of its own there.
    """
    from .._dispatch import force

    case = workload.case
    arguments = operator_arguments(case, tensors)
    arguments["output_final_state"] = True
    call = partial(operator(case), **arguments)
    if implementation is None:
        return call

    def forced() -> object:
        with force(implementation):
            return call()

    return forced


@dataclass(frozen=True)
class Options:
    """What is asked about every workload."""

    against: Sequence[str] = ()
    seconds: float = 2.0  # of rounds, on a CPU
    implementation: str | None = None
    clock: str = "wall"
    kernels: bool = False  # on a CUDA device, also the time of each kernel


def measure(workload: Workload, device: Device, options: Options) -> Measurement:
    result = Measurement(workload)
    try:
        plan = Plan(pack_problem(workload.case, device, options.implementation), device)
    except DispatchError as refusal:
        result.refused = str(refusal)
        return result
    result.implementation = plan.implementation
    result.workspace_bytes = plan.workspace_bytes
    if device.type == _abi.DEVICE_CPU:
        _measure(result, plan, device, options)
        return result
    import torch

    with torch.cuda.device(device.index):
        _measure(result, plan, device, options)
        torch.cuda.synchronize()
    return result


def _measure(result: Measurement, plan: Plan, device: Device, options: Options) -> None:
    workload = result.workload
    memory = memory_of(workload, plan.workspace_bytes, device)
    launch = Launch(plan, memory, device)
    calls: dict[str, Call] = {"kernel": launch}
    if has_torch():
        tensors = memory.tensors()
        if workload.case.direction == "forward":
            calls["call"] = _operator_call(workload, tensors, options.implementation)
        for peer in options.against:
            # A decode peer changes its state in place: each gets its own.
            own = {n: x.clone() if n == "initial_state" else x for n, x in tensors.items()}
            try:
                calls[peer] = prepare(peer, workload, own)
            except Unavailable as reason:
                result.absent[peer] = str(reason)
    else:
        result.absent = dict.fromkeys(options.against, "torch is not installed")
    for call in calls.values():  # the first call plans and touches the memory
        call()
    if workload.kind == "call" and device.type != _abi.DEVICE_CPU:
        import torch

        calls["kernel"] = launch.crossing(torch.cuda.current_stream().cuda_stream)
    if device.type == _abi.DEVICE_CPU:
        times = _cpu_times(workload, calls, options.seconds, CLOCKS[options.clock])
    else:
        times = {name: _cuda_time(name, call, result) for name, call in calls.items()}
        if options.kernels and workload.kind != "call":
            result.kernels_s = kernel_times(launch)
    result.kernel_s = times.pop("kernel")
    result.call_s = times.pop("call", float("nan"))
    result.peers_s = times


def _cpu_times(
    workload: Workload, calls: dict[str, Call], seconds: float, clock: Clock
) -> dict[str, float]:
    if workload.kind == "call":
        return {name: short_calls(call, clock=clock) for name, call in calls.items()}
    best = cpu_rounds(list(calls.values()), seconds, clock=clock)
    return dict(zip(calls, best, strict=True))


def _cuda_time(name: str, call: Call, result: Measurement) -> float:
    """Kernel time by graph replay; of our operator the eager call between two events.

    A row of kind "call" is about the host alone: what it spends before the next call can begin.
    """
    import torch

    if result.workload.kind == "call":
        return host_time(call)
    if name == "call":
        return event_time(call)
    try:
        return graph_time(call)
    except RuntimeError:  # cannot be captured: timed by events, and said so
        torch.cuda.synchronize()
        result.by_events.append(name)
        return event_time(call)
