"""`linattn bench`: plain torch versions that are right, counts and tables as they claim."""

from __future__ import annotations

import csv
import math
import re
import sys
from dataclasses import replace

import pytest
import torch

from linattn.bench import peers, torch_chunked
from linattn.bench.goals import H200_MS, cpu_goals, cuda_goals
from linattn.bench.measure import Measurement, Options, measure
from linattn.bench.ours import (
    HostMemory,
    TorchMemory,
    operator,
    operator_arguments,
    torch_inputs,
)
from linattn.bench.plots import plot
from linattn.bench.timing import Roof, cpu_roof, short_kernel_name
from linattn.bench.workloads import (
    Workload,
    cpu_workloads,
    cuda_workloads,
    flops_per_token_head,
    lengths_text,
    small,
)
from linattn.cli import bench as bench_command
from linattn.cli import main, make_parser
from linattn.testing import Case, device_of, error, make_inputs, reference
from linattn.testing.cases import FAMILIES
from linattn.testing.native import Plan, pack_args, pack_problem

ROOF = Roof(20e9, 100e9, "torch.mm fp32 2048^3", 2)


def tensors(inputs):
    return {name: torch.from_numpy(values.copy()) for name, values in inputs.items()}


@pytest.mark.parametrize("gates", ["mild", "minus_5"])
@pytest.mark.parametrize("family", FAMILIES)
def test_plain_chunked_forward_is_right(family, gates):
    case = Case(family, batch=2, tokens=150, heads=2, heads_v=4, dim_k=32, dim_v=24, gates=gates)
    inputs = make_inputs(case)
    expected = reference(case, inputs)
    o, state = torch_chunked.chunk_forward(**tensors(inputs))
    assert error(o.numpy(), expected["o"]) < 2e-6
    assert error(state.numpy(), expected["final_state"]) < 2e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_chunked_gradients_are_right(family):
    case = Case(family, direction="backward", tokens=130, dim_k=16, dim_v=24, dht=False)
    inputs = make_inputs(case)
    expected = reference(case, inputs)
    leaves = tensors(inputs)
    do = leaves.pop("do_")
    wanted = {n: x.requires_grad_() for n, x in leaves.items() if n != "g_gamma"}
    o, _ = torch_chunked.chunk_forward(**leaves)
    names = {"q": "dq", "k": "dk", "v": "dv", "g": "dg", "beta": "dbeta", "initial_state": "dh0"}
    for name, got in zip(wanted, torch.autograd.grad(o, list(wanted.values()), do), strict=True):
        assert error(got.numpy(), expected[names[name]]) < 2e-5, name


@pytest.mark.parametrize("step_of", ["decode_step", "decode_step_inplace"])
@pytest.mark.parametrize("family", FAMILIES)
def test_plain_decode_is_right(family, step_of):
    case = Case(family, "recurrent", batch=5, tokens=1, heads=2, heads_v=4, dim_v=24)
    inputs = make_inputs(case)
    expected = reference(case, inputs)
    own = tensors(inputs)
    state, gamma = own.pop("initial_state"), own.pop("g_gamma", None)
    step = {name: x[:, 0] for name, x in own.items()}
    if gamma is not None:
        step["g"] = gamma.expand(5, -1)
    o = getattr(torch_chunked, step_of)(state, **step)
    assert error(o[:, None].numpy(), expected["o"]) < 2e-6
    assert error(state.numpy(), expected["final_state"]) < 2e-6


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", ["chunk", "recurrent"])
def test_the_timed_operator_computes_the_timed_case(family, form):
    """The operator call and the planned call of a row are the same work on the same inputs."""
    case = Case(family, form, tokens=3, heads=4, dim_k=16, dim_v=24)
    inputs = make_inputs(case)
    arguments = operator_arguments(case, torch_inputs(case, inputs, "cpu"))
    o, state = operator(case)(**arguments, output_final_state=True)
    expected = reference(case, inputs)
    assert error(o.numpy(), expected["o"]) < 1e-5
    assert error(state.numpy(), expected["final_state"]) < 1e-5


