"""``flash_qla``: the gated delta rule over whole sequences, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._arguments import refuse
from ..ops import gated_delta_rule as gdn
from ..ops._lowlevel import Saved, describe_call
from ._shared import need_tensors

__all__ = ["chunk_gated_delta_rule", "chunk_gated_delta_rule_bwd", "chunk_gated_delta_rule_fwd"]


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
    cu_seqlens: Tensor | None = None,
    head_first: bool = False,
    state_v_first: bool = False,
    auto_cp: bool = True,
    enable_fwd_cp_cache: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """``linattn.ops.chunk_gated_delta_rule`` in flash_qla's order of arguments.

    ``auto_cp`` cuts long sequences exactly, never dropping state. ``enable_fwd_cp_cache`` is a
    hint: the backward pass needs no such cache.
    """
    if head_first:
        refuse(head_first=(head_first, False))
    result: tuple[Tensor, Tensor | None] = gdn.chunk_gated_delta_rule(
        q,
        k,
        v,
        g,
        beta,
        scale,
        initial_state,
        output_final_state,
        use_qk_l2norm_in_kernel,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        auto_cp=auto_cp,
    )
    return result


def chunk_gated_delta_rule_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    output_final_state: bool = True,
    output_h: bool = False,
    auto_cp: bool = True,
    state_v_first: bool = False,
    enable_fwd_cp_cache: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, None]:
    """``(g, A, o, h, final_state, cp_cache)`` without autograd.

    ``g`` and ``A`` are opaque: they are for ``chunk_gated_delta_rule_bwd``, which recomputes from
    the inputs, so ``g`` is the decays as given, ``A`` has no elements and ``cp_cache`` is None.
    ``h``, with ``output_h``, is the state before every 64 tokens, in the type of k.
    """
    result = gdn.chunk_gated_delta_rule_fwd(
        q,
        k,
        v,
        g,
        beta,
        scale,
        initial_state,
        output_final_state,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        auto_cp=auto_cp,
        return_intermediate_states=output_h,
    )
    h = result.intermediate_states
    return g, k.new_empty(0), result.o, h, result.final_state, None


def chunk_gated_delta_rule_bwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A: Tensor | None,
    do: Tensor,
    dht: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    state_v_first: bool = False,
    auto_cp: bool = True,
    cp_cache: Any = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """``(dq, dk, dv, dbeta, dg, dh0)``; ``g``, ``A`` and ``cp_cache`` are those of ``_fwd``.

    ``dg`` is fp32, ``dh0`` in the type of ``dht`` (fp32 without one), None without
    ``initial_state``.
    """
    need_tensors(q=q, k=k, v=v, g=g, beta=beta, do=do)
    if A is not None and A.numel():
        raise ValueError(
            f"A has shape {list(A.shape)}; allowed: what linattn's chunk_gated_delta_rule_fwd "
            "returned, which has no elements"
        )
    if cp_cache is not None:
        raise ValueError("cp_cache is given; allowed: None, which is what the forward pass returns")
    saved = _saved(q, k, v, g, beta, scale, initial_state, cu_seqlens, state_v_first, auto_cp)
    found = gdn.chunk_gated_delta_rule_bwd(saved, do, dht)
    assert found.dq is not None and found.dk is not None and found.dv is not None
    assert found.dbeta is not None and found.dg is not None
    dh0 = found.dh0
    if dh0 is not None:
        dh0 = dh0.to(torch.float32 if dht is None else dht.dtype)
    return found.dq, found.dk, found.dv, found.dbeta, found.dg.float(), dh0


def _saved(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    state_v_first: bool,
    auto_cp: bool,
) -> Saved:
    """What the forward pass saved, from the arguments that flash_qla passes again."""
    return describe_call(
        gdn.chunk_gated_delta_rule,
        q,
        k,
        v,
        g,
        beta,
        scale,
        initial_state,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        auto_cp=auto_cp,
    )
