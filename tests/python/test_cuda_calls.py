"""What a call on a GPU may not do: wait, allocate, read device data, ask the driver for facts.

torch's profiler lists the CUDA calls of the host; graphs are replayed with other offsets and slots.
"""

import re

import pytest
import torch
from families import FAMILIES, error, make_inputs
from test_cuda_decode import REASON

import linattn
from linattn._library import library

pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

NAMES = sorted(FAMILIES)
FORBIDDEN = re.compile(
    "Malloc|Free|Alloc|Memcpy|Memset|Synchronize|HostRegister|GetAttribute|SetAttribute|"
    "GetProperties|GetDeviceProperties|Module|Library|Instantiate"
)


def host_calls(call) -> list[str]:
    """Names of the CUDA functions that the host calls inside `call`, in order."""
    from torch.profiler import ProfilerActivity, profile, record_function

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        with record_function("the call"):
            call()
        torch.cuda.synchronize()
    events = profiler.events()
    window = next(e.time_range for e in events if e.name == "the call")
    inside = [
        e
        for e in events
        if re.match(r"cuda[A-Z]|cu[A-Z]", e.name)
        and window.start <= e.time_range.start <= window.end
    ]
    return [e.name for e in sorted(inside, key=lambda e: e.time_range.start)]


def launches(names) -> int:
    return sum("Launch" in name for name in names)


def cuda_inputs(family, **sizes):
    return [t.cuda() for t in make_inputs(family, **sizes)]


def decode(family, dtype):
    inputs = cuda_inputs(family, batch=3, tokens=1, heads_v=4, dim_k=128, dim_v=128, dtype=dtype)
    pool = torch.randn(5, 4, 128, 128, device="cuda")
    slots = torch.tensor([4, -1, 1], device="cuda")
    return lambda: family.recurrent(*inputs, initial_state=pool, state_indices=slots)[0]


def packed(family, dtype):
    inputs = cuda_inputs(family, batch=1, tokens=300, heads_v=4, dim_k=64, dim_v=64, dtype=dtype)
    offsets = torch.tensor([0, 70, 70, 199, 290], device="cuda")
    return lambda: family.chunk(*inputs, cu_seqlens=offsets, output_final_state=True)[0]


