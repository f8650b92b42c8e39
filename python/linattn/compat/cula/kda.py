"""``cula.kda``: chunk and prefill forms, and decode on a state pool."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ... import ops
from ..._arguments import check_chunk_indices, renamed
from .._shared import need_tensors

__all__ = [
    "chunk_kda",
    "fused_sigmoid_gating_delta_rule_update",
    "kda_decode",
    "kda_prefill_hopper",
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
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    cp_context: Any = None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
) -> Any:
    """``linattn.ops.chunk_kda`` in cuLA's order of arguments; states are ``[N,H,K,V]``."""
    return ops.chunk_kda(
        q,
        k,
        v,
        g,
        beta,
        scale,
        initial_state,
        output_final_state,
        use_qk_l2norm_in_kernel,
        use_gate_in_kernel,
        safe_gate=safe_gate,
        lower_bound=lower_bound,
        disable_recompute=disable_recompute,
        return_intermediate_states=return_intermediate_states,
        cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=cu_seqlens_cpu,
        cp_context=cp_context,
        A_log=A_log,
        dt_bias=dt_bias,
    )


def kda_prefill_hopper(
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
    safe_gate: bool = False,
    lower_bound: float | None = None,
    cu_seqlens: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """``chunk_kda`` with states ``[N,H,V,K]``, on any device.

    The final state is returned where ``output_final_state`` asks for it, else None; gradients
    are there, and ``safe_gate`` is not required.
    """
    check_chunk_indices(chunk_indices, cu_seqlens)
    result: tuple[Tensor, Tensor | None] = ops.chunk_kda(
        q,
        k,
        v,
        g,
        beta,
        scale,
        initial_state,
        output_final_state,
        use_qk_l2norm_in_kernel,
        use_gate_in_kernel,
        safe_gate=safe_gate,
        lower_bound=lower_bound,
        state_v_first=True,
        cu_seqlens=cu_seqlens,
        A_log=A_log,
        dt_bias=dt_bias,
    )
    return result


def kda_decode(
    A_log: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = True,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
    out: Tensor | None = None,
    state_layout: str = "vk",
) -> Tensor:
    """One decode step of KDA on a state pool, updated in place; returns o.

    Args:
        A_log: ``[HV]``. dt_bias: ``[HV*K]`` or ``[HV,K]``.
        q, k: ``[N,1,H,K]``, or packed ``[1,N,H,K]``. v, out: the same with HV and V.
        a: ``[N,1,HV,K]`` gate inputs: the log decay is ``-exp(A_log) softplus(a + dt_bias)``.
        b: ``[N,1,HV]`` logits of beta.
        initial_state_source: the pool, ``[P,HV,V,K]``, with ``state_layout="kv"`` ``[P,HV,K,V]``.
        initial_state_indices: ``[N]``; an index outside the pool marks a dead row, whose output
            is zero.
        cu_seqlens: ``[N+1]``, for packed sequences of other lengths than one token.
        softplus_beta, softplus_threshold: those of ``torch.nn.functional.softplus``.
    """
    return fused_sigmoid_gating_delta_rule_update(
        A_log,
        a,
        dt_bias,
        softplus_beta,
        softplus_threshold,
        q,
        k,
        v,
        b,
        initial_state_source,
        initial_state_indices,
        scale,
        use_qk_l2norm_in_kernel,
        cu_seqlens,
        True,
        out,
        state_layout,
    )


_NAMES = {
    "g": "a",
    "beta": "b",
    "initial_state": "initial_state_source",
    "state_indices": "initial_state_indices",
}


def fused_sigmoid_gating_delta_rule_update(
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    softplus_beta: float,
    softplus_threshold: float,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    is_kda: bool = False,
    out: Tensor | None = None,
    state_layout: str = "vk",
) -> Tensor:
    """``kda_decode`` under SGLang's name; with ``is_kda=False`` the gated delta rule's step.

    There ``a`` is ``[N,1,HV]`` and ``dt_bias`` ``[HV]``.
    """
    if state_layout not in ("vk", "kv"):
        raise ValueError(f"state_layout is {state_layout!r}; allowed: 'vk', 'kv'")
    need_tensors(q=q, k=k, v=v, a=a, b=b, A_log=A_log, initial_state_source=initial_state_source)
    need_tensors(initial_state_indices=initial_state_indices)
    if out is not None:
        need_tensors(out=out)
    # Packed rows are sequences of one token unless offsets say otherwise.
    packed = cu_seqlens is None and q.dim() == 4 and q.shape[0] == 1 and q.shape[1] > 1
    if packed:
        q, k, v, a, b = (t.transpose(0, 1) for t in (q, k, v, a, b))
        out = None if out is None else out.transpose(0, 1)
    gate: dict[str, Any] = {"use_gate_in_kernel": True, "A_log": A_log, "dt_bias": dt_bias}
    if (softplus_beta, softplus_threshold) != (1.0, 20.0):
        a = _gate(A_log, dt_bias, a, softplus_beta, softplus_threshold, is_kda)
        gate = {}
    options: dict[str, Any] = {
        "scale": scale,
        "initial_state": initial_state_source,
        "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
        "use_beta_sigmoid_in_kernel": True,
        "state_v_first": state_layout == "vk",
        "cu_seqlens": cu_seqlens,
        "out": out,
        "state_indices": initial_state_indices,
    }
    try:
        if is_kda:
            o, _ = ops.fused_recurrent_kda(q, k, v, a, b, **gate, **options)
        else:
            o, _ = ops.fused_recurrent_gated_delta_rule(q, k, v, a, beta=b, **gate, **options)
    except (ValueError, TypeError) as error:
        raise renamed(error, _NAMES) from None
    return o.transpose(0, 1) if packed else o


def _gate(
    A_log: Tensor, dt_bias: Tensor, a: Tensor, beta: float, threshold: float, channels: bool
) -> Tensor:
    x = a.float()
    if dt_bias is not None:
        x = x + dt_bias.float().view(x.shape[-2:] if channels else x.shape[-1:])
    factor = A_log.float().exp()
    return -(factor[:, None] if channels else factor) * F.softplus(x, beta, threshold)
