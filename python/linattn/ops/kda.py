"""Kimi Delta Attention: a decay for every key channel, delta update (arXiv 2510.26692)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _abi
from .._arguments import (
    bits,
    check_chunk_indices,
    check_chunk_size,
    check_gate,
    form_of_beta,
    form_of_gate,
    refuse,
    renamed,
    renamed_layout,
    switch,
)
from .._operator import call
from . import _lowlevel
from ._lowlevel import ForwardResult, Gradients, Saved
from ._naive import recurrence

__all__ = [
    "chunk_kda",
    "chunk_kda_bwd",
    "chunk_kda_fwd",
    "fused_kda_gate",
    "fused_recurrent_kda",
    "fused_recurrent_kda_fwd",
    "naive_recurrent_kda",
]


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    cp_context: Any = None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int | None = None,
    chunk_indices: Tensor | None = None,
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
    state_every: int | None = None,
) -> Any:
    """KDA over whole sequences.

    Per value head, with decay ``exp(g_t)`` in each key channel::

        S <- diag(exp(g_t)) S
        S <- S + beta_t k_t (v_t - S^T k_t)^T
        o_t = scale * S^T q_t

    Args:
        q, k: ``[B,T,H,K]``, bf16, fp16 or fp32.
        v: ``[B,T,HV,V]`` in the type of q; HV a multiple of H.
        g: ``[B,T,HV,K]`` natural-log decays, or gate inputs with ``use_gate_in_kernel``.
        beta: ``[B,T,HV]``, or logits with ``use_beta_sigmoid_in_kernel``.
        use_gate_in_kernel: ``g <- -exp(A_log) softplus(g + dt_bias)``, or with ``lower_bound``
            (in ``[-5, 0)``) ``g <- lower_bound * sigmoid(exp(A_log) (g + dt_bias))``.
        A_log: ``[HV]`` fp32; may be None with ``lower_bound`` (factor 1).
        dt_bias: ``[HV*K]`` or ``[HV,K]``, fp32 or bf16; default none.
        safe_gate: promises every log decay to be in ``[-5, 0)``.

    The other arguments, and what is raised when, are described in ``linattn.ops``.

    Returns:
        ``(o, final_state)``, with ``return_intermediate_states`` ``(o, final_state, states)``.

    >>> import torch
    >>> from linattn.ops.kda import chunk_kda
    >>> q, k, v = torch.randn(3, 1, 70, 2, 16).unbind(0)
    >>> g, beta = -torch.rand(1, 70, 2, 16), torch.rand(1, 70, 2)
    >>> o, state = chunk_kda(
    ...     q, k, v, g, beta, use_qk_l2norm_in_kernel=True, output_final_state=True)
    >>> o.shape, state.shape
    (torch.Size([1, 70, 2, 16]), torch.Size([1, 2, 16, 16]))
    """
    if cp_context is not None:
        refuse(cp_context=(cp_context, None))
    if chunk_size is not None or chunk_indices is not None or transpose_state_layout is not None:
        check_chunk_size(chunk_size, (32, 64))
        check_chunk_indices(chunk_indices, cu_seqlens)
        state_v_first = renamed_layout(state_v_first, transpose_state_layout)
    o, final_state, states = call(
        _abi.KDA,
        _abi.CHUNK,
        _abi.GATE_CHANNEL,
        q,
        k,
        v,
        g,
        None,
        beta,
        scale,
        initial_state,
        output_final_state,
        bits(use_qk_l2norm_in_kernel, state_v_first, auto_cp, batch_invariant, safe_gate),
        cu_seqlens,
        gate_form=form_of_gate(use_gate_in_kernel, lower_bound),
        lower_bound=lower_bound,
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


def fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
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
    """KDA token by token from a state: decode, and prefill of a few tokens.

    Formula, shapes and types are those of ``chunk_kda``. The state pool, dead rows and
    speculative decoding are described in ``linattn.ops``. Differentiable without a pool.

    >>> import torch
    >>> from linattn.ops.kda import fused_recurrent_kda
    >>> q, k, v = torch.randn(3, 2, 1, 4, 16).unbind(0)
    >>> g, beta = -torch.rand(2, 1, 4, 16), torch.rand(2, 1, 4)
    >>> pool = torch.zeros(8, 4, 16, 16)
    >>> o, same = fused_recurrent_kda(
    ...     q, k, v, g, beta, initial_state=pool, output_final_state=True,
    ...     state_indices=torch.tensor([5, -1]))
    >>> same is pool, bool(pool[5].any()), bool(o[1].any())  # row 1 is dead
    (True, True, False)
    """
    if transpose_state_layout is not None:
        state_v_first = renamed_layout(state_v_first, transpose_state_layout)
    o, final_state, _ = call(
        _abi.KDA,
        _abi.RECURRENT,
        _abi.GATE_CHANNEL,
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
        gate_form=form_of_gate(use_gate_in_kernel, lower_bound),
        lower_bound=lower_bound,
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
    return o, final_state


def fused_recurrent_kda_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    scale: float | None = None,
    output_final_state: bool = False,
    inplace_final_state: bool = True,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    out: Tensor | None = None,
    *,
    output_state_indices: Tensor | None = None,
    null_state_index: int | None = None,
    has_initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """``fused_recurrent_kda`` under the names that serving engines call.

    ``ssm_state_indices`` is ``state_indices``. With ``inplace_final_state`` the states are
    updated where they lie: in the pool at the indices, or without indices in row n of
    ``initial_state`` for sequence n. Returns ``(o, final_state)``.
    """
    indices = ssm_state_indices
    if switch("inplace_final_state", inplace_final_state):
        if initial_state is None:
            raise ValueError(
                "initial_state is None; inplace_final_state=True needs it: it is updated in place"
            )
        if indices is None and isinstance(q, Tensor):
            count = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
            indices = torch.arange(count, dtype=torch.int32, device=q.device)
    elif indices is not None:
        raise NotImplementedError(
            "inplace_final_state is False with ssm_state_indices; linattn updates a pool in place "
            "alone"
        )
    try:
        return fused_recurrent_kda(
            q,
            k,
            v,
            g,
            beta,
            A_log,
            dt_bias,
            scale,
            initial_state,
            output_final_state or inplace_final_state,
            use_qk_l2norm_in_kernel,
            use_gate_in_kernel,
            use_beta_sigmoid_in_kernel,
            allow_neg_eigval,
            lower_bound,
            state_v_first,
            cu_seqlens,
            out=out,
            state_indices=indices,
            output_state_indices=output_state_indices,
            null_state_index=null_state_index,
            has_initial_state=has_initial_state,
            num_accepted_tokens=num_accepted_tokens,
        )
    except (TypeError, ValueError) as error:
        raise renamed(error, {"state_indices": "ssm_state_indices"}) from None


def chunk_kda_fwd(*args: Any, **options: Any) -> ForwardResult:
    """``chunk_kda`` without autograd: the same arguments, a ``ForwardResult``."""
    return _lowlevel.forward(chunk_kda, *args, **options)


def chunk_kda_bwd(
    saved: Saved | ForwardResult,
    do: Tensor,
    dht: Tensor | None = None,
    wanted: tuple[str, ...] | None = None,
) -> Gradients:
    """Gradients of a ``chunk_kda_fwd`` call.

    ``do`` is ``[B,T,HV,V]``, ``dht`` like the final state; ``wanted`` names the gradients to
    compute, such as ``("dq", "dh0")``, and None means those of every input that was given.
    """
    return _lowlevel.backward(saved, do, dht, wanted)


def fused_kda_gate(
    g: Tensor,
    A_log: Tensor | None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The KDA gate alone: log decays of gate inputs ``g [...,HV,K]``, differentiable.

    ``-exp(A_log) softplus(g + dt_bias)``, or with ``lower_bound``
    ``lower_bound * sigmoid(exp(A_log) (g + dt_bias))``; A_log ``[HV]``, dt_bias ``[HV*K]`` or
    ``[HV,K]``. Evaluated in fp32 (fp64 for an fp64 g).

    >>> import torch
    >>> from linattn.ops.kda import fused_kda_gate
    >>> fused_kda_gate(torch.zeros(1, 1, 2, 3), torch.zeros(2), lower_bound=-5.0).unique()
    tensor([-2.5000])
    """
    check_gate(g, A_log, dt_bias, 2)
    x = g if g.dtype == torch.float64 else g.float()
    if dt_bias is not None:
        x = x + dt_bias.to(x.dtype).view(x.shape[-2:])
    factor = None if A_log is None else A_log.to(x.dtype).exp().view(-1, 1)
    if lower_bound is not None:
        return (lower_bound * torch.sigmoid(x if factor is None else factor * x)).to(output_dtype)
    if factor is None:
        raise ValueError("A_log is None; allowed with lower_bound alone")
    return (-factor * F.softplus(x, threshold=20.0)).to(output_dtype)


def naive_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    *,
    cu_seqlens: Tensor | None = None,
    state_v_first: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``chunk_kda`` in plain torch, a token at a time: slow, differentiable to any order.

    ``g`` is log decays and ``beta`` values; computes in fp32, or in fp64 where an input is.
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
