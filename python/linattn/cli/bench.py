"""Times every operator, ours and others, on the same inputs in one run.

On a CPU the best wall time of many rounds, all contenders in turns; on a CUDA device medians: the
kernels' time by graph replay, the operator's call between two events. Rows named "call" are what a
call costs the host. The floor of a row is the larger of its bytes at the copy bandwidth and its
FLOPs at the matrix product rate that this run measured. FLOPs are counted as a chunked form of 32
rows does them, whatever chunk runs.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from .. import _abi
from .._library import library
from ..bench.goals import cpu_goals, cuda_goals
from ..bench.measure import Measurement, Options, measure
from ..bench.peers import PEERS
from ..bench.plots import plot
from ..bench.timing import CLOCKS, Roof, cpu_roof, cuda_roof
from ..bench.workloads import KINDS, Workload, cpu_workloads, cuda_workloads, small
from ..testing import device_of
from ..testing.cases import FAMILIES
from .info import cpu_model, target
from .problem_options import family
from .tables import progress, show_table


def peers(text: str) -> tuple[str, ...]:
    found = tuple(part for part in text.split(",") if part)
    unknown = [name for name in found if name not in PEERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}; allowed: {', '.join(PEERS)}")
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", default="cpu", help="cpu, cuda or cuda:<index> (default: cpu)")
    add("--op", type=family, action="append", metavar="FAMILY",
        help="may be repeated; default: all")  # fmt: skip
    add("--kind", choices=KINDS, action="append", help="may be repeated; default: all")
    add("--against", type=peers, default=(), metavar="NAMES",
        help=f"comma-separated: {', '.join(PEERS)}")  # fmt: skip
    add("--implementation", metavar="NAME", help="time this one; a refusal is reported")
    add("--seconds", type=float, default=2.0, metavar="S",
        help="of rounds for each row on the CPU (default: 2.0)")  # fmt: skip
    add("--clock", choices=tuple(CLOCKS), default="wall",
        help="cpu counts the CPU seconds of all threads: usable on a busy machine, blind to how "
        "well threads share the work (default: wall)")  # fmt: skip
    add("--kernels", action="store_true",
        help="on a CUDA device, also each kernel's own time, by torch's profiler")  # fmt: skip
    add("--small", action="store_true", help="tiny sizes, to try the command; no goals")
    add("--csv", type=Path, metavar="FILE", help="write every time to FILE")
    add("--plot", type=Path, metavar="FILE", help="draw roofline and bars to FILE (matplotlib)")


def run(options: argparse.Namespace) -> int:
    device = device_of(options.device)
    on_cpu = device.type == _abi.DEVICE_CPU
    if not on_cpu:
        _need_gpu(device.index)
    families = tuple(options.op or FAMILIES)
    workloads = list((cpu_workloads if on_cpu else cuda_workloads)(families))
    workloads = [w for w in workloads if not options.kind or w.kind in options.kind]
    if options.small:
        # Sizes that differ in what was cut are one row now.
        workloads = list(dict.fromkeys(small(w) for w in workloads))
    if not 0 <= options.seconds < math.inf:
        raise ValueError(f"--seconds is {options.seconds}; allowed: at least 0, finite")
    for name, path in (("--csv", options.csv), ("--plot", options.plot)):
        if path and (path.is_dir() or not path.parent.is_dir()):
            raise ValueError(f"{name} is {path}; allowed: a file in a folder that exists")
    if not workloads:
        kinds = ", ".join(options.kind or ())
        raise ValueError(f"--kind is {kinds}: --op and --device {options.device} have no such rows")
    if options.plot and find_spec("matplotlib") is None:
        raise ImportError("--plot needs matplotlib, which is not installed; it is in linattn's "
                          "extra `cli`")  # fmt: skip
    if not on_cpu and options.clock != "wall":
        raise ValueError(f"--clock is {options.clock}; allowed on {options.device}: wall")
    if options.clock == "cpu":  # threads that spin while they wait would be counted as work
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    clock = CLOCKS[options.clock]
    roof = cpu_roof(options.seconds, clock) if on_cpu else cuda_roof(device.index)
    asked = Options(options.against, options.seconds, options.implementation, options.clock,
                    options.kernels)  # fmt: skip
    done = [
        measure(workload, device, asked)
        for workload in progress(workloads, len(workloads), "linattn bench")
    ]
    if on_cpu:  # the best of both ends of the run: what the machine can do, not when it was busy
        roof = better(roof, cpu_roof(options.seconds, clock))
    timed = [m for m in done if not m.refused]
    _show(done, roof, options)
    if options.csv:
        write_csv(options.csv, timed, roof, machine(options.device))
        print(f"wrote {options.csv}")
    if options.plot:
        plot(options.plot, timed, roof, f"linattn {_version()}, {machine(options.device)}")
        print(f"wrote {options.plot}")
    return 0 if timed else 1


def _need_gpu(index: int) -> None:
    import torch

    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= seen:
        raise ValueError(f"--device is cuda:{index}; torch sees {seen} CUDA devices here")


def better(a: Roof, b: Roof) -> Roof:
    return Roof(max(a.bytes_per_s, b.bytes_per_s), max(a.flops_per_s, b.flops_per_s),
                a.flops_type, a.cores)  # fmt: skip


def machine(device: str) -> str:
    if device_of(device).type == _abi.DEVICE_CPU:
        threads = library().linattn_get_num_threads()
        return f"{cpu_model()} ({target('cpu')}), {threads} threads"
    import torch

    return str(torch.cuda.get_device_name(device_of(device).index))


def _version() -> str:
    return str(library().linattn_version().decode())


def _milliseconds(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{seconds * 1e3:.4g}"


def columns_of(options: argparse.Namespace) -> list[str]:
    """Tiny work lies in the caches, where the floor of large work says nothing."""
    share = [] if options.small else ["of floor"]
    return ["work", "implementation", "kernel ms", "call ms", "GFLOP/s", "GB/s", "floor ms", *share,
            "workspace MiB", *(f"x over {peer}" for peer in options.against)]  # fmt: skip


def row_of(m: Measurement, roof: Roof, options: argparse.Namespace) -> tuple[str, ...]:
    against = options.against
    if m.refused:
        return (m.workload.name, "refused", *["-"] * (len(columns_of(options)) - 2))
    floor = m.floor_s(roof)
    share = () if options.small else (f"{100 * floor / m.kernel_s:.3g} %",)
    return (
        m.workload.name,
        m.implementation,
        _milliseconds(m.kernel_s),
        _milliseconds(m.call_s),
        f"{m.flops_per_s / 1e9:.4g}",
        f"{m.bytes_per_s / 1e9:.4g}",
        _milliseconds(floor),
        *share,
        f"{m.workspace_bytes / 2**20:.3g}",
        *(f"{m.speedup(peer):.2f}" if peer in m.peers_s else "-" for peer in against),
    )


def _show(done: Sequence[Measurement], roof: Roof, options: argparse.Namespace) -> None:
    print(f"linattn {_version()} on {machine(options.device)}")
    print(f"copy {roof.bytes_per_s / 1e9:.1f} GB/s (read + write), "
          f"{roof.flops_type} {roof.flops_per_s / 1e9:.1f} GFLOP/s\n")  # fmt: skip
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if options.clock == "cpu":
        print("times are CPU seconds of all threads together, rates are those of one core\n")
    elif load > 1.5 * cores:
        print(f"the machine is busy (load {load:.1f} on {cores} cores): wall times are noise, "
              "--clock cpu is steadier\n")  # fmt: skip
    columns = columns_of(options)
    rows = [row_of(m, roof, options) for m in done]
    show_table("Times", columns, rows, columns[2:])
    _kernels(done)
    _notes(done)
    if options.small:
        return
    on_cpu = device_of(options.device).type == _abi.DEVICE_CPU
    goals = (cpu_goals(done, roof, options.clock == "wall") if on_cpu
             else cuda_goals(done, machine(options.device)))  # fmt: skip
    rows = [(g.family, g.what, g.value_text, g.reach, "yes" if g.met else "no") for g in goals]
    if rows:
        show_table("Goals", ("family", "what", "measured", "reach", "met"), rows, ("measured",))


def _kernels(done: Sequence[Measurement]) -> None:
    rows = [(m.workload.name, name, _milliseconds(seconds), f"{100 * seconds / m.kernel_s:.0f} %")
            for m in done for name, seconds in m.kernels_s.items()]  # fmt: skip
    if rows:
        columns = ("work", "kernel", "ms", "of the call")
        show_table("Kernels, by the profiler", columns, rows, columns[2:])


def _notes(done: Sequence[Measurement]) -> None:
    """What is missing from the table and why, each reason once."""
    reasons: dict[str, int] = {}
    for m in done:
        if m.refused:
            reasons[f"{m.workload.name}: {m.refused}"] = 1
        for peer, why in m.absent.items():
            text = f"{peer}: {why}"
            reasons[text] = reasons.get(text, 0) + 1
        for name in m.by_events:
            reasons[f"{m.workload.name}: {name} timed by events, it cannot be captured"] = 1
    for text, count in reasons.items():
        print(f"not timed ({count} rows): {text}" if count > 1 else text)
    if reasons:
        print()


def _package_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


CSV_FIELDS = ("machine", "linattn", "build", "python", "torch", "command", "copy_bytes_per_s",
              "product_flops_per_s", "product", "work", "kind", "who", "implementation", "seconds",
              "flops", "bytes", "floor_s", "share_of_floor", "workspace_bytes")  # fmt: skip


def _command(arguments: Sequence[str]) -> str:
    """What was asked, without the files that it was written to."""
    files = ("--csv", "--plot")
    kept = [a for before, a in zip(("", *arguments), arguments, strict=False)
            if before not in files and not a.startswith(files)]  # fmt: skip
    return " ".join(["linattn", *kept])


def csv_rows(measured: Sequence[Measurement], roof: Roof, where: str) -> list[dict[str, object]]:
    common = {
        "machine": where,
        "linattn": _version(),
        "build": library().linattn_build_info().decode(),
        "python": platform.python_version(),
        "torch": _package_version("torch"),
        "command": _command(sys.argv[1:]),
        "copy_bytes_per_s": f"{roof.bytes_per_s:.6g}",
        "product_flops_per_s": f"{roof.flops_per_s:.6g}",
        "product": roof.flops_type,
    }
    rows: list[dict[str, object]] = []
    for m in measured:
        times = {"linattn kernel": m.kernel_s, "linattn call": m.call_s, **m.peers_s}
        times |= {f"linattn {name}": seconds for name, seconds in m.kernels_s.items()}
        for who, seconds in times.items():
            if math.isnan(seconds):
                continue
            ours = who.startswith("linattn")
            rows.append({**common, **_work(m.workload), "who": who,
                         "implementation": m.implementation if ours else "",
                         "seconds": f"{seconds:.6g}", "floor_s": f"{m.floor_s(roof):.6g}",
                         "share_of_floor": f"{m.floor_s(roof) / seconds:.4g}",
                         "workspace_bytes": m.workspace_bytes if ours else ""})  # fmt: skip
    return rows


def _work(workload: Workload) -> dict[str, object]:
    return {"work": workload.name, "kind": workload.kind, "flops": f"{workload.flops:.6g}",
            "bytes": workload.bytes}  # fmt: skip


def write_csv(path: Path, measured: Sequence[Measurement], roof: Roof, where: str) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, CSV_FIELDS)
        writer.writeheader()
        writer.writerows(csv_rows(measured, roof, where))