def backward(family, dtype):
    inputs = cuda_inputs(family, batch=1, tokens=80, heads_v=4, dim_k=64, dim_v=64, dtype=dtype)
    leaves = [t.requires_grad_() for t in inputs]
    o = family.chunk(*leaves)[0]
    do = torch.randn_like(o)
    # Made on a thread of autograd; the window of the profiler is one of time.
    return lambda: torch.autograd.grad(o, leaves, do, retain_graph=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("make", [decode, packed, backward])
@pytest.mark.parametrize("name", NAMES)
def test_a_call_waits_for_nothing_and_allocates_nothing(name, make, dtype):
    call = make(FAMILIES[name], dtype)
    for _ in range(2):  # plans, and fills torch's cache of memory
        call()
    names = host_calls(call)
    assert launches(names) >= 1, names
    assert [n for n in names if FORBIDDEN.search(n)] == []


def test_the_list_would_show_it():
    x = torch.randn(1000, device="cuda")
    assert any("Memcpy" in name for name in host_calls(lambda: x[3].item()))
    assert any("Synchronize" in name for name in host_calls(torch.cuda.synchronize))
    torch.cuda.empty_cache()
    names = host_calls(lambda: torch.empty(2**28, device="cuda"))
    assert any("Malloc" in name or "Alloc" in name for name in names)
    for word in ("Memcpy", "Synchronize", "Malloc"):
        assert FORBIDDEN.search(f"cuda{word}")


def captured(call):
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_graph_replays_with_other_offsets_and_slots(name, dtype):
    family = FAMILIES[name]
    inputs = cuda_inputs(family, batch=1, tokens=200, heads_v=4, dim_k=64, dim_v=64, dtype=dtype)
    offsets = torch.tensor([0, 70, 130, 200], device="cuda")
    slots = torch.tensor([0, 1, 2], device="cuda")
    pool = torch.randn(6, 4, 64, 64, device="cuda")
    expected = pool.clone()

    def call(states):
        return family.chunk(*inputs, initial_state=states, cu_seqlens=offsets, state_indices=slots)[
            0
        ]

    graph, o = captured(lambda: call(pool))
    pool.copy_(expected)
    for lengths, rows in (
        ([0, 1, 1, 200], [5, 3, 0]),
        ([0, 64, 96, 97], [2, -1, 4]),
        ([0, 0, 0, 0], [1, 0, 2]),
        ([0, 199, 200, 200], [-1, 6, 9]),
    ):
        offsets.copy_(torch.tensor(lengths))
        slots.copy_(torch.tensor(rows))
        graph.replay()
        wanted = call(expected)
        assert torch.equal(o, wanted) and torch.equal(pool, expected)
        assert not o[:, lengths[-1] :].any()


@pytest.mark.parametrize("name", NAMES)
def test_a_training_step_in_a_graph(name):
    family = FAMILIES[name]
    inputs = cuda_inputs(family, batch=1, tokens=80, dim_k=64, dim_v=64, dtype=torch.bfloat16)
    leaves = [t.requires_grad_() for t in inputs]

    def step():
        o, state = family.chunk(*leaves, output_final_state=True)
        return torch.autograd.grad(o.float().square().sum() + state.square().sum(), leaves)

    # Autograd goes back on the stream of the forward pass: that of the capture, not the default.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gradients = step()
    graph.replay()
    for got, wanted in zip(gradients, step(), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_batch_invariance_of_chunks(name):
    """Alone there are so few chains that the scan would take other sums than in a batch."""
    family = FAMILIES[name]
    inputs = cuda_inputs(family, batch=24, tokens=70, heads=8, dim_k=64, dim_v=64,
                         dtype=torch.bfloat16)  # fmt: skip
    options = {"output_final_state": True, "batch_invariant": True}
    with linattn.force("cuda_portable"):
        together = family.chunk(*inputs, **options)
        for row in (0, 23):
            alone = family.chunk(*[t[row : row + 1] for t in inputs], **options)
            assert all(
                torch.equal(a, b[row : row + 1]) for a, b in zip(alone, together, strict=True)
            )


@pytest.fixture
def debug_checks():
    library().linattn_set_debug_checks(1)
    yield
    library().linattn_set_debug_checks(0)


def test_debug_checks_name_what_is_wrong_on_the_device(debug_checks):
    family = FAMILIES["kda"]
    inputs = cuda_inputs(family, batch=1, tokens=6, dim_k=64, dim_v=64)
    offsets = torch.tensor([0, 4, 2, 6], device="cuda")
    with pytest.raises(ValueError, match=r"cu_seqlens\[2\] is 2; allowed: at least"):
        family.chunk(*inputs, cu_seqlens=offsets)
    with pytest.raises(ValueError, match=r"cu_seqlens\[1\] is 7; allowed: at most T = 6"):
        family.chunk(*inputs, cu_seqlens=torch.tensor([0, 7], dtype=torch.int32, device="cuda"))
    inputs[3][0, 3, 1, 5] = float("nan")
    with pytest.raises(ValueError, match=r"g\[0,3,1\] is NaN"):
        family.recurrent(*inputs)
    step = cuda_inputs(family, batch=3, tokens=1, dim_k=64, dim_v=64)
    pool = torch.zeros(4, 2, 64, 64, device="cuda")
    slots = torch.tensor([2, -1, 2], device="cuda")
    with pytest.raises(ValueError, match="state_indices sends sequences 0 and 2 to slot 2"):
        family.recurrent(*step, initial_state=pool, state_indices=slots)
    assert not pool.any()
    good = family.recurrent(*step, initial_state=pool, state_indices=slots.new_tensor([2, -1, 1]))
    assert torch.isfinite(good[0]).all() and pool[2].any() and not pool[3].any()


def test_debug_checks_refuse_a_captured_call(debug_checks):
    call = decode(FAMILIES["kda"], torch.bfloat16)
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(ValueError, match="stream is being captured"):
        call()


def test_bad_offsets_without_checks_stay_inside_the_tensors():
    """Nobody has looked at them: the result is undefined, the memory around is not touched."""
    family = FAMILIES["gdn"]
    inputs = cuda_inputs(family, batch=1, tokens=64, dim_k=64, dim_v=64, dtype=torch.bfloat16)
    guarded = torch.full((3, 64, 2, 64), 7.0, dtype=torch.bfloat16, device="cuda")
    bad = torch.tensor([0, 9000, -5, 70], device="cuda")
    family.chunk(*inputs, cu_seqlens=bad, out=guarded[1:2])
    torch.cuda.synchronize()
    assert (guarded[0] == 7).all() and (guarded[2] == 7).all()
    good = family.chunk(*inputs)[0]
    assert error(family.chunk(*inputs, cu_seqlens=bad.new_tensor([0, 64]))[0], good) < 1e-6
