"""What a call costs besides the kernel. The bound is loose: goal and measure stand in the docs."""

import ctypes
import timeit

import torch

from linattn import _call, ops


def overhead_us(call, monkeypatch) -> float:
    """Best microseconds of a call whose crossing into the library does nothing."""
    call()
    nothing = ctypes.CDLL(None).memcmp  # compares no bytes: the stream, here null, is their count
    nothing.restype = ctypes.c_int32
    nothing.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    for plan in _call._plans.values():
        monkeypatch.setattr(plan, "run", nothing)
    return min(timeit.repeat(call, number=50, repeat=200)) / 50 * 1e6


def decode():
    q, k, v, g = torch.randn(4, 1, 1, 1, 64).unbind(0)
    beta, pool = torch.rand(1, 1, 1), torch.zeros(4, 1, 64, 64)
    A_log, dt_bias, slots = torch.zeros(1), torch.zeros(64), torch.zeros(1, dtype=torch.int32)

    def call():
        return ops.fused_recurrent_kda(
            q,
            k,
            v,
            g,
            beta,
            A_log,
            dt_bias,
            initial_state=pool,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            state_indices=slots,
        )

    return call


def test_decode_call_is_thin(monkeypatch):
    with torch.no_grad():
        assert overhead_us(decode(), monkeypatch) < 60  # goal 10 to 15; other work may run beside


def test_cached_call_does_not_plan(monkeypatch):
    call = decode()
    call()

    def fail(*args):
        raise AssertionError("planned again")

    monkeypatch.setattr(_call, "Plan", fail)
    call()
