"""linattn as a backend of FLA's dispatcher: FLA's own dispatch code, the rest of it replaced.

FLA's operators need triton, so its package is not imported: the dispatcher's file is loaded alone.
"""

import importlib
import importlib.metadata
import importlib.util
import sys
import types

import pytest
import torch
from families import FAMILIES, error, make_inputs


@pytest.fixture
def dispatcher(monkeypatch):
    try:
        files = importlib.metadata.files("fla-core") or ()
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("fla-core is not installed")
    path = next(f.locate() for f in files if str(f) == "fla/ops/backends/__init__.py")
    stubs = {name: types.ModuleType(name) for name in ("fla", "fla.ops", "fla.utils")}
    stubs["fla.utils"].find_spec_cached = importlib.util.find_spec
    for name in ("fla", "fla.ops"):
        stubs[name].__path__ = []
    for name, module in stubs.items():
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("fla.ops.backends", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fla.ops.backends", module)
    spec.loader.exec_module(module)
    monkeypatch.delitem(sys.modules, "linattn.compat.fla", raising=False)
    importlib.import_module("linattn.compat.fla")
    yield module
    sys.modules.pop("linattn.compat.fla", None)


def operator(dispatcher, calls):
    @dispatcher.dispatch("kda")
    def chunk_kda(*args, **options):
        calls.append("fla")
        return args[2], None

    return chunk_kda


def test_takes_a_call(dispatcher):
    calls = []
    inputs = make_inputs(FAMILIES["kda"], tokens=70)
    o, ht = operator(dispatcher, calls)(*inputs, output_final_state=True, chunk_size=64)
    assert not calls
    o_ref, ht_ref = FAMILIES["kda"].naive(*inputs, output_final_state=True)
    assert error(o, o_ref) < 1e-5 and error(ht, ht_ref) < 1e-5


def test_leaves_what_it_has_not_and_says_why(dispatcher, caplog):
    calls = []
    inputs = make_inputs(FAMILIES["kda"], tokens=5)
    with caplog.at_level("INFO"):
        operator(dispatcher, calls)(*inputs, cp_context=object())
    assert calls == ["fla"]
    assert any("linattn" in m and "cp_context" in m for m in caplog.messages)


def test_environment_switches_it_off(dispatcher, monkeypatch):
    calls = []
    monkeypatch.setenv("LINATTN_FLA", "0")
    operator(dispatcher, calls)(*make_inputs(FAMILIES["kda"], tokens=5))
    assert calls == ["fla"]


def test_gradients_flow(dispatcher):
    inputs = [t.requires_grad_() for t in make_inputs(FAMILIES["kda"], tokens=9)]
    operator(dispatcher, [])(*inputs)[0].sum().backward()
    assert all(isinstance(t.grad, torch.Tensor) for t in inputs)


def test_registers_once(dispatcher):
    module = sys.modules["linattn.compat.fla"]
    module.register()
    registry = dispatcher.BackendRegistry._registries["kda"]
    assert list(registry._backends) == ["linattn"]
