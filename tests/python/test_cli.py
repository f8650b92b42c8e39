"""The command line: each command runs, says what it does, and fails when it should."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from linattn._library import Device, implementations_json
from linattn.cli import COMMANDS, main, make_parser
from linattn.cli import check as check_command
from linattn.cli.tables import plain_table
from linattn.testing import Case, Pool, native
from linattn.testing.compare import TOLERANCES, error, tolerance
from linattn.testing.grid import cases


def run(capsys, *arguments: str) -> tuple[int, str]:
    status = main(arguments)
    return status, capsys.readouterr().out


def test_module_and_commands_without_torch():
    """Every command that needs no torch runs where torch cannot be imported."""
    block = "import sys; sys.modules['torch'] = None; from linattn.cli import main; "
    for arguments in (["info"], ["explain", "kda"], ["check", "--quick", "--op", "lightning"]):
        code = block + f"sys.exit(main({arguments!r}))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    done = subprocess.run([sys.executable, "-m", "linattn", "info"], capture_output=True, text=True)
    assert done.returncode == 0 and "linattn 0." in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_option(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    parser = make_parser()._subparsers._group_actions[0].choices[command]
    for action in parser._actions:
        for option in action.option_strings:
            assert option in text
    # A default that the help states is the default.
    for action in parser._actions:
        stated = re.search(r"default: ([\w.]+)\)?$", action.help or "")
        if stated and action.default is not None and action.default != 0:
            assert str(action.default) == stated.group(1), action.dest


def test_info_lists_every_implementation(capsys):
    status, text = run(capsys, "info")
    assert status == 0
    for name, devices in implementations_json().items():
        for device, entries in devices.items():
            for entry in entries:
                assert re.search(rf"{name}\s+{device}\s+{entry['name']}\s", text)
                assert entry["reason"] in text
    status, text = run(capsys, "info", "--json")
    facts = json.loads(text)
    assert status == 0 and facts["implementations"] == implementations_json()
    assert facts["cpu"]["threads"] >= 1
    assert facts["cpu"]["target"] in ("amx", "avx512", "avx2", "neon", "baseline")


def test_explain_text_and_json(capsys):
    status, text = run(capsys, "explain", "chunk_kda", "--tokens", "8192", "--heads", "96")
    assert status == 0 and "implementation" in text and "workspace" in text and "launch" in text
    arguments = ("explain", "gdn", "--pass", "backward", "--dtype", "float32", "--json")
    status, text = run(capsys, *arguments)
    answer = json.loads(text)
    assert status == 0 and answer["list"] == "backward"
    assert {"implementation", "refused", "workspace_bytes", "launches", "walk"} <= set(answer)
    listed = [entry["name"] for entry in implementations_json()["backward"]["cpu"]]
    assert [step["implementation"] for step in answer["walk"]][: len(listed)] == listed
    assert sum(step["taken"] is True for step in answer["walk"]) == 1
    assert all({"name", "grid", "block"} <= set(launch) for launch in answer["launches"])


def test_explain_shows_the_order_of_refusals(capsys):
    status, text = run(capsys, "explain", "kda", "--implementation", "reference", "--json")
    answer = json.loads(text)
    assert status == 0 and answer["implementation"] == "reference"
    others = [s for s in answer["walk"] if s["implementation"] != "reference"]
    assert all(step["reason"] for step in others)


def test_explain_says_why_nothing_runs_on_another_device(capsys):
    listed = implementations_json()["chunk_forward"]
    status, text = run(capsys, "explain", "kda", "--device", "cuda", "--json")
    answer = json.loads(text)
    if not any(entry["available"] for entry in listed["cuda"]):
        assert status == 1 and answer["implementation"] is None
        for entry in listed["cpu"]:
            assert "runs on cpu" in answer["refused"][entry["name"]]


def test_explain_names_a_bad_argument(capsys):
    assert main(["explain", "kda", "--heads", "3", "--heads-v", "4"]) == 2
    assert "HV = 4" in capsys.readouterr().err
    assert main(["explain", "kda", "--pool", "1", "--batch", "2"]) == 2
    assert "--pool is 1" in capsys.readouterr().err
    assert main(["explain", "kda", "--implementation", "warp_drive"]) == 2
    text = capsys.readouterr().err
    assert "'warp_drive'; known: " in text and "cpu" in text and "reference" in text
    with pytest.raises(SystemExit):
        main(["explain", "attention"])
    assert "kda, gdn, delta" in capsys.readouterr().err


def test_check_passes_and_counts(capsys):
    arguments = ("check", "--quick", "--op", "delta", "--implementation", "reference", "--json")
    status, text = run(capsys, *arguments)
    answer = json.loads(text)
    expected = len(list(cases(("delta",), quick=True)))
    assert status == 0 and answer["passed"] and answer["calls"] == expected
    assert {row["operator"] for row in answer["rows"]} == {
        "chunk_forward", "recurrent_forward", "backward"}  # fmt: skip


def tampered(monkeypatch, change) -> None:
    honest = native.Prepared.run

    def run(self):
        result = honest(self)
        change(result)
        return result

    # The oracle runs through run_case and stays honest.
    class Dishonest(native.Prepared):
        pass

    Dishonest.run = run
    monkeypatch.setattr(check_command, "Prepared", Dishonest)


def wrong_value(result):
    for values in result.outputs.values():
        values *= 1.05


def nan_element(result):
    for values in result.outputs.values():
        if values.size:
            values.flat[-1] = np.nan


def stray(result):
    result.faults.append("8 bytes of q changed that the call does not own")


@pytest.mark.parametrize("change", [wrong_value, nan_element, stray])
def test_check_fails_on_a_wrong_implementation(change, monkeypatch, capsys):
    tampered(monkeypatch, change)
    monkeypatch.setattr(check_command, "cases", lambda *_: [Case("lightning", tokens=9)])
    status, text = run(capsys, "check", "--quick", "--op", "lightning")
    assert status == 1 and "FAIL" in text and "Case('lightning'" in text


def test_check_fails_when_nothing_was_checked(monkeypatch, capsys):
    assert main(["check", "--implementation", "none_such"]) == 2
    assert "none_such" in capsys.readouterr().err
    monkeypatch.setattr(check_command, "available", lambda device, asked: {})
    status, text = run(capsys, "check", "--quick", "--op", "gla")
    assert status == 1 and "nothing was checked" in text


def test_check_fails_when_an_implementation_refuses_everything(monkeypatch, capsys):
    class Refusing:
        def __init__(self, *_):
            raise native.DispatchError("not today")

    monkeypatch.setattr(check_command, "Prepared", Refusing)
    status, text = run(capsys, "check", "--quick", "--op", "gla", "--implementation", "reference")
    assert status == 1 and "reference refused every chunk_forward case" in text


def test_a_write_outside_the_outputs_is_seen():
    case = Case("gdn", "recurrent", tokens=1, batch=3, pool=Pool(spare=2, dead=("negative",)),
                layout="fused")  # fmt: skip
    from linattn.testing import make_inputs

    prepared = native.Prepared(case, make_inputs(case), Device(0, 0), "reference")
    for name in ("q", "o", "initial_state"):
        image = prepared.images[name]
        after = image.block.copy()
        assert image.stray_writes(after, []) == 0
        after[-1] ^= 1  # a guard byte
        assert image.stray_writes(after) == 1
    pool = prepared.images["initial_state"]
    after = pool.block.copy()
    pool.bits(after)[0] = 0  # a slot that is not among the allowed ones
    assert pool.stray_writes(after, [1]) > 0 and pool.stray_writes(after, [0]) == 0


def test_error_and_tolerances():
    one = np.ones(4, np.float32)
    assert error(one, one) == 0
    assert error(one * np.float32(1.01), one) == pytest.approx(0.01, rel=1e-3)
    assert np.isnan(error(np.array([1, np.nan, 1, 1], np.float32), one))
    assert np.isnan(error(np.array([1, np.inf, 1, 1], np.float32), one))
    assert error(one, np.zeros(4, np.float32)) == float("inf")
    assert tolerance(Case("kda"), "o") == TOLERANCES["f32"][0]
    assert tolerance(Case("kda", state_dtype="bf16"), "final_state") == TOLERANCES["bf16"][0]
    backward = Case("kda", direction="backward", dtype="bf16")
    assert tolerance(backward, "dq") == TOLERANCES["bf16"][1]


def test_grid_reaches_what_the_contract_names():
    full = list(cases())
    lengths = {case.tokens for case in full if case.theme == "lengths"}
    assert {0, 1, 15, 16, 17, 63, 64, 65, 129} <= lengths
    for family in ("kda", "gdn", "delta", "gla", "simple_gla", "lightning"):
        own = [case for case in full if case.family == family]
        assert {case.dtype for case in own} == {"f32", "bf16", "f16"}
        assert {case.list_name for case in own} == {
            "chunk_forward", "recurrent_forward", "backward"}  # fmt: skip
        assert any(0 in case.lengths for case in own) and any(case.tail for case in own)
        assert any(case.dim_k != case.dim_v for case in own)
        assert any(case.value_heads > case.heads for case in own)
        assert any(case.pool and case.pool.columns for case in own)
    assert len({case.describe() for case in full}) == len(full)


def test_plain_table_aligns():
    text = plain_table(("name", "n"), [("a", "1"), ("longer", "22")], ("n",))
    assert text.splitlines() == ["name     n", "------  --", "a        1", "longer  22"]
