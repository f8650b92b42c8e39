"""DeltaNet: no decay, delta update (arXiv 2406.06484)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _abi
from .._arguments import (
    bits,
    check_chunk_size,
    refuse,
)
from .._operator import call
from . import _lowlevel
from ._lowlevel import ForwardResult, Gradients, Saved
from ._naive import recurrence

__all__ = [
    "chunk_delta_rule",
    "chunk_delta_rule_bwd",
    "chunk_delta_rule_fwd",
    "fused_recurrent_delta_rule",
    "naive_recurrent_delta_rule",
]


def chunk_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    *,
    chunk_size: int | None = None,
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
    state_v_first: bool = False,
    return_intermediate_states: bool = False,
    state_every: int | None = None,
) -> Any:
    """DeltaNet over whole sequences.

    Per value head::

        S <- S + beta_t k_t (v_t - S^T k_t)^T
        o_t = scale * S^T q_t

    Args:
        q, k: ``[B,T,H,K]``, bf16, fp16 or fp32.
        v: ``[B,T,HV,V]`` in the type of q; HV a multiple of H.
        beta: ``[B,T,HV]``.

    The other arguments, and what is raised when, are described in ``linattn.ops``.

    Returns:
        ``(o, final_state)``, with ``return_intermediate_states`` ``(o, final_state, states)``.

    >>> import torch
    >>> from linattn.ops.delta_rule import chunk_delta_rule
    >>> q, k, v = torch.randn(3, 1, 70, 2, 16).unbind(0)
    >>> o, _ = chunk_delta_rule(q, k, v, torch.rand(1, 70, 2), use_qk_l2norm_in_kernel=True)
    >>> o.shape
    torch.Size([1, 70, 2, 16])
    """
    if head_first:
        refuse(head_first=(head_first, False))
    if chunk_size is not None:
        check_chunk_size(chunk_size, (16, 32, 64))
    o, final_state, states = call(
        _abi.DELTA,
        _abi.CHUNK,
        _abi.GATE_NONE,
        q,
        k,
        v,
        None,
        None,
        beta,
        scale,
        initial_state,
        output_final_state,
        bits(use_qk_l2norm_in_kernel, state_v_first, auto_cp, batch_invariant),
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


def fused_recurrent_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
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
    state_v_first: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """DeltaNet token by token from a state; ``beta`` None means 1.

    Formula, shapes and types are those of ``chunk_delta_rule``. Differentiable without a pool.
    """
    o, final_state, _ = call(
        _abi.DELTA,
        _abi.RECURRENT,
        _abi.GATE_NONE,
        q,
        k,
        v,
        None,
        None,
        beta,
        scale,
        initial_state,
        output_final_state,
        bits(use_qk_l2norm_in_kernel, state_v_first, auto_cp, batch_invariant),
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


def chunk_delta_rule_fwd(*args: Any, **options: Any) -> ForwardResult:
    """``chunk_delta_rule`` without autograd: the same arguments, a ``ForwardResult``."""
    return _lowlevel.forward(chunk_delta_rule, *args, **options)


def chunk_delta_rule_bwd(
    saved: Saved | ForwardResult,
    do: Tensor,
    dht: Tensor | None = None,
    wanted: tuple[str, ...] | None = None,
) -> Gradients:
    """Gradients of a ``chunk_delta_rule_fwd`` call.

    ``do`` is ``[B,T,HV,V]``, ``dht`` like the final state; ``wanted`` names the gradients to
    compute, such as ``("dq", "dh0")``, and None means those of every input that was given.
    """
    return _lowlevel.backward(saved, do, dht, wanted)


def naive_recurrent_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    *,
    cu_seqlens: Tensor | None = None,
    state_v_first: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``chunk_delta_rule`` in plain torch, a token at a time: slow, differentiable."""
    o, final_state = recurrence(
        q,
        k,
        v,
        None,
        beta,
        delta=True,
        scale=scale,
        initial_state=initial_state,
        cu_seqlens=cu_seqlens,
        state_v_first=state_v_first,
    )
    return o, final_state if output_final_state else None