def test_work_is_counted_as_stated():
    by_family = {w.case.family: w for w in cpu_workloads() if w.kind == "chunk"}
    for family, workload in by_family.items():
        delta = family in ("kda", "gdn", "delta")
        assert flops_per_token_head(workload.case) == (131072 if delta else 81920)
        assert workload.flops == flops_per_token_head(workload.case) * 4096 * 8
    # q, k, v, o of 16 bits, g of 32, beta of 32, and the final state
    case = by_family["kda"].case
    elements = 4096 * 8 * 128
    assert by_family["kda"].bytes == 4 * 2 * elements + 4 * elements + 4096 * 8 * 4 + 8 * 128**2 * 4
    assert case.dtype == "bf16"
    decode = next(w for w in cpu_workloads(("delta",)) if w.kind == "decode")
    state = 64 * 32 * 128 * 128 * 4
    assert 2 * state < decode.bytes < 2.1 * state


def test_cuda_work_is_counted_as_stated():
    work = {w.name: w for w in cuda_workloads()}
    assert len(work) == len(list(cuda_workloads())), "two workloads have one name"
    assert all(w.case.dtype == "bf16" for w in work.values())
    assert set(H200_MS) <= set(work)
    # docs/kernels/decode.md: q, k, v, o, beta and one slot index besides the states
    assert work["kda decode fp32 VK N=256 HV=128"].bytes == pytest.approx(4337042944, rel=1e-3)
    state = 256 * 128 * 128 * 128 * 4
    for tokens in (2, 4, 8):
        last = work[f"kda {tokens} tokens fp32 VK N=256 HV=128, last state"]
        every = work[f"kda {tokens} tokens fp32 VK N=256 HV=128, every state"]
        assert 2 * state < last.bytes < 2.2 * state
        assert every.bytes - last.bytes == pytest.approx((tokens - 1) * state, rel=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_cuda_workloads_compute_the_same_by_plan_operator_and_torch(family):
    """The rows of a CUDA run in miniature, on the CPU: planned call, operator and plain torch."""
    for workload in cuda_workloads((family,)):
        case = workload.case
        heads = min(case.heads, 2)
        own = {"tokens": min(case.tokens, 70), "batch": min(case.batch, 3), "heads": heads}
        own |= {"heads_v": heads * (case.value_heads // case.heads), "dim_k": 16, "dim_v": 16}
        own["lengths"] = tuple(min(n, 70) for n in case.lengths[:3])
        workload = replace(workload, case=replace(case, **own))
        case = workload.case
        plan = Plan(pack_problem(case, device_of("cpu"), "cpu"), device_of("cpu"))
        host = HostMemory(workload, plan.workspace_bytes)
        memory = TorchMemory(workload, plan.workspace_bytes, "cpu")
        for name, expected in host.tensors().items():
            assert torch.equal(memory.inputs[name], expected), name
        if case.direction == "backward":
            continue
        arguments = operator_arguments(case, host.tensors())
        call = peers.PEERS["torch"]
        o, _ = operator(case)(**arguments, output_final_state=True)
        plan.run(pack_args(memory.addresses, memory.workspace))
        assert error(memory.blocks["o"].float().numpy(), o.float().numpy()) < 1e-6
        try:
            plain = call(case, host.tensors())()
        except peers.Unavailable:
            continue
        plain = plain if case.form == "recurrent" else plain[0]
        assert error(plain.float().reshape(o.shape).numpy(), o.float().numpy()) < 6e-3


def test_prefill_rows_are_the_published_ones():
    rows = {w.name: w.case for w in cuda_workloads(("gdn",)) if w.kind == "prefill"}
    assert len(rows) == 30
    packed = rows["gdn prefill T=1024+7168 H=16 HV=32 mixed"]
    assert packed.sequence_lengths == (1024, 7168) and packed.axis_tokens == 8192
    assert rows["gdn prefill T=4x8192 H=16 HV=64 decaying"].sequence_lengths == (8192,) * 4
    for name in ("gdn prefill T=2048 H=2 HV=8 mixed", "gdn prefill T=2048 H=2 HV=8 decaying"):
        workload = Workload(name, "prefill", replace(rows[name], tokens=64, dim_k=16, dim_v=16))
        g = HostMemory(workload, 0).inputs["g"]
        still = (g == 0).all(axis=(0, 1))
        assert still.sum() == (2 if "mixed" in name else 0)
        assert (g[:, :, ~still] < 0).all() and g.min() > -1


def test_prefill_rows_of_kda():
    rows = {w.name: w.case for w in cuda_workloads(("kda",)) if w.kind == "prefill"}
    assert len(rows) == 24
    packed = rows["kda prefill T=1300+547+2048+963+271+3063 H=96 mild"]
    assert packed.axis_tokens == 8192 and packed.num_sequences == 6
    batch = rows["kda prefill T=2x8192 H=64 mild"]
    assert batch.batch == 2 and not batch.varlen
    kept = rows["kda prefill T=2048 H=12 kept"]
    assert kept.gate_form == "bounded" and kept.safe_gate and kept.beta_form == "sigmoid"
    small_one = replace(kept, tokens=64, dim_k=16, dim_v=16)
    inputs = HostMemory(Workload("kda prefill", "prefill", small_one), 0).inputs
    assert inputs["g"].max() < -3


def test_cuda_goals():
    done = [Measurement(w, "cuda_portable", 1e-3, 20e-6) for w in cuda_workloads(("kda",))]
    goals = {goal.what: goal for goal in cuda_goals(done, "NVIDIA H200")}
    assert goals["chunk T=8192 H=96"].met and goals["chunk T=8192 H=96"].reach == "<= 2.6 ms"
    assert not goals["decode bf16 VK N=256 HV=128"].met
    assert not goals["host, a call through torch"].met
    assert len(goals) == 2 + sum(name.startswith("kda ") for name in H200_MS)
    assert len(list(cuda_goals(done, "another card"))) == 2


def test_kernel_names_are_short():
    signature = "void linattn::cuda::chunk_scan_portable<true, 128>(linattn::cuda::ChunkParams)"
    assert short_kernel_name(signature) == "chunk_scan_portable"
    assert short_kernel_name("Memset (Device)") == "Memset"


def test_goals_follow_from_the_times():
    made = []
    seconds = {"chunk": 0.1, "backward": 0.3, "long": 0.02, "decode": 0.02, "call": 1e-6}
    for workload in cpu_workloads(("kda",)):
        time = seconds[workload.kind]
        made.append(Measurement(workload, "cpu", time, time + 9e-6, peers_s={"torch": 6 * time}))
    goals = {goal.what: goal for goal in cpu_goals(made, ROOF)}
    chunk = next(m for m in made if m.workload.kind == "chunk")
    share = goals["chunk fp32, of torch.mm fp32 2048^3"]
    assert share.value == pytest.approx(100 * chunk.workload.flops / 0.1 / 100e9)
    assert not share.met and share.reach == ">= 50 %"
    assert goals["chunk backward, time of forward's"].value == pytest.approx(3)
    assert goals["chunk backward, time of forward's"].met
    assert goals["one head, of cores x rate of a core"].value == pytest.approx(0.1 / 8 / 0.02)
    assert not goals["one head, of cores x rate of a core"].met
    assert goals["chunk fp32, over plain torch"].value == pytest.approx(6)
    one_head = "one head, of cores x rate of a core"
    assert one_head not in {goal.what for goal in cpu_goals(made, ROOF, wall=False)}
    assert goals["Python and torch around a call"].value == pytest.approx(9)
    decode = next(m for m in made if m.workload.kind == "decode")
    share = 100 * decode.workload.bytes / 0.02 / 20e9
    assert goals["decode fp32, of copy bandwidth"].value == pytest.approx(share)


def test_peers_that_cannot_run_say_why():
    workload = small(next(cpu_workloads(("kda",))))
    result = measure(workload, device_of("cpu"), Options(tuple(peers.PEERS), seconds=0.0))
    assert set(result.peers_s) == {"torch"}
    assert set(result.absent) == set(peers.PEERS) - {"torch"}
    assert all(result.absent.values())
    assert result.kernel_s > 0 and result.call_s > 0 and result.implementation


def test_a_forced_implementation_that_refuses_is_reported():
    case = Case("kda", tokens=8, dim_k=16, dim_v=16)
    with pytest.raises(ValueError, match="none_such"):
        measure(Workload("x", "chunk", case), device_of("cpu"), Options(implementation="none_such"))


def test_roof_is_measured():
    roof = cpu_roof(0.0)
    assert 1e8 < roof.bytes_per_s < 1e13 and 1e9 < roof.flops_per_s < 1e15
    assert roof.floor(roof.flops_per_s, 0) == 1 and roof.floor(0, 2 * roof.bytes_per_s) == 2


def test_command_writes_table_csv_and_plot(tmp_path, capsys):
    table, picture = tmp_path / "times.csv", tmp_path / "times.png"
    what = ["--small", "--op", "gla", "--kind", "chunk", "--seconds", "0"]
    files = ["--csv", str(table), "--plot", str(picture)]
    status = main(["bench", *what, "--against", "torch,fla", *files])
    text = capsys.readouterr().out
    assert status == 0 and "x over torch" in text and "fla: " in text
    rows = list(csv.DictReader(table.open()))
    assert {row["who"] for row in rows} == {"linattn kernel", "linattn call", "torch"}
    assert all(float(row["seconds"]) > 0 and row["machine"] and row["build"] for row in rows)
    assert picture.stat().st_size > 10_000
    with pytest.raises(SystemExit):
        main(["bench", "--against", "nobody"])
    assert "allowed: fla" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["cuda", "cuda:63"])
def test_a_missing_gpu_is_named(device, capsys):
    index = device_of(device).index
    if torch.cuda.device_count() > index:
        pytest.skip(f"{device} is here")
    assert main(["bench", "--small", "--device", device]) == 2
    error_text = capsys.readouterr().err
    assert f"--device is cuda:{index}; torch sees" in error_text and error_text.count("\n") == 1


def test_small_rows_state_the_sizes_that_ran(capsys):
    for workload in map(small, [*cpu_workloads(), *cuda_workloads()]):
        stated = dict(re.findall(r"\b(T|N)=(\d+)", workload.name))
        case = workload.case
        ran = {"T": case.tokens, "N": case.num_sequences}
        if case.varlen or (case.batch > 1 and case.form == "chunk"):
            assert f" T={lengths_text(case)} " in workload.name and sum(case.lengths) <= 256
            continue
        assert stated and all(int(n) == ran[axis] for axis, n in stated.items()), workload.name
    what = ["--op", "lightning", "--kind", "chunk", "--seconds", "0"]
    assert main(["bench", "--small", *what]) == 0
    text = capsys.readouterr().out
    assert "T=256 H=8 (small)" in text and "T=4096" not in text and "of floor" not in text


def test_small_rows_are_work_of_their_own():
    rows = [small(w) for w in cuda_workloads()]
    by_name = {w.name: w for w in rows}
    assert all(by_name[w.name] == w for w in rows), "two rows of one name differ"
    assert len(by_name) < len(rows)  # so the command drops the repeated ones


def test_full_rows_state_their_share_of_the_floor():
    options = make_parser().parse_args(["bench", "--against", "torch"])
    done = Measurement(next(cpu_workloads()), "cpu", 1.0, 1.0)
    refused = Measurement(next(cpu_workloads()), refused="no")
    for given, share in ((options, 1), (make_parser().parse_args(["bench", "--small"]), 0)):
        columns = bench_command.columns_of(given)
        assert columns.count("of floor") == share
        for m in (done, refused):
            assert len(bench_command.row_of(m, ROOF, given)) == len(columns)


def test_a_plot_without_matplotlib_is_refused_before_anything_is_timed(monkeypatch, capsys):
    def never(*_):
        raise AssertionError("timed")

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in ("cpu_roof", "measure"):
        monkeypatch.setattr(bench_command, name, never)
    assert main(["bench", "--small", "--plot", "x.png"]) == 2
    text = capsys.readouterr().err
    assert "matplotlib" in text and "extra `cli`" in text and text.count("\n") == 1


def test_the_command_is_kept_without_its_files():
    arguments = ["bench", "--csv", "a/b.csv", "--kind", "chunk", "--plot=c.png", "--kernels"]
    assert bench_command._command(arguments) == "linattn bench --kind chunk --kernels"


def test_plot_of_nothing_does_not_fail(tmp_path):
    refused = Measurement(next(cpu_workloads()), refused="no")
    plot(tmp_path / "empty.png", [refused], ROOF, "nothing")
    assert math.isnan(refused.kernel_s)
