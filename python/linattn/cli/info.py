"""Version, build, devices, and which implementations run here.

One row for each entry of the ordered lists, fastest first; an entry that cannot run on this
machine says why.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from .._library import implementations_json, library, library_path
from ..testing import Case, device_of, explain_case
from .tables import show_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def target(device: str) -> str:
    """The instruction set that the library uses on a device."""
    return str(explain_case(Case("kda"), device_of(device))["target"])


def _torch() -> dict[str, Any]:
    """What torch says of itself and its devices; not imported when it is not installed."""
    try:
        import torch
    except ImportError:
        return {"version": None, "cuda_devices": []}
    found = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        found.append({"index": index, "name": facts.name, "capability": [facts.major, facts.minor],
                      "multiprocessors": facts.multi_processor_count,
                      "memory_bytes": facts.total_memory})  # fmt: skip
    return {"version": torch.__version__, "cuda_devices": found}


def collect() -> dict[str, Any]:
    handle = library()
    return {
        "version": handle.linattn_version().decode(),
        "build": handle.linattn_build_info().decode(),
        "library": str(library_path()),
        "python": platform.python_version(),
        "cpu": {
            "model": cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "threads": handle.linattn_get_num_threads(),
            "target": target("cpu"),
        },
        "torch": _torch(),
        "implementations": implementations_json(),
    }


def run(options: argparse.Namespace) -> int:
    facts = collect()
    if options.json:
        json.dump(facts, sys.stdout, indent=2)
        print()
        return 0
    cpu, torch = facts["cpu"], facts["torch"]
    print(f"linattn {facts['version']} ({facts['build']})")
    print(f"library {facts['library']}")
    print(f"python  {facts['python']}, torch {torch['version'] or 'not installed'}")
    threads = f"{cpu['threads']} threads on {cpu['cores']} cores"
    print(f"cpu     {cpu['model']}: {cpu['target']}, {threads}")
    for device in torch["cuda_devices"]:
        capability = ".".join(map(str, device["capability"]))
        size = f"{device['multiprocessors']} SMs, {device['memory_bytes'] / 2**30:.0f} GiB"
        print(f"cuda:{device['index']}  {device['name']}, capability {capability}, {size}")
    if not torch["cuda_devices"]:
        print("cuda    no device that torch sees")
    print()
    rows = [
        (name, device, entry["name"], "yes" if entry["available"] else "no", entry["reason"])
        for name, devices in facts["implementations"].items()
        for device, entries in devices.items()
        for entry in entries
    ]
    columns = ("operator", "device", "implementation", "available", "reason")
    show_table("Implementations, in the order in which they are asked", columns, rows)
    return 0
