"""``flash_kda``: the KDA forward pass with norm, bounded gate and beta's sigmoid inside."""

from __future__ import annotations

import torch
from torch import Tensor

from .._explain import workspace_of
from ..ops.kda import chunk_kda
from ._shared import STATE_TYPES, check_room, count_sequences, need_tensors

__all__ = ["fwd", "get_workspace_size"]


def fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    out: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    lower_bound: float,
    initial_state: Tensor | None = None,
    final_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> None:
    """KDA of raw inputs, written into ``out`` and, where given, ``final_state``.

    Args:
        q, k: ``[B,T,H,K]``; normalised inside.
        v, out: ``[B,T,HV,V]``.
        g: ``[B,T,HV,K]`` gate inputs: the log decay is
            ``lower_bound * sigmoid(exp(A_log) (g + dt_bias))``.
        beta: ``[B,T,HV]`` logits.
        A_log: ``[HV]`` fp32. dt_bias: ``[HV,K]``.
        lower_bound: in ``[-5, 0)``.
        initial_state, final_state: ``[N,HV,V,K]``; fp32, bf16 or fp16.
        cu_seqlens: ``[N+1]``.

    The state is carried in fp32, also where it comes and goes as bf16. Forward only: raises
    ``RuntimeError`` where an input requires a gradient.
    """
    need_tensors(q=q, v=v, out=out)
    if final_state is not None and v.dim() == 4 and q.dim() == 4:
        count = count_sequences(q, cu_seqlens)
        shape = (count, v.shape[2], v.shape[3], q.shape[3])
        check_room("final_state", final_state, shape, STATE_TYPES)
    _, state = chunk_kda(
        q,
        k,
        v,
        g,
        beta,
        scale=scale,
        initial_state=initial_state,
        output_final_state=final_state is not None,
        use_qk_l2norm_in_kernel=True,
        use_gate_in_kernel=True,
        use_beta_sigmoid_in_kernel=True,
        safe_gate=True,
        lower_bound=lower_bound,
        state_v_first=True,
        cu_seqlens=cu_seqlens,
        A_log=A_log,
        dt_bias=dt_bias,
        out=out,
        output_state_dtype=None if final_state is None else final_state.dtype,
    )
    if final_state is not None:
        final_state.copy_(state)


def get_workspace_size(T_total: int, H: int, N: int = 1) -> int:
    """Bytes of scratch memory that ``fwd`` takes for bf16 inputs, K = V = 128.

    It is for information: ``fwd`` allocates what it needs. For the current CUDA device where
    there is one, else for the CPU.
    """
    for name, value in (("T_total", T_total), ("H", H), ("N", N)):
        if not isinstance(value, int):
            raise TypeError(f"{name} has type {type(value).__name__}; allowed: int")
    token = {"dtype": torch.bfloat16, "device": "meta"}
    x = torch.empty(1, T_total, H, 128, **token)  # type: ignore[call-overload]
    state = torch.empty(N, H, 128, 128, dtype=torch.float32, device="meta")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    return workspace_of(
        "chunk_kda",
        (x, x, x, x, x[..., 0]),
        {
            "initial_state": state,
            "output_final_state": True,
            "use_qk_l2norm_in_kernel": True,
            "use_gate_in_kernel": True,
            "use_beta_sigmoid_in_kernel": True,
            "safe_gate": True,
            "lower_bound": -5.0,
            "state_v_first": True,
            "cu_seqlens": torch.empty(N + 1, dtype=torch.int64, device="meta"),
            "A_log": state[0, :, 0, 0],
            "dt_bias": state[0, :, 0, :],
        },
        device,
    )
