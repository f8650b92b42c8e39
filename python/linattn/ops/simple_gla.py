"""Simple GLA: a decay for every head, per token or constant, additive update."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _abi
from .._arguments import (
    FLOAT_TYPES,
    bits,
    check_chunk_size,
    check_tensor,
    refuse,
    renamed_layout,
)
from .._operator import call
from . import _lowlevel
from ._lowlevel import ForwardResult, Gradients, Saved
from ._naive import recurrence

__all__ = [
    "chunk_simple_gla",
    "chunk_simple_gla_bwd",
    "chunk_simple_gla_fwd",
    "fused_recurrent_simple_gla",
    "naive_recurrent_simple_gla",
]


def _gate(
    v: Tensor, g: Tensor | None, g_gamma: Tensor | None
) -> tuple[int, Tensor | None, Tensor | None]:
    """(gate, g, g_gamma): a decay per token and a constant one are a decay per token."""
    if g is None:
        return (_abi.GATE_NONE if g_gamma is None else _abi.GATE_HEAD_CONSTANT), None, g_gamma
    if g_gamma is None:
        return _abi.GATE_HEAD, g, None
    if isinstance(v, Tensor) and v.dim() == 4:
        check_tensor("g", g, FLOAT_TYPES, "[B,T,HV]", v.shape[:3])
        check_tensor("g_gamma", g_gamma, (torch.float32,), "[HV]", v.shape[2:3])
        g = g.float() + g_gamma
    return _abi.GATE_HEAD, g, None  # without a proper v the library says what is wrong with it


def chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    *,
    chunk_size: int | None = None,
    transpose_state_layout: bool | None = None,
    head_first: bool = False,
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
    """Simple GLA over whole sequences.

    Per value head::

        S <- exp(g_t + g_gamma) S + k_t v_t^T
        o_t = scale * S^T q_t

    Args:
        q, k: ``[B,T,H,K]``, bf16, fp16 or fp32.
        v: ``[B,T,HV,V]`` in the type of q; HV a multiple of H.
        g: ``[B,T,HV]`` natural-log decays; None for none.
        g_gamma: ``[HV]`` fp32, a constant natural-log decay; None for none. Has no gradient.

    The other arguments, and what is raised when, are described in ``linattn.ops``.

    Returns:
        ``(o, final_state)``, with ``return_intermediate_states`` ``(o, final_state, states)``.

    >>> import torch
    >>> from linattn.ops.simple_gla import chunk_simple_gla
    >>> q, k, v = torch.randn(3, 1, 70, 2, 16).unbind(0)
    >>> chunk_simple_gla(q, k, v, g_gamma=torch.tensor([-0.1, -0.2]))[0].shape
    torch.Size([1, 70, 2, 16])
    """
    if head_first:
        refuse(head_first=(head_first, False))
    if chunk_size is not None or transpose_state_layout is not None:
        check_chunk_size(chunk_size, ())
        state_v_first = renamed_layout(state_v_first, transpose_state_layout)
    gate, g, g_gamma = _gate(v, g, g_gamma)
    o, final_state, states = call(
        _abi.SIMPLE_GLA,
        _abi.CHUNK,
        gate,
        q,
        k,
        v,
        g,
        g_gamma,
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


def fused_recurrent_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
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
    """Simple GLA token by token from a state.

    Formula, shapes and types are those of ``chunk_simple_gla``; ``reverse`` must be False.
    Differentiable without a state pool.
    """
    if reverse:
        refuse(reverse=(reverse, False))
    if transpose_state_layout is not None:
        state_v_first = renamed_layout(state_v_first, transpose_state_layout)
    gate, g, g_gamma = _gate(v, g, g_gamma)
    o, final_state, _ = call(
        _abi.SIMPLE_GLA,
        _abi.RECURRENT,
        gate,
        q,
        k,
        v,
        g,
        g_gamma,
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
    return o, final_state


def chunk_simple_gla_fwd(*args: Any, **options: Any) -> ForwardResult:
    """``chunk_simple_gla`` without autograd: the same arguments, a ``ForwardResult``."""
    return _lowlevel.forward(chunk_simple_gla, *args, **options)


def chunk_simple_gla_bwd(
    saved: Saved | ForwardResult,
    do: Tensor,
    dht: Tensor | None = None,
    wanted: tuple[str, ...] | None = None,
) -> Gradients:
    """Gradients of a ``chunk_simple_gla_fwd`` call.

    ``do`` is ``[B,T,HV,V]``, ``dht`` like the final state; ``wanted`` names the gradients to
    compute, such as ``("dq", "dh0")``, and None means those of every input that was given.
    """
    return _lowlevel.backward(saved, do, dht, wanted)


def naive_recurrent_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = True,
    *,
    cu_seqlens: Tensor | None = None,
    state_v_first: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``chunk_simple_gla`` in plain torch, a token at a time: slow, differentiable.

    ``g`` is ``[B,T,HV]``, or ``[HV]`` for a constant decay.
    """
    o, final_state = recurrence(
        q,
        k,
        v,
        g,
        delta=False,
        scale=scale,
        initial_state=initial_state,
        cu_seqlens=cu_seqlens,
        state_v_first=state_v_first,
    )
    return o, final_state if output_final_state else None
