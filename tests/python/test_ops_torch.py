"""The operators under torch's machinery: compile, export, opcheck, autocast, modes, threads."""

import threading

import pytest
import torch
from families import FAMILIES, error, make_inputs

import linattn
from linattn import ops

FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
FORMS = pytest.mark.parametrize("form", ["chunk", "recurrent"])


def leaves(inputs):
    return [t.clone().requires_grad_() for t in inputs]


@pytest.mark.slow
@FAMILY
def test_compile_fullgraph_with_gradients(family):
    torch._dynamo.reset()

    def loss(*inputs):
        o, ht = family.chunk(*inputs, output_final_state=True)
        return o.square().sum() + ht.sin().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for tokens in (20, 33, 40):  # a second length makes T symbolic
        plain, traced = leaves(make_inputs(family, tokens=tokens)), None
        loss(*plain).backward()
        traced = leaves(make_inputs(family, tokens=tokens))
        compiled(*traced).backward()
        for a, b in zip(traced, plain, strict=True):
            assert error(a.grad, b.grad) < 1e-6


@pytest.mark.slow
def test_compile_with_inductor():
    torch._dynamo.reset()
    family = FAMILIES["kda"]
    compiled = torch.compile(lambda *inputs: family.chunk(*inputs)[0] * 2, fullgraph=True)
    inputs = make_inputs(family, tokens=20)
    assert error(compiled(*inputs), 2 * family.chunk(*inputs)[0]) < 1e-6


@pytest.mark.slow
@FAMILY
def test_compile_decode_with_a_pool(family):
    torch._dynamo.reset()

    def step(pool, slots, *inputs):
        return family.recurrent(*inputs, initial_state=pool, state_indices=slots)[0]

    inputs = make_inputs(family, tokens=1)
    pool, slots = torch.randn(4, 2, 16, 16), torch.tensor([3, -1])
    ours = pool.clone()
    with torch.no_grad():
        o = torch.compile(step, fullgraph=True, backend="aot_eager")(ours, slots, *inputs)
        expected = step(pool, slots, *inputs)
    assert torch.equal(o, expected) and torch.equal(ours, pool)


@pytest.mark.slow
def test_compile_with_options():
    torch._dynamo.reset()
    inputs = make_inputs(FAMILIES["kda"], batch=1, tokens=70)
    cu_seqlens, h0 = torch.tensor([0, 30, 70]), torch.randn(2, 2, 16, 16)

    def call(cu_seqlens, h0, has, out, *inputs):
        return ops.chunk_kda(
            *inputs,
            initial_state=h0,
            has_initial_state=has,
            output_final_state=True,
            cu_seqlens=cu_seqlens,
            output_state_dtype=torch.bfloat16,
            scale=0.3,
            out=out,
        )

    args = (cu_seqlens, h0, torch.tensor([True, False]))
    out = torch.empty_like(inputs[2])
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    o, ht = compiled(*args, out, *inputs)
    o_ref, ht_ref = call(*args, torch.empty_like(out), *inputs)
    assert error(o, o_ref) < 1e-6 and error(out, o_ref) < 1e-6
    assert ht.dtype == torch.bfloat16 and error(ht, ht_ref) < 1e-6


@pytest.mark.slow
@FAMILY
def test_export(family):
    class Module(torch.nn.Module):
        def forward(self, *inputs):
            return family.chunk(*inputs, output_final_state=True)

    inputs = tuple(make_inputs(family, tokens=20))
    o, ht = torch.export.export(Module(), inputs).module()(*inputs)
    o_ref, ht_ref = family.chunk(*inputs, output_final_state=True)
    assert torch.equal(o, o_ref) and torch.equal(ht, ht_ref)


_KDA = (1, 1, 3, 0, 0, 1, 0.5, 0.0)  # family, form, gate, forms, flags, scale, lower_bound


