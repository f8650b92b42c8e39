"""Every implementation of this machine against the fp64 reference, over a grid of cases.

Each call runs in poisoned memory: NaN everywhere that the call does not own, and a comparison of
every byte afterwards. Exit status 1 when anything fails, and when nothing could be checked.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from .._errors import DispatchError
from .._library import Device, implementations_json
from ..testing import Case, compare, device_of, expected_outputs, make_inputs, reference
from ..testing.cases import FAMILIES
from ..testing.compare import Verdict
from ..testing.grid import cases
from ..testing.native import Prepared
from .problem_options import count, family
from .tables import progress, show_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", default="cpu", help="cpu, cuda or cuda:<index> (default: cpu)")
    add("--op", type=family, action="append", metavar="FAMILY",
        help="may be repeated; default: all")  # fmt: skip
    add("--implementation", action="append", metavar="NAME",
        help="may be repeated; default: all that are available")  # fmt: skip
    add("--quick", action="store_true", help="fewer cases: about a quarter of the full grid")
    add("--failures", type=count, default=10, metavar="N", help="failures to print (default: 10)")
    add("--json", action="store_true", help="print one JSON object")


@dataclass
class Row:
    """One line of the table: an operator, an implementation, an input type."""

    family: str
    operator: str
    implementation: str
    dtype: str
    cases: int = 0
    refused: int = 0
    failed: int = 0
    worst: Verdict | None = None
    reasons: list[str] = field(default_factory=list)

    def add(self, verdicts: list[Verdict], faults: list[str]) -> None:
        self.cases += 1
        if faults or not all(v.passed for v in verdicts):
            self.failed += 1
        for verdict in verdicts:
            if self.worst is None or self._rank(verdict) > self._rank(self.worst):
                self.worst = verdict

    def _rank(self, verdict: Verdict) -> tuple[bool, bool, float]:
        """A failure first; then tensors of the row's own type, else a bf16 state outshines them."""
        return not verdict.passed, verdict.widest == self.dtype, _share(verdict)

    @property
    def state(self) -> str:
        if self.failed:
            return "FAIL"
        return "pass" if self.cases else "refused"


def _share(verdict: Verdict) -> float:
    """Error as a share of its tolerance, for the worst of several."""
    if verdict.passed:
        return verdict.error / verdict.tolerance if verdict.tolerance else 0.0
    share = verdict.error / verdict.tolerance if verdict.tolerance else float("inf")
    return share if share == share else float("inf")


@dataclass
class Failure:
    case: Case
    implementation: str
    what: list[str]

    def text(self) -> str:
        return f"{self.implementation}: {'; '.join(self.what)}\n    {self.case.describe()}"


def available(device: Device, asked: list[str] | None) -> dict[str, list[str]]:
    """List name -> the implementations to check, in the list's order."""
    kind = "cpu" if device.type == 0 else "cuda"
    listed = {name: entries[kind] for name, entries in implementations_json().items()}
    known = {entry["name"] for entries in listed.values() for entry in entries}
    unknown = set(asked or ()) - known
    if unknown:
        raise ValueError(f"implementation {sorted(unknown)[0]!r} is not listed for {kind}; "
                         f"listed: {', '.join(sorted(known)) or 'none'}")  # fmt: skip
    return {
        name: [e["name"] for e in entries if e["available"] and (not asked or e["name"] in asked)]
        for name, entries in listed.items()
    }


