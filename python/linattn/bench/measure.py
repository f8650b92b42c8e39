"""Times one workload: the planned call, the operator, and each peer, on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .. import _abi
from .._errors import DispatchError
from .._library import Device
from .ours import Launch, bench_inputs, operator, operator_arguments, torch_inputs
from .peers import Unavailable, prepare
from .timing import CLOCKS, Clock, Roof, cpu_rounds, event_time, graph_time, short_calls
from .workloads import Workload

Call = Callable[[], object]


@dataclass
class Measurement:
    workload: Workload
    implementation: str = ""
    kernel_s: float = float("nan")
    call_s: float = float("nan")
    workspace_bytes: int = 0
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


def _operator_call(workload: Workload, tensors: dict[str, Any]) -> Call:
    """The public operator, as a user calls it. The backward pass has no call of its own there."""
    case = workload.case
    call = operator(case)
    arguments = operator_arguments(case, tensors)
    arguments["output_final_state"] = True
    return partial(call, **arguments)


def measure(
    workload: Workload,
    device: Device,
    against: Sequence[str],
    seconds: float,
    implementation: str | None = None,
    clock: str = "wall",
) -> Measurement:
    result = Measurement(workload)
    inputs = bench_inputs(workload.case)
    try:
        launch = Launch(workload.case, inputs, device, implementation)
    except DispatchError as refusal:
        result.refused = str(refusal)
        return result
    result.implementation = launch.plan.implementation
    result.workspace_bytes = launch.plan.workspace_bytes
    calls: dict[str, Call] = {"kernel": launch}
    if has_torch():
        name = "cpu" if device.type == _abi.DEVICE_CPU else f"cuda:{device.index}"
        tensors = torch_inputs(workload.case, inputs, name)
        if workload.case.direction == "forward":
            calls["call"] = _operator_call(workload, tensors)
        for peer in against:
            # A decode peer changes its state in place: each gets its own.
            own = {n: x.clone() if n == "initial_state" else x for n, x in tensors.items()}
            try:
                calls[peer] = prepare(peer, workload, own)
            except Unavailable as reason:
                result.absent[peer] = str(reason)
    else:
        result.absent = dict.fromkeys(against, "torch is not installed")
    for call in calls.values():  # the first call plans and touches the memory
        call()
    if device.type == _abi.DEVICE_CPU:
        times = _cpu_times(workload, calls, seconds, CLOCKS[clock])
    else:
        short = workload.kind == "call"
        times = {n: _cuda_time(n, call, short, result.by_events) for n, call in calls.items()}
    result.kernel_s = times.pop("kernel")
    result.call_s = times.pop("call", float("nan"))
    result.peers_s = times
    return result


def _cpu_times(
    workload: Workload, calls: dict[str, Call], seconds: float, clock: Clock
) -> dict[str, float]:
    if workload.kind == "call":
        return {name: short_calls(call, clock=clock) for name, call in calls.items()}
    best = cpu_rounds(list(calls.values()), seconds, clock=clock)
    return dict(zip(calls, best, strict=True))


def _cuda_time(name: str, call: Call, short: bool, by_events: list[str]) -> float:
    """Kernel time by graph replay. What cannot be captured is timed by events and says so."""
    import torch

    if short:

        def synchronised() -> None:
            call()
            torch.cuda.synchronize()

        return short_calls(synchronised, count=200)
    try:
        return graph_time(call)
    except RuntimeError:
        torch.cuda.synchronize()
        by_events.append(name)
        return event_time(call)
