"""Lightning Attention: a constant decay for every head, additive update (arXiv 2405.17381)."""

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
    "chunk_lightning_attn",
    "chunk_lightning_attn_bwd",
    "chunk_lightning_attn_fwd",
    "fused_recurrent_lightning_attn",
    "lightning_log_decay",
    "naive_recurrent_lightning_attn",
]

_decays: dict[tuple[int, int, int, torch.device], Tensor] = {}


def lightning_log_decay(
    heads: int, layer_idx: int, num_layers: int, device: torch.device | str | None = None
) -> Tensor:
    """``[heads]`` fp32: head h of a layer decays by ``-(8/heads) (1 - layer_idx/num_layers) h``.

    >>> from linattn.ops.lightning_attn import lightning_log_decay
    >>> lightning_log_decay(4, 0, 2)
    tensor([-0., -2., -4., -6.])
    """
    for name, value in (("layer_idx", layer_idx), ("num_layers", num_layers)):
        if not isinstance(value, int):
            raise TypeError(f"{name} has type {type(value).__name__}; allowed: int")
    if num_layers < 1:
        raise ValueError(f"num_layers is {num_layers}; allowed: at least 1")
    if not 0 <= layer_idx < num_layers:
        raise ValueError(
            f"layer_idx is {layer_idx}; allowed: 0 to num_layers - 1 = {num_layers - 1}"
        )
    slope = -(8 / max(heads, 1)) * (1 - layer_idx / num_layers)
    return slope * torch.arange(heads, dtype=torch.float32, device=device)


def _g_gamma(v: Tensor, layer_idx: int, num_layers: int) -> Tensor:
    """The layer's decays, kept between calls where the tensors are plain ones."""
    heads = v.shape[2] if isinstance(v, Tensor) and v.dim() > 2 else 1
    device = v.device if isinstance(v, Tensor) else None
    if torch.compiler.is_compiling() or device is None or torch._C._len_torch_dispatch_stack():
        return lightning_log_decay(heads, layer_idx, num_layers, device)
    key = (heads, layer_idx, num_layers, device)
    kept = _decays.get(key)
    if kept is None:
        # Neither an inference tensor, which autograd refuses later, nor one that only the replay
        # of a CUDA graph fills in, may be kept.
        with torch.inference_mode(False):
            kept = lightning_log_decay(heads, layer_idx, num_layers, device)
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            _decays[key] = kept
    return kept


def chunk_lightning_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_idx: int,
    num_layers: int,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
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
    cu_seqlens_cpu: Tensor | None = None,
) -> Any:
    """Lightning Attention over whole sequences.

    Per value head h of HV, with ``s = (8/HV) (1 - layer_idx/num_layers) h``::

        S <- exp(-s) S + k_t v_t^T
        o_t = scale * S^T q_t

    Args:
        q, k: ``[B,T,H,K]``, bf16, fp16 or fp32.
        v: ``[B,T,HV,V]`` in the type of q; HV a multiple of H.
        layer_idx, num_layers: this layer and how many there are; head 0 never decays.

    The other arguments, and what is raised when, are described in ``linattn.ops``.

    Returns:
        ``(o, final_state)``, with ``return_intermediate_states`` ``(o, final_state, states)``.

    >>> import torch
    >>> from linattn.ops.lightning_attn import chunk_lightning_attn
    >>> q, k, v = torch.randn(3, 1, 70, 2, 16).unbind(0)
    >>> chunk_lightning_attn(q, k, v, layer_idx=1, num_layers=4)[0].shape
    torch.Size([1, 70, 2, 16])
    """
    if head_first:
        refuse(head_first=(head_first, False))
    if chunk_size is not None:
        check_chunk_size(chunk_size, ())
    g_gamma = _g_gamma(v, layer_idx, num_layers)
    o, final_state, states = call(
        _abi.LIGHTNING,
        _abi.CHUNK,
        _abi.GATE_HEAD_CONSTANT,
        q,
        k,
        v,
        None,
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


def fused_recurrent_lightning_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_idx: int,
    num_layers: int,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
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
) -> tuple[Tensor, Tensor | None]:
    """Lightning Attention token by token from a state.

    Formula, shapes and types are those of ``chunk_lightning_attn``; ``reverse`` must be False.
    Differentiable without a state pool.
    """
    if reverse or head_first:
        refuse(reverse=(reverse, False), head_first=(head_first, False))
    g_gamma = _g_gamma(v, layer_idx, num_layers)
    o, final_state, _ = call(
        _abi.LIGHTNING,
        _abi.RECURRENT,
        _abi.GATE_HEAD_CONSTANT,
        q,
        k,
        v,
        None,
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


def chunk_lightning_attn_fwd(*args: Any, **options: Any) -> ForwardResult:
    """``chunk_lightning_attn`` without autograd: the same arguments, a ``ForwardResult``."""
    return _lowlevel.forward(chunk_lightning_attn, *args, **options)


def chunk_lightning_attn_bwd(
    saved: Saved | ForwardResult,
    do: Tensor,
    dht: Tensor | None = None,
    wanted: tuple[str, ...] | None = None,
) -> Gradients:
    """Gradients of a ``chunk_lightning_attn_fwd`` call.

    ``do`` is ``[B,T,HV,V]``, ``dht`` like the final state; ``wanted`` names the gradients to
    compute, such as ``("dq", "dh0")``, and None means those of every input that was given.
    """
    return _lowlevel.backward(saved, do, dht, wanted)


def naive_recurrent_lightning_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_idx: int,
    num_layers: int,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    *,
    cu_seqlens: Tensor | None = None,
    state_v_first: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``chunk_lightning_attn`` in plain torch, a token at a time: slow, differentiable."""
    o, final_state = recurrence(
        q,
        k,
        v,
        lightning_log_decay(v.shape[2], layer_idx, num_layers, v.device),
        delta=False,
        scale=scale,
        initial_state=initial_state,
        cu_seqlens=cu_seqlens,
        state_v_first=state_v_first,
    )
    return o, final_state if output_final_state else None
