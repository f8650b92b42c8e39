"""explain, implementations, force, last_implementation, the log line, DispatchError."""

import logging
import os
import subprocess
import sys

import pytest
import torch
from families import FAMILIES, make_inputs

import linattn
from linattn import _library, ops


def test_implementations_are_ordered_lists():
    lists = linattn.implementations()
    assert set(lists) == {"chunk_forward", "recurrent_forward", "backward"}
    for devices in lists.values():
        assert set(devices) == {"cpu", "cuda"}
        assert devices["cpu"][-1].name == "reference" and devices["cpu"][-1].available
    assert set(linattn.implementations("chunk_kda", "cpu")) == {"chunk_forward"}
    assert set(linattn.implementations("fused_recurrent_gla")) == {"recurrent_forward"}
    assert set(linattn.implementations("chunk_gla_bwd")) == {"backward"}
    assert set(linattn.implementations(device="cpu")["backward"]) == {"cpu"}
    with pytest.raises(ValueError, match="op is 'softmax'"):
        linattn.implementations("softmax")
    for wrong in ("chunk_kd", "chunk_", "kda", "fused_kda_gate", "no_backward"):
        with pytest.raises(ValueError, match=f"op is '{wrong}'; allowed: .*chunk_kda, ") as caught:
            linattn.implementations(wrong, "cpu")
        assert all(name in str(caught.value) for name in lists)
    with pytest.raises(ValueError, match="device is 'tpu'"):
        linattn.implementations(device="tpu")


@pytest.mark.parametrize("op", ["chunk_kda", ops.chunk_kda, "fused_recurrent_kda", "chunk_kda_bwd"])
def test_explain(op):
    inputs = make_inputs(FAMILIES["kda"])
    answer = linattn.explain(op, *inputs, use_qk_l2norm_in_kernel=True)
    assert answer.implementation in {
        entry.name for entry in next(iter(linattn.implementations(answer.operator).values()))["cpu"]
    }
    assert answer.device == "cpu" and answer.workspace_bytes >= 0 and answer.launches
    text = str(answer)
    assert answer.operator in text and answer.implementation in text
    assert answer.launches[0].name in text


def test_explain_is_what_runs():
    for family in FAMILIES.values():
        inputs = make_inputs(family)
        op = ops.chunk_lightning_attn if family.name == "lightning" else family.chunk
        more = (1, 4) if family.name == "lightning" else ()
        answer = linattn.explain(op, *inputs, *more)
        before = linattn.last_implementation()
        assert linattn.last_implementation() == before  # nothing was run
        op(*inputs, *more)
        assert linattn.last_implementation() == answer.implementation


def test_explain_reports_every_refusal_of_a_forced_name():
    inputs = make_inputs(FAMILIES["kda"])
    with linattn.force("reference"):
        assert linattn.explain("chunk_kda", *inputs).implementation == "reference"


def test_explain_takes_fake_tensors():
    with torch._subclasses.FakeTensorMode():
        q = torch.empty(1, 1 << 20, 32, 128)
        answer = linattn.explain("chunk_delta_rule", q, q, q, torch.empty(1, 1 << 20, 32))
    assert answer.implementation is not None


def test_explain_refuses_what_the_call_refuses():
    q, k, v, g, beta = make_inputs(FAMILIES["kda"])
    with pytest.raises(ValueError, match="beta has shape"):
        linattn.explain("chunk_kda", q, k, v, g, beta[:, 1:])
    with pytest.raises(TypeError, match="q has type int"):
        linattn.explain("chunk_kda", 3, k, v, g, beta)
    with pytest.raises(TypeError, match="unexpected keyword"):
        linattn.explain("chunk_kda", q, k, v, g, beta, magic=1)
    with pytest.raises(ValueError, match="op is 'naive_recurrent_kda'"):
        linattn.explain("naive_recurrent_kda", q, k, v, g, beta)


def test_force_of_an_unknown_name():
    unknown = pytest.raises(ValueError, match="no implementation is named 'warp_drive'")
    with unknown, linattn.force("warp_drive"):
        pass