class Check:
    """Runs cases and keeps the score."""

    def __init__(self, device: Device, implementations: dict[str, list[str]], repeat: bool) -> None:
        self.device, self.implementations, self.repeat = device, implementations, repeat
        self.rows: dict[tuple[str, str, str, str], Row] = {}
        self.failures: list[Failure] = []

    def run(self, all_cases: Iterable[Case]) -> None:
        for number, case in enumerate(all_cases):
            names = self.implementations.get(case.list_name, [])
            if not names:
                continue
            inputs = make_inputs(case)
            expected = expected_outputs(case, inputs, reference)
            for name in names:
                self._one(case, inputs, expected, name, self.repeat and number % 4 == 0)

    def _one(
        self,
        case: Case,
        inputs: dict[str, np.ndarray],
        expected: dict[str, np.ndarray],
        name: str,
        repeat: bool,
    ) -> None:
        key = (case.family, case.list_name, name, case.dtype)
        row = self.rows.setdefault(key, Row(*key))
        try:
            prepared = Prepared(case, inputs, self.device, name)
        except DispatchError as refusal:
            row.refused += 1
            if str(refusal) not in row.reasons:
                row.reasons.append(str(refusal))
            return
        except Exception as error:  # a legal problem that the library calls illegal
            self._fail(case, name, row, [f"{type(error).__name__}: {error}"])
            return
        try:
            result = prepared.run()
        except Exception as error:
            self._fail(case, name, row, [f"{type(error).__name__}: {error}"])
            return
        verdicts = compare(case, inputs, result.outputs, expected)
        faults = list(result.faults)
        if repeat:
            again = prepared.run().outputs
            faults += [f"{tensor} differs between two runs of the same call"
                       for tensor, values in result.outputs.items()
                       if values.tobytes() != again[tensor].tobytes()]  # fmt: skip
        row.add(verdicts, faults)
        wrong = [str(v) for v in verdicts if not v.passed] + faults
        if wrong:
            self.failures.append(Failure(case, name, wrong))

    def _fail(self, case: Case, name: str, row: Row, what: list[str]) -> None:
        row.cases += 1
        row.failed += 1
        self.failures.append(Failure(case, name, what))

    def unchecked(self) -> list[str]:
        """Available implementations that refused every case: that is a failure too."""
        ran = {(row.operator, row.implementation) for row in self.rows.values() if row.cases}
        asked = {(row.operator, row.implementation) for row in self.rows.values()}
        return [f"{name} refused every {operator} case" for operator, name in sorted(asked - ran)]


def table(rows: Iterable[Row]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        worst = row.worst
        yield (
            row.family,
            row.operator,
            row.implementation,
            row.dtype,
            str(row.cases),
            str(row.refused),
            f"{worst.error:.2e}" if worst else "-",
            f"{worst.tolerance:.0e}" if worst else "-",
            worst.tensor if worst else "-",
            row.state,
        )


COLUMNS = ("family", "operator", "implementation", "type", "cases", "refused", "worst error",
           "tolerance", "of", "result")  # fmt: skip
RIGHT = ("cases", "refused", "worst error", "tolerance")


def run(options: argparse.Namespace) -> int:
    device = device_of(options.device)
    check = Check(device, available(device, options.implementation), repeat=not options.quick)
    families = tuple(options.op or FAMILIES)
    walked = list(cases(families, options.quick))
    start = time.perf_counter()
    check.run(progress(walked, len(walked), "linattn check"))
    seconds = time.perf_counter() - start
    checked = sum(row.cases for row in check.rows.values())
    failed = sum(row.failed for row in check.rows.values())
    unchecked = check.unchecked()
    passed = bool(checked) and not failed and not unchecked
    if options.json:
        _print_json(check, checked, failed, unchecked, passed, seconds)
        return 0 if passed else 1
    rows = list(table(check.rows.values()))
    show_table(f"Checked on {options.device} against the fp64 reference", COLUMNS, rows, RIGHT)
    for failure in check.failures[: options.failures]:
        print(failure.text())
    if len(check.failures) > options.failures:
        print(f"... and {len(check.failures) - options.failures} more (--failures N)")
    for text in unchecked:
        print(text)
    if not checked:
        print(f"nothing was checked: no implementation runs on {options.device}")
    print(f"{checked} calls, {failed} failed, {seconds:.1f} s")
    return 0 if passed else 1


def _print_json(check: Check, checked: int, failed: int, unchecked: list[str], passed: bool,
                seconds: float) -> None:  # fmt: skip
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in table(check.rows.values())]
    failures = [{"case": f.case.describe(), "implementation": f.implementation, "what": f.what}
                for f in check.failures]  # fmt: skip
    answer = {"passed": passed, "calls": checked, "failed": failed, "unchecked": unchecked,
              "seconds": seconds, "rows": rows, "failures": failures}  # fmt: skip
    json.dump(answer, sys.stdout, indent=2)
    print()
