"""``cula.lightning``: Lightning Attention with a decay per head that the caller gives."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import ops
from ..._arguments import check_chunk_size
from .._shared import check_room, count_sequences, need_tensors

__all__ = ["lightning_attn_fwd", "lightning_attn_fwd_varlen", "linear_attention_decode"]


def lightning_attn_fwd(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    decay: Tensor,
    scale: float = 1.0,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor | None]:
    """``S <- exp(-decay) S + k v^T``, ``o = scale * S^T q``: ``(o, final state)``.

    Q, K, V are ``[B,T,H,D]``, ``decay [H]``, states ``[B,H,V,K]``. ``chunk_size`` is a hint.
    """
    need_tensors(Q=Q, K=K, V=V, decay=decay)
    check_chunk_size(chunk_size, ())
    result: tuple[Tensor, Tensor | None] = ops.chunk_simple_gla(
        Q,
        K,
        V,
        g_gamma=-decay.float(),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        state_v_first=True,
    )
    return result


def lightning_attn_fwd_varlen(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    decay: Tensor,
    cu_seqlens: Tensor,
    scale: float = 1.0,
    state_pool: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
    chunk_size: int = 64,
    persistent: bool = True,
) -> tuple[Tensor, Tensor]:
    """``lightning_attn_fwd`` of packed sequences on a state pool: ``(o, pool)``.

    The pool is ``[P,H,V,K]`` and updated in place at ``initial_state_indices`` (default: sequence
    n in slot n); without one a pool of zeros is made. ``chunk_size`` and ``persistent`` are hints.
    """
    need_tensors(Q=Q, K=K, V=V, decay=decay, cu_seqlens=cu_seqlens)
    check_chunk_size(chunk_size, ())
    count = count_sequences(Q, cu_seqlens)
    if state_pool is None:
        shape = (count, V.shape[2], V.shape[3], K.shape[3])
        state_pool = torch.zeros(shape, dtype=torch.float32, device=Q.device)
    if initial_state_indices is None:
        if isinstance(state_pool, Tensor) and state_pool.dim() > 0 and len(state_pool) < count:
            raise ValueError(
                f"state_pool has {len(state_pool)} slots; allowed without "
                f"initial_state_indices: at least {count}, one for each sequence"
            )
        initial_state_indices = torch.arange(count, dtype=torch.int32, device=Q.device)
    o, _ = ops.chunk_simple_gla(
        Q,
        K,
        V,
        g_gamma=-decay.float(),
        scale=scale,
        initial_state=state_pool,
        state_v_first=True,
        cu_seqlens=cu_seqlens,
        state_indices=initial_state_indices,
    )
    return o, state_pool


def linear_attention_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    s: Tensor,
    out: Tensor,
    softmax_scale: float,
    stride_q: int,
    stride_k: int,
    stride_v: int,
    stride_s: int,
    stride_o: int,
    s_offsets: Tensor | None,
    decay_scales: Tensor,
    HEAD_DIM: int,
    K_SPLIT_DIM: int,
    V_SPLIT_DIM: int,
) -> None:
    """One decode step, written into ``out [B,H,D]``; the states ``s [P,H,V,K]`` change in place.

    ``q, k, v`` are ``[B,H,D]``, ``decay_scales [H]`` decays as ``exp(-decay_scales)``,
    ``s_offsets [B]`` the slot of each row (None: row n in slot n). Each stride must be that of its
    tensor's first axis, ``HEAD_DIM`` its D; the split sizes are hints.
    """
    need_tensors(q=q, k=k, v=v, s=s, out=out, decay_scales=decay_scales)
    for name, stride, t in (
        ("stride_q", stride_q, q),
        ("stride_k", stride_k, k),
        ("stride_v", stride_v, v),
        ("stride_s", stride_s, s),
        ("stride_o", stride_o, out),
    ):
        if t.dim() == 0 or (stride != t.stride(0) and t.shape[0] > 1):
            raise ValueError(f"{name} is {stride}; allowed: the tensor's own, {t.stride()[:1]}")
    if q.dim() != 3 or q.shape[2] != HEAD_DIM:
        raise ValueError(f"HEAD_DIM is {HEAD_DIM} for q of shape {list(q.shape)}; allowed: [B,H,D]")
    for name, size in (("K_SPLIT_DIM", K_SPLIT_DIM), ("V_SPLIT_DIM", V_SPLIT_DIM)):
        if not isinstance(size, int) or size < 1 or HEAD_DIM % size:
            raise ValueError(f"{name} is {size}; allowed: a divisor of HEAD_DIM = {HEAD_DIM}")
    check_room("out", out, tuple(v.shape), (q.dtype,))
    if s_offsets is None:
        s_offsets = torch.arange(q.shape[0], dtype=torch.int32, device=q.device)
    ops.fused_recurrent_simple_gla(
        q[:, None],
        k[:, None],
        v[:, None],
        g_gamma=-decay_scales.float(),
        scale=softmax_scale,
        initial_state=s,
        state_v_first=True,
        out=out[:, None],
        state_indices=s_offsets,
    )
