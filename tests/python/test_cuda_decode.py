"""Recurrent operators on CUDA tensors: against the oracle, pools, graphs, streams and devices."""

import pytest
import torch
from families import FAMILIES, error, make_inputs

import linattn
from linattn import ops


def _why_not() -> str | None:
    if not torch.cuda.is_available():
        return "no CUDA device"
    entries = linattn.implementations("fused_recurrent_kda", "cuda")["recurrent_forward"]["cuda"]
    if not any(entry.available for entry in entries):
        return "; ".join(entry.reason for entry in entries) or "this build has no CUDA kernels"
    return None


REASON = _why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 6e-3}
NAMES = sorted(FAMILIES)


def on_gpu(tensors):
    return [t.cuda() for t in tensors]


@pytest.mark.parametrize("state_v_first", [False, True])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_equals_the_oracle(name, dtype, state_v_first):
    family = FAMILIES[name]
    for tokens, dim_k, dim_v in [(1, 128, 128), (5, 128, 128), (3, 64, 96), (2, 100, 36)]:
        inputs = make_inputs(family, 3, tokens, 2, 4, dim_k, dim_v, dtype)
        states = (dim_v, dim_k) if state_v_first else (dim_k, dim_v)
        h0 = torch.randn(3, 4, *states, generator=torch.Generator().manual_seed(1))
        options = {"output_final_state": True, "state_v_first": state_v_first}
        with linattn.force("reference"):
            o, ht = family.recurrent(*inputs, initial_state=h0, **options)
        with linattn.force("cuda_portable"):
            got, got_ht = family.recurrent(*on_gpu(inputs), initial_state=h0.cuda(), **options)
        assert linattn.last_implementation() == "cuda_portable"
        assert error(got.cpu(), o) < TOLERANCE[dtype]
        assert error(got_ht.cpu(), ht) < 1e-5


def decode_inputs(rows, dtype=torch.bfloat16):
    return on_gpu(make_inputs(FAMILIES["kda"], rows, 1, 2, 4, 128, 128, dtype))


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_dead_rows_touch_nothing(state):
    inputs = decode_inputs(6)
    pool = torch.randn(9, 4, 128, 128, device="cuda").to(state)
    pool[[0, 4, 8]] = float("nan")  # nobody's
    indices = torch.tensor([7, -1, 2, 9, 5, -3], device="cuda")
    before = pool.clone()
    o, same = ops.fused_recurrent_kda(
        *inputs, initial_state=pool, state_indices=indices, null_state_index=5, state_v_first=True
    )
    assert same is None or same is pool
    live = [0, 2]
    assert torch.isfinite(o).all() and o[live].abs().amax(dim=(1, 2, 3)).min() > 0
    assert not o[[1, 3, 4, 5]].any()
    kept = [slot for slot in range(9) if slot not in (7, 2)]
    assert torch.equal(pool[kept].view(torch.uint8), before[kept].view(torch.uint8))
    for row, slot in ((0, 7), (2, 2)):
        alone, ht = ops.fused_recurrent_kda(
            *[t[row : row + 1] for t in inputs],
            initial_state=before[slot : slot + 1],
            output_final_state=True,
            output_state_dtype=state,
            state_v_first=True,
        )
        assert torch.equal(o[row], alone[0]) and torch.equal(pool[slot], ht[0])


def test_graph_replays_with_other_indices():
    inputs = decode_inputs(4)
    pool = torch.randn(8, 4, 128, 128, device="cuda")
    expected = pool.clone()
    indices = torch.tensor([0, 1, 2, 3], device="cuda")

    def step(states, slots):
        return ops.fused_recurrent_kda(
            *inputs, initial_state=states, state_indices=slots, state_v_first=True
        )[0]

    step(pool.clone(), indices)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = step(pool, indices)
    for slots in ([5, 3, 1, 7], [6, -1, 0, 2], [-1, -1, -1, -1]):
        indices.copy_(torch.tensor(slots))
        graph.replay()
        wanted = step(expected, indices)
        assert torch.equal(o, wanted) and torch.equal(pool, expected)


def test_speculative_columns():
    tokens, rows = 4, 3
    inputs = on_gpu(make_inputs(FAMILIES["gdn"], rows, tokens, 2, 4, 128, 128, torch.bfloat16))
    pool = torch.randn(16, 4, 128, 128, device="cuda")
    before = pool.clone()
    columns = torch.tensor([[3, 1, 4, 15], [9, 2, 6, 5], [-1, 7, 8, 0]], device="cuda")
    accepted = torch.tensor([2, 4, 1], device="cuda")
    o = FAMILIES["gdn"].recurrent(
        *inputs, initial_state=pool, state_indices=columns, num_accepted_tokens=accepted
    )[0]
    assert not o[2].any()  # its first column is dead
    for row, start in ((0, 1), (1, 5)):
        state = before[start : start + 1]
        for t in range(tokens):
            step = [x[row : row + 1, t : t + 1] for x in inputs]
            wanted, state = FAMILIES["gdn"].recurrent(
                *step, initial_state=state, output_final_state=True
            )
            assert error(o[row, t], wanted[0, 0]) < 1e-6
            assert error(pool[columns[row, t]], state[0]) < 1e-6


def test_slices_of_a_fused_projection_and_rows_nobody_owns():
    fused = torch.randn(1, 6, 2, 3 * 128, device="cuda", dtype=torch.bfloat16)
    q, k, v = fused.split(128, dim=-1)
    g, beta = -torch.rand(1, 6, 2, 128, device="cuda"), torch.rand(1, 6, 2, device="cuda")
    offsets = torch.tensor([0, 2, 2, 5], dtype=torch.int32, device="cuda")
    options = {"use_qk_l2norm_in_kernel": True, "output_final_state": True}
    o, ht = ops.fused_recurrent_kda(q, k, v, g, beta, cu_seqlens=offsets, **options)
    contiguous = [t.contiguous() for t in (q, k, v, g, beta)]
    for t in contiguous:
        t[:, 5:] = float("nan")
    clean, clean_ht = ops.fused_recurrent_kda(*contiguous, cu_seqlens=offsets, **options)
    assert torch.equal(o, clean) and torch.equal(ht, clean_ht)
    assert not o[:, 5:].any() and not ht[1].any()


def test_side_stream():
    inputs = decode_inputs(4, torch.float32)
    wanted = ops.fused_recurrent_kda(*inputs)[0]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        late = inputs[2] * 2  # only this stream's order makes it ready
        o = ops.fused_recurrent_kda(*inputs[:2], late, *inputs[3:])[0]
    stream.synchronize()
    assert error(o, 2 * wanted) < 1e-6


def test_device_that_is_not_current():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    inputs = [t.to("cuda:1") for t in make_inputs(FAMILIES["kda"], 2, 1, 2, 4, 128, 128)]
    with torch.cuda.device(0):
        o = ops.fused_recurrent_kda(*inputs)[0]
    assert o.device == inputs[0].device
    assert torch.equal(o.cpu(), ops.fused_recurrent_kda(*[t.to("cuda:0") for t in inputs])[0].cpu())


def test_mixed_devices_are_refused():
    inputs = decode_inputs(2)
    with pytest.raises(TypeError, match="k is on cpu"):
        ops.fused_recurrent_kda(inputs[0], inputs[1].cpu(), *inputs[2:])
