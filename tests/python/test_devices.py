"""Which device and stream a call uses. The tests need one or two GPUs, and say so where none is."""

import pytest
import torch
from families import FAMILIES, error, make_inputs

import linattn
from linattn import ops

GPUS = torch.cuda.device_count()
CUDA_BUILD = any(
    entry.available and entry.name
    for lists in linattn.implementations(device="cuda").values()
    for entry in lists["cuda"]
)


def needs(gpus):
    if gpus > GPUS:
        return pytest.mark.skip(reason=f"needs {gpus} GPUs; torch sees {GPUS}")
    return pytest.mark.skipif(not CUDA_BUILD, reason="no CUDA implementation is available here")


FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def decode(family, inputs, device):
    """A decode step from slots on a device; the family's inputs are on the CPU."""
    pool = torch.randn(5, 2, 64, 64, generator=torch.Generator().manual_seed(1)).to(device)
    slots = torch.tensor([4, 1], device=device)
    moved = [t.to(device) for t in inputs]
    o, _ = family.recurrent(*moved, initial_state=pool, state_indices=slots)
    return o, pool


def check_decode(family, device):
    inputs = make_inputs(family, batch=2, tokens=1, dim_k=64, dim_v=64)
    o, pool = decode(family, inputs, device)
    assert o.device == pool.device == torch.device(device)
    assert linattn.last_implementation().startswith("cuda")
    o_ref, pool_ref = decode(family, inputs, "cpu")
    assert linattn.last_implementation() == "cpu"
    assert error(o.cpu(), o_ref) < 1e-5 and error(pool.cpu(), pool_ref) < 1e-5


@needs(1)
@FAMILY
def test_one_gpu(family):
    check_decode(family, "cuda:0")


@needs(2)
@FAMILY
def test_the_second_gpu_while_the_first_is_current(family):
    with torch.cuda.device(0):
        check_decode(family, "cuda:1")
        assert torch.cuda.current_device() == 0


def forward_and_gradients(family, inputs, device):
    leaves = [t.to(device).requires_grad_() for t in inputs]
    o, state = family.chunk(*leaves, output_final_state=True)
    gradients = torch.autograd.grad(o.square().sum() + state.square().sum(), leaves)
    return [o, state, *gradients]


@needs(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@FAMILY
def test_chunks_and_gradients_on_the_second_gpu_while_the_first_is_current(family, dtype):
    inputs = make_inputs(family, batch=2, tokens=70, dim_k=64, dim_v=64, dtype=dtype)
    wanted = forward_and_gradients(family, inputs, "cuda:0")
    with torch.cuda.device(0):
        found = forward_and_gradients(family, inputs, "cuda:1")
        assert torch.cuda.current_device() == 0
    assert linattn.last_implementation().startswith("cuda")
    for a, b in zip(found, wanted, strict=True):
        assert a.device == torch.device("cuda:1")
        assert torch.equal(a.cpu(), b.cpu())


@needs(2)
def test_two_gpus_at_once():
    """Calls of both devices in turns, none waited for: each has its own kernels and streams."""
    family = FAMILIES["kda"]
    inputs = make_inputs(family, batch=2, tokens=70, dim_k=64, dim_v=64, dtype=torch.bfloat16)
    there = {device: [t.to(device) for t in inputs] for device in ("cuda:0", "cuda:1")}
    found = [family.chunk(*there[f"cuda:{i % 2}"])[0] for i in range(10)]
    assert all(torch.equal(o.cpu(), found[0].cpu()) for o in found)


@needs(2)
def test_tensors_of_two_gpus():
    q, k, v, g, beta = (t.to("cuda:0") for t in make_inputs(FAMILIES["kda"], tokens=1))
    with pytest.raises(TypeError, match=r"k is on cuda:1; every tensor must be on cuda:0"):
        ops.fused_recurrent_kda(q, k.to("cuda:1"), v, g, beta)


@needs(1)
def test_tensors_of_cpu_and_gpu():
    q, k, v, g, beta = make_inputs(FAMILIES["kda"], tokens=1)
    with pytest.raises(TypeError, match=r"k is on cuda:0; every tensor must be on cpu"):
        ops.fused_recurrent_kda(q, k.to("cuda"), v, g, beta)


@needs(1)
@FAMILY
def test_the_current_stream(family):
    """The inputs are made on a side stream behind a long wait: another stream would read zeros."""
    inputs = make_inputs(family, batch=2, tokens=1, dim_k=64, dim_v=64)
    o_ref, _ = decode(family, inputs, "cuda")
    torch.cuda.synchronize()
    pool = torch.randn(5, 2, 64, 64, generator=torch.Generator().manual_seed(1)).cuda()
    slots = torch.tensor([4, 1], device="cuda")
    late = [torch.zeros_like(t, device="cuda") for t in inputs]
    ready = [t.cuda() for t in inputs]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)
        for t, source in zip(late, ready, strict=True):
            t.copy_(source)
        o, _ = family.recurrent(*late, initial_state=pool, state_indices=slots)
    torch.cuda.synchronize()
    assert torch.equal(o, o_ref)
