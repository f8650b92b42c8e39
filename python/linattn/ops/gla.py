"""Gated Linear Attention: a decay for every key channel, additive update (arXiv 2312.06635)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _abi
from .._arguments import (
    bits,
    refuse,
    renamed,
    renamed_layout,
)
from .._operator import call
from . import _lowlevel
from ._lowlevel import ForwardResult, Gradients, Saved
from ._naive import recurrence

__all__ = [
    "chunk_gla",
    "chunk_gla_bwd",
    "chunk_gla_fwd",
    "fused_recurrent_gla",
    "naive_recurrent_gla",
]


def chunk_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    *,
    out: Tensor | None = None,
    state_indices: Tensor | None = None,
    output_state_indices: Tensor | None = None,
    null_state_index: int | None = None,
    has_initial_state: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    auto_cp: bool = True,
    batch_invariant: bool = False,
    output_state_dtype: torch.dtype | None = None,
    return_intermediate_states: bool = False,
    state_every: int | None = None,
) -> Any:
    """GLA over whole sequences.

    Per value head, with decay ``exp(g_t)`` in each key channel::

        S <- diag(exp(g_t)) S + k_t v_t^T
        o_t = scale * S^T q_t

    Args:
        q, k: ``[B,T,H,K]``, bf16, fp16 or fp32.
        v: ``[B,T,HV,V]`` in the type of q; HV a multiple of H.
        g: ``[B,T,HV,K]`` natural-log decays.

    The other arguments, and what is raised when, are described in ``linattn.ops``.

    Returns:
        ``(o, final_state)``, with ``return_intermediate_states`` ``(o, final_state, states)``.

    >>> import torch
    >>> from linattn.ops.gla import chunk_gla
    >>> q, k, v = torch.randn(3, 1, 70, 2, 16).unbind(0)
    >>> o, state = chunk_gla(q, k, v, -torch.rand(1, 70, 2, 16), output_final_state=True)
    >>> o.shape, state.shape
    (torch.Size([1, 70, 2, 16]), torch.Size([1, 2, 16, 16]))
    """
    o, final_state, states = call(
        _abi.GLA,
        _abi.CHUNK,
        _abi.GATE_CHANNEL,
        q,
        k,
        v,
        g,
        None,
        None,
        scale,
        initial_state,
        output_final_state,
        bits(False, state_v_first, auto_cp, batch_invariant),
        cu_seqlens,
        out=out,
        state_indices=state_indices,
        output_state_indices=output_state_indices,
        null_state_index=null_state_index,
        has_initial_state=has_initial_state,
        num_accepted_tokens=num_accepted_tokens,
        output_state_dtype=output_state_dtype,
        intermediate_states=return_intermediate_states,
        state_every=state_every,
        cu_seqlens_cpu=cu_seqlens_cpu,
    )
    return (o, final_state, states) if return_intermediate_states else (o, final_state)


def fused_recurrent_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    transpose_state_layout: bool | None = None,
    out: Tensor | None = None,
    state_indices: Tensor | None = None,
    output_state_indices: Tensor | None = None,
    null_state_index: int | None = None,
    has_initial_state: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    auto_cp: bool = True,
    batch_invariant: bool = False,
    output_state_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor | None]:
    """GLA token by token from a state; ``gk`` is ``chunk_gla``'s g, None means no decay.

    Formula, shapes and types are those of ``chunk_gla``; ``gv`` must be None and ``reverse``
    False. Differentiable without a state pool.
    """
    if gv is not None or reverse:
        refuse(gv=(gv, None), reverse=(reverse, False))
    if transpose_state_layout is not None:
        state_v_first = renamed_layout(state_v_first, transpose_state_layout)
    gate = _abi.GATE_NONE if gk is None else _abi.GATE_CHANNEL
    try:
        o, final_state, _ = call(
            _abi.GLA,
            _abi.RECURRENT,
            gate,
            q,
            k,
            v,
            gk,
            None,
            None,
            scale,
            initial_state,
            output_final_state,
            bits(False, state_v_first, auto_cp, batch_invariant),
            cu_seqlens,
            out=out,
            state_indices=state_indices,
            output_state_indices=output_state_indices,
            null_state_index=null_state_index,
            has_initial_state=has_initial_state,
            num_accepted_tokens=num_accepted_tokens,
            output_state_dtype=output_state_dtype,
        )
    except (ValueError, TypeError) as error:
        raise renamed(error, {"g": "gk"}) from None
    return o, final_state


def chunk_gla_fwd(*args: Any, **options: Any) -> ForwardResult:
    """``chunk_gla`` without autograd: the same arguments, a ``ForwardResult``."""
    return _lowlevel.forward(chunk_gla, *args, **options)


def chunk_gla_bwd(
    saved: Saved | ForwardResult,
    do: Tensor,
    dht: Tensor | None = None,
    wanted: tuple[str, ...] | None = None,
) -> Gradients:
    """Gradients of a ``chunk_gla_fwd`` call.

    ``do`` is ``[B,T,HV,V]``, ``dht`` like the final state; ``wanted`` names the gradients to
    compute, such as ``("dq", "dh0")``, and None means those of every input that was given.
    """
    return _lowlevel.backward(saved, do, dht, wanted)


def naive_recurrent_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gk: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    *,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
    state_v_first: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``chunk_gla`` in plain torch, a token at a time: slow, differentiable."""
    o, final_state = recurrence(
        q,
        k,
        v,
        gk,
        delta=False,
        scale=scale,
        initial_state=initial_state,
        cu_seqlens=cu_seqlens,
        state_v_first=state_v_first,
    )
    return o, final_state if output_final_state else None