def test_forced_implementation_that_refuses_raises_its_reason():
    inputs = make_inputs(FAMILIES["kda"], tokens=5)
    names = {
        e.name for lists in linattn.implementations(device="cuda").values() for e in lists["cuda"]
    }
    if not names:
        pytest.skip("no CUDA implementation is built in, so none refuses a CPU tensor")
    for name in names:
        with linattn.force(name), pytest.raises(linattn.DispatchError) as caught:
            ops.fused_recurrent_kda(*inputs)
        assert name in str(caught.value) or name in caught.value.refused


def test_force_holds_in_the_backward_pass():
    q, k, v, g, beta = make_inputs(FAMILIES["kda"], tokens=5)
    with linattn.force("reference"):
        o, _ = ops.chunk_kda(q.requires_grad_(), k, v, g, beta)
    o.sum().backward()
    assert linattn.last_implementation() == "reference"


def test_one_log_line_for_a_new_problem(caplog):
    inputs = make_inputs(FAMILIES["gla"], tokens=77)
    with caplog.at_level(logging.INFO, logger="linattn"):
        for _ in range(3):
            ops.chunk_gla(*inputs)
    lines = [record.message for record in caplog.records if "[2, 77, 2, 16]" in record.message]
    assert len(lines) == 1 and linattn.last_implementation() in lines[0]


def test_dispatch_error_carries_reasons():
    error = linattn.DispatchError("text", {"cpu": "no"})
    assert isinstance(error, RuntimeError) and error.refused == {"cpu": "no"}


def test_statuses_have_their_exceptions():
    from linattn import _abi
    from linattn._errors import EXCEPTIONS

    assert {status: kind.__name__ for status, kind in EXCEPTIONS.items()} == {
        _abi.INVALID_VALUE: "ValueError",
        _abi.INVALID_TYPE: "TypeError",
        _abi.UNSUPPORTED: "DispatchError",
        _abi.DEVICE_FAILURE: "RuntimeError",
        _abi.OUT_OF_MEMORY: "MemoryError",
        _abi.NOT_IMPLEMENTED: "NotImplementedError",
    }


def in_a_process(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


CALL = """import torch, linattn.ops
q = torch.ones(1, 3, 1, 16)
linattn.ops.chunk_lightning_attn(q, q, q, 0, 1)
"""


def test_a_missing_library_is_one_error(tmp_path):
    """And no second one from the plan that was not made."""
    missing = tmp_path / "liblinattn.so"
    done = in_a_process(CALL, LINATTN_LIBRARY=str(missing))
    assert done.returncode == 1 and str(missing) in done.stderr.splitlines()[-1]
    assert "Exception ignored" not in done.stderr and "AttributeError" not in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        *(("LINATTN_NUM_THREADS", v, "1 to 1024") for v in ("abc", "0", "-3", "2x", "9999999999")),
        ("LINATTN_VERBOSE", "1", "dispatch"),
        ("LINATTN_FORCE", "warp_drive", "reference"),
    ],
)
def test_a_bad_variable_is_named(name, value, allowed):
    done = in_a_process(CALL, **{name: value})
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith(f"ValueError: {name} is '{value}'")
    assert allowed in last


def test_variables_with_good_values_or_none():
    none = dict.fromkeys(("LINATTN_NUM_THREADS", "LINATTN_VERBOSE", "LINATTN_FORCE"), "")
    done = in_a_process(CALL, **none)
    assert done.returncode == 0 and not done.stderr
    threads = "from linattn._library import library; print(library().linattn_get_num_threads())"
    good = {"LINATTN_NUM_THREADS": "3", "LINATTN_VERBOSE": "dispatch"}
    done = in_a_process(CALL + threads, **good)
    assert done.returncode == 0 and done.stdout == "3\n" and "lightning" in done.stderr


def test_library_path_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LINATTN_LIBRARY", str(tmp_path / "x.so"))
    assert _library.library_path() == tmp_path / "x.so"