@pytest.mark.slow
@pytest.mark.parametrize(("final_type", "rows"), [(torch.float32, -1), (None, 1)])
def test_opcheck_forward(final_type, rows):
    q, k, v, g, beta = leaves(make_inputs(FAMILIES["kda"], tokens=20, dim_k=8, dim_v=8))
    h0 = torch.randn(2, 2, 8, 8, requires_grad=True)
    args = (q, k, v, g, None, beta, None, None, h0, None, *_KDA, final_type, 0, rows)
    torch.library.opcheck(torch.ops.linattn.forward.default, args)


@pytest.mark.slow
def test_opcheck_pool_and_backward():
    q, k, v, g, beta = make_inputs(FAMILIES["kda"], tokens=20, dim_k=8, dim_v=8)
    inputs = (q, k, v, g, None, beta, None, None)
    pool, slots = torch.randn(5, 2, 8, 8), torch.tensor([3, 1])
    recurrent = (1, 2, *_KDA[2:])
    args = (*inputs, pool, None, slots, None, None, None, *recurrent, 0, 0, -1)
    torch.library.opcheck(torch.ops.linattn.forward_pool.default, args)
    needs = [True, True, True, True, True, False, False, True]
    h0 = torch.randn(2, 2, 8, 8)
    args = (*inputs, h0, None, torch.randn_like(v), torch.randn_like(h0), *_KDA, needs)
    torch.library.opcheck(torch.ops.linattn.backward.default, args)


