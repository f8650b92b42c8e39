"""The recurrence in plain torch, one token at a time: slow, short, differentiable."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def l2norm(x: Tensor) -> Tensor:
    """``x / sqrt(sum(x^2) + 1e-6)`` over the last axis."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    delta: bool,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    state_v_first: bool = False,
) -> tuple[Tensor, Tensor]:
    """(o in the type of v, final state), computed in fp32, or fp64 where an input is fp64.

    ``log_decay`` is ``[B,T,HV,K]``, ``[B,T,HV]`` or ``[HV]``.
    """
    given = [t for t in (q, k, v, log_decay, beta, initial_state) if t is not None]
    wide = any(t.dtype == torch.float64 for t in given)
    compute = torch.float64 if wide else torch.float32
    heads, channels = v.shape[2], q.shape[3]
    scale = channels**-0.5 if scale is None else scale
    group = heads // q.shape[2]
    q, k = (x.to(compute).repeat_interleave(group, 2) for x in (q, k))
    values = v.to(compute)
    if log_decay is not None:
        decay = log_decay.to(compute).exp()
        if decay.dim() == 1:
            decay = decay.expand(*v.shape[:3])
        # Broadcast over the K (head gates) and V axes of the state.
        decay = decay[..., None, None] if decay.dim() == 3 else decay[..., None]
    if beta is not None:
        beta = beta.to(compute)[..., None]
    if cu_seqlens is None:
        spans = [(slice(b, b + 1), 0, q.shape[1]) for b in range(q.shape[0])]
    else:
        ends = cu_seqlens.tolist()
        spans = [(slice(0, 1), i, j) for i, j in pairwise(ends)]
    outputs: list[list[Tensor]] = [[] for _ in range(q.shape[0])]
    finals = []
    for n, (b, begin, end) in enumerate(spans):
        if initial_state is None:
            state = q.new_zeros(1, heads, channels, v.shape[3])
        else:
            state = initial_state[n : n + 1].to(compute)
            state = state.mT if state_v_first else state
        for t in range(begin, end):
            if log_decay is not None:
                state = decay[b, t] * state
            k_t = k[b, t, :, :, None]
            u = values[b, t, :, None, :]
            if delta:
                u = u - (state * k_t).sum(-2, keepdim=True)
                if beta is not None:
                    u = beta[b, t, :, None] * u
            state = state + k_t * u
            outputs[b.start].append(scale * (state * q[b, t, :, :, None]).sum(-2))
        finals.append(state.mT if state_v_first else state)
    # Rows past the last sequence belong to no one: zero.
    rows = []
    for tokens in outputs:
        blank = values.new_zeros(q.shape[1] - len(tokens), heads, v.shape[3])
        rows.append(torch.cat([*tokens, blank]) if tokens else blank)
    o = torch.stack(rows) if rows else values.new_zeros(v.shape)
    final = torch.cat(finals) if finals else q.new_zeros(0, heads, channels, v.shape[3])
    return o.to(v.dtype), final
