"""Every call of the tables is refused with its exception and text, and writes nothing."""

import inspect

import bad_call_rows
import pytest
import torch
from bad_calls import HV, B, K, T, V, legal, tensor_rows
from torch.utils._python_dispatch import TorchDispatchMode

import linattn
from linattn import ops

ROWS = [*tensor_rows(), *bad_call_rows.rows()]
# Behind the front there is one path through the dispatcher for all operators: two walk it in full.
WATCHED = [
    *bad_call_rows.rows(),
    *(row for row in tensor_rows() if row.op in ("chunk_kda", "fused_recurrent_simple_gla")),
]
CALLS = [*((row, "eager") for row in ROWS), *((row, "dispatcher") for row in WATCHED)]


class Dispatcher(TorchDispatchMode):
    """Sends a call through torch's dispatcher, as a tracer or a profiler would."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def storages(arguments):
    """Bytes of every tensor's memory, that between its elements included."""
    kept = {}
    for name, t in arguments.items():
        if isinstance(t, torch.Tensor) and t.layout == torch.strided and not t.is_meta:
            memory = t.detach().untyped_storage()
            kept[name] = torch.tensor([], dtype=torch.uint8).set_(memory)
    return kept


def arguments_of(row):
    if row.op == "chunk_kda_bwd":
        saved = ops.chunk_kda_fwd(**legal("chunk_kda")).saved
        given = {"saved": saved, "do": torch.randn(B, T, HV, V)}
    else:
        given = legal(row.op)
    given |= row.change(given) if callable(row.change) else row.change
    asks_gradient = any(isinstance(t, torch.Tensor) and t.requires_grad for t in given.values())
    takes_out = "out" in inspect.signature(getattr(ops, row.op)).parameters
    if "out" not in given and takes_out and not asks_gradient:
        batch = given["q"].shape[0] if isinstance(given["q"], torch.Tensor) else B
        # v as the row has it, so that out is not what is wrong.
        like = given["v"].shape if isinstance(given["v"], torch.Tensor) else (batch, T, HV, V)
        given["out"] = torch.empty(like)
    return given


@pytest.mark.parametrize(
    ("row", "path"), CALLS, ids=[f"{path}-{row.op}-{row.title}" for row, path in CALLS]
)
def test_refused(row, path):
    given = arguments_of(row)
    if isinstance(given.get("out"), torch.Tensor) and not given["out"].is_meta:
        given["out"].untyped_storage().fill_(0xFF)
    before = {name: memory.clone() for name, memory in storages(given).items()}
    with pytest.raises(row.error) as caught:
        if path == "dispatcher":
            with Dispatcher():
                getattr(ops, row.op)(**given)
        else:
            getattr(ops, row.op)(**given)
    assert caught.type is row.error
    message = str(caught.value)
    for text in row.texts:
        assert text in message
    for name, memory in storages(given).items():
        assert torch.equal(memory, before[name]), f"{name} was written"


def test_the_table_is_of_legal_calls_made_bad():
    for op in {row.op for row in ROWS if not row.op.endswith(("_bwd", "_gate"))}:
        o = getattr(ops, op)(**legal(op))[0]
        assert o.shape == (B, T, HV, V) and bool(o.isfinite().all())


def test_gradient_of_a_gradient():
    given = {name: t.requires_grad_() if isinstance(t, torch.Tensor) else t
             for name, t in legal("chunk_kda").items()}  # fmt: skip
    o, _ = ops.chunk_kda(**given)
    (dq,) = torch.autograd.grad(o.sum(), given["q"], create_graph=True)
    with pytest.raises(RuntimeError, match=r"gradient of a gradient is not available; the naive_"):
        dq.sum().backward()


def test_force_of_an_unknown_implementation():
    with pytest.raises(ValueError, match=r"'warp_drive'.*known: .*cpu.*reference"):  # noqa: SIM117
        with linattn.force("warp_drive"):
            pass


@pytest.mark.parametrize("name", [None, 3, b"cpu"])
def test_names_that_are_no_text(name):
    with pytest.raises(TypeError, match=r"name has type .*; allowed: str"):  # noqa: SIM117
        with linattn.force(name):
            pass
    if name is not None:
        with pytest.raises(TypeError, match=r"op has type .*; allowed: str"):
            linattn.implementations(name)


def test_force_of_an_implementation_that_refuses():
    lists = linattn.implementations("chunk_forward")["chunk_forward"]
    here = {entry.name for entry in lists["cpu"]}
    elsewhere = {
        entry.name
        for devices in linattn.implementations().values()
        for entries in devices.values()
        for entry in entries
    } - here
    if not elsewhere:
        pytest.skip(f"every implementation of this build ({', '.join(here)}) takes the problem")
    out = torch.full((B, T, HV, V), 7.0)
    for name in elsewhere:
        with linattn.force(name), pytest.raises(linattn.DispatchError) as caught:
            ops.chunk_kda(**legal("chunk_kda"), out=out)
        assert set(caught.value.refused) >= here
        for entry in here:
            assert caught.value.refused[entry] == f"'{name}' is forced"
            assert f"{entry}: '{name}' is forced" in str(caught.value)
    assert bool((out == 7).all())


@pytest.mark.parametrize("name", ["chunk_kda", "chunk_gated_delta_rule", "fused_recurrent_kda"])
def test_an_output_in_the_memory_of_an_input(name):
    call = legal(name)
    shared = call["v"].clone()
    call["v"] = shared
    before = shared.clone()
    with pytest.raises(ValueError, match="o shares memory with v"):
        getattr(ops, name)(**call, out=shared)
    assert torch.equal(shared, before)
    # Neighbouring slices of one buffer are nobody's overlap, whichever axis they are of.
    for axis in (1, 2, 3):
        size = shared.shape[axis]
        room = torch.cat([before, torch.zeros_like(before)], axis)
        call["v"] = room.narrow(axis, 0, size)
        o = getattr(ops, name)(**call, out=room.narrow(axis, size, size))[0]
        assert torch.equal(call["v"], before)
        call["v"] = before
        assert torch.equal(o, getattr(ops, name)(**call)[0])


def test_a_refused_pool_is_untouched_among_good_calls():
    """The plan of a good call is in the cache; a bad one of other shapes does not use it."""
    pool = torch.randn(4, HV, K, V)
    good = legal("fused_recurrent_kda")
    options = {"initial_state": pool, "state_indices": torch.tensor([2, 0])}
    ops.fused_recurrent_kda(**good, **options)
    before = pool.clone()
    for name in ("k", "v", "g", "beta"):
        with pytest.raises(ValueError, match=rf"{name} has shape"):
            ops.fused_recurrent_kda(**{**good, name: good[name][:, :3]}, **options)
    assert torch.equal(pool, before)