@FAMILY
@FORMS
def test_autocast_casts_q_k_v(family, form):
    inputs = make_inputs(family, tokens=40)
    op = getattr(family, form)
    lowered = [t.bfloat16() for t in inputs[:3]] + inputs[3:]
    expected = op(*lowered, output_final_state=True)
    tracked = leaves(inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, ht = op(*tracked, output_final_state=True)
    assert o.dtype == torch.bfloat16 and ht.dtype == torch.float32
    assert torch.equal(o, expected[0]) and torch.equal(ht, expected[1])
    (o.float().sum() + ht.sum()).backward()
    assert all(t.grad.dtype == torch.float32 for t in tracked)
    with torch.autocast("cpu", enabled=False):
        assert op(*inputs)[0].dtype == torch.float32


@FAMILY
def test_inference_mode_and_parameters(family):
    inputs = make_inputs(family, tokens=5)
    expected = family.chunk(*inputs)[0]
    with torch.inference_mode():
        assert torch.equal(family.chunk(*inputs)[0], expected)
    parameters = [torch.nn.Parameter(t) for t in inputs]
    o = family.chunk(*parameters)[0]
    assert o.requires_grad and torch.equal(o.detach(), expected)
    with torch.no_grad():
        assert torch.equal(family.chunk(*parameters)[0], expected)


def test_decays_made_in_inference_mode_serve_training():
    q, k, v = make_inputs(FAMILIES["lightning"], heads_v=6, heads=2)
    with torch.inference_mode():
        ops.chunk_lightning_attn(q, k, v, 2, 9)
    o, _ = ops.chunk_lightning_attn(q.requires_grad_(), k, v, 2, 9)
    o.sum().backward()
    assert q.grad is not None


def test_profiler_sees_the_operator():
    inputs = make_inputs(FAMILIES["kda"], tokens=5)
    with torch.profiler.profile() as profile:
        ops.chunk_kda(*inputs)
    assert any(event.name == "linattn::forward" for event in profile.events())


def test_lazy_views_are_not_misread():
    inputs = make_inputs(FAMILIES["kda"], tokens=5)
    expected = ops.chunk_kda(-inputs[0], *inputs[1:])[0]
    lazily = torch._neg_view(inputs[0])
    assert torch.equal(ops.chunk_kda(lazily, *inputs[1:])[0], expected)
    shared = torch._lazy_clone(inputs[0]) if hasattr(torch, "_lazy_clone") else inputs[0].clone()
    assert torch.equal(ops.chunk_kda(shared, *inputs[1:])[0], ops.chunk_kda(*inputs)[0])


def test_meta_tensors_are_the_wrong_device():
    inputs = make_inputs(FAMILIES["kda"], tokens=5)
    on_meta = [t.to("meta") for t in inputs]
    for tensors in (on_meta, leaves(on_meta), [*inputs[:4], on_meta[4]]):
        with pytest.raises(TypeError, match="meta"):
            ops.chunk_kda(*tensors)


def test_fake_tensors_give_shapes():
    with torch._subclasses.FakeTensorMode():
        inputs = make_inputs(FAMILIES["kda"], tokens=5)
        o, ht = ops.chunk_kda(*inputs, output_final_state=True)
    assert o.shape == (2, 5, 2, 16) and ht.shape == (2, 2, 16, 16)


def test_threads_do_not_share_choices():
    inputs = make_inputs(FAMILIES["kda"], tokens=5)
    ops.chunk_kda(*inputs)
    seen, ready, leave = [], threading.Event(), threading.Event()

    def forced():
        with linattn.force("reference"):
            ready.set()
            leave.wait(10)
            ops.chunk_kda(*inputs)
            seen.append(linattn.last_implementation())

    thread = threading.Thread(target=forced)
    thread.start()
    ready.wait(10)
    default = linattn.explain("chunk_kda", *inputs).implementation
    ops.chunk_kda(*inputs)
    assert linattn.last_implementation() == default
    leave.set()
    thread.join()
    assert seen == ["reference"]


def test_many_threads_many_problems():
    family = FAMILIES["gdn"]
    problems = [make_inputs(family, tokens=n, seed=n) for n in range(1, 9)]
    expected = [family.chunk(*inputs)[0] for inputs in problems]
    failures = []

    def work():
        for _ in range(20):
            for inputs, o in zip(problems, expected, strict=True):
                if not torch.equal(family.chunk(*inputs)[0], o):
                    failures.append(inputs[0].shape)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_plan_cache_is_bounded(monkeypatch):
    from linattn import _call

    monkeypatch.setattr(_call, "_CAPACITY", 16)
    monkeypatch.setattr(_call, "_plans", {})
    for tokens in range(1, 60):
        ops.chunk_gla(*make_inputs(FAMILIES["gla"], batch=1, tokens=tokens))
        assert len(_call._plans) <= 16


def test_tensor_subclasses():
    class Tagged(torch.Tensor):
        pass

    inputs = make_inputs(FAMILIES["kda"], tokens=5)
    expected = ops.chunk_kda(*inputs)[0]
    o = ops.chunk_kda(inputs[0].as_subclass(Tagged), *inputs[1:])[0]
    assert torch.equal(o.as_subclass(torch.Tensor), expected)


def test_forward_mode_gradients_are_refused():
    q, *rest = make_inputs(FAMILIES["kda"], tokens=5)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(NotImplementedError, match="q has a tangent"):
            ops.chunk_kda(dual, *rest)
        ops.chunk_kda(q, *rest)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_is_a_loop():
    q, *rest = make_inputs(FAMILIES["kda"], tokens=5)
    mapped = torch.vmap(lambda x: ops.chunk_kda(x, *rest)[0])(torch.stack([q, 2 * q]))
    for o, x in zip(mapped, (q, 2 * q), strict=True):
        assert torch.equal(o, ops.chunk_kda(x, *rest)[0])


def test_functorch_gradients_are_refused():
    q, *rest = make_inputs(FAMILIES["kda"], tokens=5)
    with pytest.raises(RuntimeError, match=r"autograd\.Function"):
        torch.func.grad(lambda x: ops.chunk_kda(x, *rest)[0].sum())(q)


def test_threads_follow_torch(tmp_path):
    import os
    import subprocess
    import sys

    code = (
        "import torch, linattn; linattn.implementations(); torch.set_num_threads(1)\n"
        "from linattn import ops, _library; x = torch.zeros(1, 1, 1, 4)\n"
        "ops.chunk_gla(x, x, x, x); print(_library.library().linattn_get_num_threads())"
    )
    environment = {k: v for k, v in os.environ.items() if k != "LINATTN_NUM_THREADS"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert run.stdout.split() == ["1"]
