"""Gated DeltaNet: a decay for every head, delta update (arXiv 2412.06464)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _abi
from .._arguments import (
    FLOAT_TYPES,
    bits,
    check_chunk_indices,
    check_chunk_size,
    check_gate,
    check_tensor,
    form_of_beta,
    form_of_gate,
    refuse,
    renamed,
    renamed_layout,
)
from .._operator import call
from . import _lowlevel
from ._lowlevel import ForwardResult, Gradients, Saved
from ._naive import recurrence

__all__ = [
    "chunk_gated_delta_rule",
    "chunk_gated_delta_rule_bwd",
    "chunk_gated_delta_rule_fwd",
    "chunk_gdn",
    "fused_gdn_gate",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_gdn",
    "naive_recurrent_gated_delta_rule",
]


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    cp_context: Any = None,
    *,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int | None = None,
    chunk_indices: Tensor | None = None,
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
    """GDN over whole sequences.

    Per value head, with the head's decay ``exp(g_t)``::

        S <- exp(g_t) S
        S <- S + beta_t k_t (v_t - S^T k_t)^T
        o_t = scale * S^T q_t

    Args:
        q, k: ``[B,T,H,K]``, bf16, fp16 or fp32.
        v: ``[B,T,HV,V]`` in the type of q; HV a multiple of H.
        g: ``[B,T,HV]`` natural-log decays, or gate inputs with ``use_gate_in_kernel``.
        beta: ``[B,T,HV]``, or logits with ``use_beta_sigmoid_in_kernel``.
        use_gate_in_kernel: ``g <- -exp(A_log) softplus(g + dt_bias)``.
        A_log, dt_bias: ``[HV]``.

    The other arguments, and what is raised when, are described in ``linattn.ops``.

    Returns:
        ``(o, final_state)``, with ``return_intermediate_states`` ``(o, final_state, states)``.

    >>> import torch
    >>> from linattn.ops.gated_delta_rule import chunk_gated_delta_rule
    >>> q, k = torch.randn(2, 1, 70, 2, 16).unbind(0)
    >>> v, g, beta = torch.randn(1, 70, 4, 8), -torch.rand(1, 70, 4), torch.rand(1, 70, 4)
    >>> o, _ = chunk_gated_delta_rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)
    >>> o.shape
    torch.Size([1, 70, 4, 8])
    """
    if cp_context is not None or head_first:
        refuse(cp_context=(cp_context, None), head_first=(head_first, False))
    if chunk_size is not None or chunk_indices is not None or transpose_state_layout is not None:
        check_chunk_size(chunk_size, (16, 32, 64))
        check_chunk_indices(chunk_indices, cu_seqlens)
        state_v_first = renamed_layout(state_v_first, transpose_state_layout)
    o, final_state, states = call(
        _abi.GDN,
        _abi.CHUNK,
        _abi.GATE_HEAD,
        q,
        k,
        v,
        g,
        None,
        beta,
        scale,
        initial_state,
        output_final_state,
        bits(use_qk_l2norm_in_kernel, state_v_first, auto_cp, batch_invariant),
        cu_seqlens,
        gate_form=form_of_gate(use_gate_in_kernel, None),
        A_log=A_log,
        dt_bias=dt_bias,
        beta_form=form_of_beta(use_beta_sigmoid_in_kernel, allow_neg_eigval),
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


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
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
    """GDN token by token from a state: decode, and prefill of a few tokens.

    Formula, shapes and types are those of ``chunk_gated_delta_rule``. ``gk [B,T,HV,K]`` is a log
    decay for every key channel, alone or added to ``g``; without both nothing decays. ``beta``
    None means 1. ``gv`` must be None. Differentiable without a state pool.

    >>> import torch
    >>> from linattn.ops.gated_delta_rule import fused_recurrent_gated_delta_rule
    >>> q, k, v = torch.randn(3, 2, 1, 4, 16).unbind(0)
    >>> o, state = fused_recurrent_gated_delta_rule(
    ...     q, k, v, -torch.rand(2, 1, 4), beta=torch.rand(2, 1, 4), output_final_state=True)
    >>> state.shape, state.dtype
    (torch.Size([2, 4, 16, 16]), torch.float32)
    """
    if gv is not None:
        refuse(gv=(gv, None))
    if transpose_state_layout is not None:
        state_v_first = renamed_layout(state_v_first, transpose_state_layout)
    gate = _abi.GATE_NONE if g is None else _abi.GATE_HEAD
    if gk is not None:
        gate = _abi.GATE_CHANNEL
        if g is None:
            if use_gate_in_kernel:
                raise ValueError("g is None; use_gate_in_kernel=True needs it: gk is log decays")
            g = gk
        elif all(isinstance(t, Tensor) and t.dim() == 4 for t in (q, v)):
            check_tensor("g", g, FLOAT_TYPES, "[B,T,HV]", v.shape[:3])
            check_tensor("gk", gk, FLOAT_TYPES, "[B,T,HV,K]", (*v.shape[:3], q.shape[3]))
            if use_gate_in_kernel:
                if A_log is None:
                    raise ValueError("A_log is None, but is required by use_gate_in_kernel=True")
                g = fused_gdn_gate(g, A_log, dt_bias)
                use_gate_in_kernel, A_log, dt_bias = False, None, None
            g = gk.float() + g.float()[..., None]
    try:
        o, final_state, _ = call(
            _abi.GDN,
            _abi.RECURRENT,
            gate,
            q,
            k,
            v,
            g,
            None,
            beta,
            scale,
            initial_state,
            output_final_state,
            bits(use_qk_l2norm_in_kernel, state_v_first, auto_cp, batch_invariant),
            cu_seqlens,
            gate_form=form_of_gate(use_gate_in_kernel, None),
            A_log=A_log,
            dt_bias=dt_bias,
            beta_form=form_of_beta(use_beta_sigmoid_in_kernel, allow_neg_eigval),
            out=out,
            state_indices=state_indices,
            output_state_indices=output_state_indices,
            null_state_index=null_state_index,
            has_initial_state=has_initial_state,
            num_accepted_tokens=num_accepted_tokens,
            output_state_dtype=output_state_dtype,
        )
    except (ValueError, TypeError) as error:
        raise renamed(error, {"g": "gk"} if gk is not None else {}) from None
    return o, final_state


def chunk_gated_delta_rule_fwd(*args: Any, **options: Any) -> ForwardResult:
    """``chunk_gated_delta_rule`` without autograd: the same arguments, a ``ForwardResult``."""
    return _lowlevel.forward(chunk_gated_delta_rule, *args, **options)


def chunk_gated_delta_rule_bwd(
    saved: Saved | ForwardResult,
    do: Tensor,
    dht: Tensor | None = None,
    wanted: tuple[str, ...] | None = None,
) -> Gradients:
    """Gradients of a ``chunk_gated_delta_rule_fwd`` call.

    ``do`` is ``[B,T,HV,V]``, ``dht`` like the final state; ``wanted`` names the gradients to
    compute, such as ``("dq", "dh0")``, and None means those of every input that was given.
    """
    return _lowlevel.backward(saved, do, dht, wanted)


def fused_gdn_gate(
    g: Tensor,
    A_log: Tensor,
    dt_bias: Tensor | None = None,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The GDN gate alone: ``-exp(A_log) softplus(g + dt_bias)``, differentiable.

    ``g [...,HV]``, A_log and dt_bias ``[HV]``. Evaluated in fp32 (fp64 for an fp64 g).
    """
    check_gate(g, A_log, dt_bias, 1)
    x = g if g.dtype == torch.float64 else g.float()
    if dt_bias is not None:
        x = x + dt_bias.to(x.dtype)
    return (-A_log.to(x.dtype).exp() * F.softplus(x, threshold=20.0)).to(output_dtype)


def naive_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    *,
    cu_seqlens: Tensor | None = None,
    state_v_first: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``chunk_gated_delta_rule`` in plain torch, a token at a time: slow, differentiable.

    Mind the order: beta stands before g. Computes in fp32, or in fp64 where an input is.
    """
    o, final_state = recurrence(
        q,
        k,
        v,
        g,
        beta,
        delta=True,
        scale=scale,
        initial_state=initial_state,
        cu_seqlens=cu_seqlens,
        state_v_first=state_v_first,
    )
    return o, final_state if output_final_state else None


chunk_gdn = chunk_gated_delta_rule
fused_recurrent_gdn = fused_recurrent_gated_delta_rule
