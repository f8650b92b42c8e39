"""Which implementation takes one problem, and why the others do not.

Nothing is launched. Exit status 1 when no implementation takes the problem.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from .._dispatch import Launch
from .._library import implementations_json
from ..testing import Case, device_of, explain_case
from .problem_options import add_problem_options, case_of
from .tables import show_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_problem_options(parser)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:<index> (default: cpu)")
    parser.add_argument("--implementation", metavar="NAME", help="ask for this one alone")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def walk(case: Case, device: str, implementation: str | None = None) -> dict[str, Any]:
    """The library's explanation, with the list that was walked and the entries in its order."""
    answer = explain_case(case, device_of(device), implementation)
    lists = implementations_json()[case.list_name]
    kind = device.partition(":")[0]
    # Entries of the other kind of device refuse as well, and say so.
    names = [entry["name"] for entry in lists[kind]]
    names += [entry["name"] for other in lists if other != kind for entry in lists[other]]
    steps = []
    for name in names:
        if name == answer["implementation"]:
            steps.append({"implementation": name, "taken": True, "reason": ""})
        elif name in answer["refused"]:
            reason = answer["refused"][name]
            steps.append({"implementation": name, "taken": False, "reason": reason})
        else:
            steps.append({"implementation": name, "taken": None, "reason": "not asked"})
    return {"list": case.list_name, "asked_device": device, **answer, "walk": steps}


def size_text(count: int) -> str:
    """1536 -> '1.5 KiB'."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"


def run(options: argparse.Namespace) -> int:
    case = case_of(options)
    answer = walk(case, options.device, options.implementation)
    found = answer["implementation"]
    if options.json:
        json.dump(answer, sys.stdout, indent=2)
        print()
        return 0 if found else 1
    words = {True: "yes", False: "no", None: "-"}
    rows = [(s["implementation"], words[s["taken"]], s["reason"]) for s in answer["walk"]]
    title = f"{case.family} {answer['list']} on {options.device}"
    show_table(title, ("implementation", "taken", "reason"), rows)
    if not found:
        print("no implementation takes this problem")
        return 1
    print(f"implementation  {found}")
    print(f"workspace       {size_text(answer['workspace_bytes'])}"
          f" ({answer['workspace_bytes']} bytes)")  # fmt: skip
    for launch in answer["launches"]:
        print(f"launch          {Launch(**{**launch, 'grid': tuple(launch['grid'])})}")
    return 0
