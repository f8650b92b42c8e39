"""Layers of the additive rule: Gated Linear Attention and Lightning Attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from linattn.nn._check import key_dim, multiple, one_of, positive, scaled
from linattn.nn._mixer import HeadMixer, TokenMixer
from linattn.nn.norm import FusedRMSNormGated, RMSNorm
from linattn.ops.gla import chunk_gla, fused_recurrent_gla
from linattn.ops.lightning_attn import chunk_lightning_attn, fused_recurrent_lightning_attn


def _squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "logsigmoid": F.logsigmoid,
    "silu": F.silu,
    "swish": F.silu,
    "sqrelu": _squared_relu,
    "gelu": partial(F.gelu, approximate="tanh"),
}


class GatedLinearAttention(TokenMixer):
    """Gated Linear Attention (arXiv 2312.06635): additive rule, a decay for every key channel.

    Log decay ``logsigmoid(gk_proj(x)) / gate_logit_normalizer``, evaluated in fp32; output
    ``rms_norm(o) * gate_fn(g_proj(x))``. Parameters are named as in FLA's layer of this name, so
    its checkpoints load.

    Args:
        mode: ``"chunk"`` (single tokens take the token-by-token operator all the same), or
            ``"fused_recurrent"`` always.
        hidden_size: model width.
        expand_k, expand_v: key and value channels of all heads over ``hidden_size``; both
            products are whole multiples of ``num_heads``. A head's key dimension is at most 256.
        num_heads: query heads.
        num_kv_heads: key and value heads, a divisor of ``num_heads``; default ``num_heads``.
        feature_map: activation on q and k: ``None``, or one of ``relu``, ``sigmoid``,
            ``logsigmoid``, ``silu``, ``swish``, ``sqrelu``, ``gelu``.
        use_short_conv, conv_size, conv_bias: short convolution of q, k, v.
        use_output_gate: gate the output; else only normalise it.
        gate_fn: activation of the output gate, one of those of ``feature_map``.
        elementwise_affine, norm_eps: of the output norm.
        gate_logit_normalizer: divides the log decay; positive.
        gate_low_rank_dim: rank of the gate's projection.
        clamp_min: floor of the log decay, at most 0, or ``None``.
        fuse_norm: name the norm of a swish gate ``g_norm_swish_gate``, else ``g_norm``; the
            mathematics is the same.
        layer_idx: the layer's entry in a :class:`~linattn.nn.DecodeCache`.

    Raises:
        ValueError: an argument is outside what is stated above.
    """

    def __init__(
        self,
        mode: str = "chunk",
        hidden_size: int = 1024,
        expand_k: float = 0.5,
        expand_v: float = 1.0,
        num_heads: int = 4,
        num_kv_heads: int | None = None,
        feature_map: str | None = None,
        use_short_conv: bool = False,
        conv_size: int = 4,
        conv_bias: bool = False,
        use_output_gate: bool = True,
        gate_fn: str = "swish",
        elementwise_affine: bool = True,
        norm_eps: float = 1e-5,
        gate_logit_normalizer: float = 16,
        gate_low_rank_dim: int = 16,
        clamp_min: float | None = None,
        fuse_norm: bool = True,
        layer_idx: int | None = None,
    ) -> None:
        super().__init__(hidden_size, mode, layer_idx)
        positive("num_heads", num_heads)
        positive("gate_low_rank_dim", gate_low_rank_dim)
        num_kv_heads = num_heads if num_kv_heads is None else positive("num_kv_heads", num_kv_heads)
        if num_heads % num_kv_heads != 0:
            raise ValueError(f"num_kv_heads={num_kv_heads}: must divide num_heads={num_heads}")
        if feature_map is not None:
            one_of("feature_map", feature_map, tuple(ACTIVATIONS))
        one_of("gate_fn", gate_fn, tuple(ACTIVATIONS))
        if not gate_logit_normalizer > 0:
            raise ValueError(f"gate_logit_normalizer={gate_logit_normalizer!r}: must be above 0")
        if clamp_min is not None and not clamp_min <= 0:
            raise ValueError(f"clamp_min={clamp_min!r}: must be None or at most 0")
        self.num_heads = num_heads
        self.num_kv_groups = num_heads // num_kv_heads
        key_channels = scaled("expand_k", expand_k, "hidden_size", hidden_size)
        value_channels = scaled("expand_v", expand_v, "hidden_size", hidden_size)
        self.key_dim = multiple("expand_k * hidden_size", key_channels, "num_heads", num_heads)
        self.value_dim = multiple("expand_v * hidden_size", value_channels, "num_heads", num_heads)
        self.head_k_dim = key_dim("expand_k * hidden_size / num_heads", self.key_dim // num_heads)
        self.head_v_dim = self.value_dim // num_heads
        self.feature_map = feature_map
        self.use_output_gate = use_output_gate
        self.gate_logit_normalizer = gate_logit_normalizer
        self.clamp_min = clamp_min
        self.gate_fn = gate_fn

        shared_key_dim = self.key_dim // self.num_kv_groups
        shared_value_dim = self.value_dim // self.num_kv_groups
        self.q_proj = nn.Linear(hidden_size, self.key_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, shared_key_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, shared_value_dim, bias=False)
        if use_output_gate:
            self.g_proj = nn.Linear(hidden_size, self.value_dim, bias=False)
        if use_short_conv:
            self._add_convolutions(
                (self.key_dim, shared_key_dim, shared_value_dim), conv_size, conv_bias
            )
        self.gk_proj = nn.Sequential(
            nn.Linear(hidden_size, gate_low_rank_dim, bias=False),
            nn.Linear(gate_low_rank_dim, shared_key_dim, bias=True),
        )
        self.o_proj = nn.Linear(self.value_dim, hidden_size, bias=False)
        if gate_fn == "swish" and fuse_norm and use_output_gate:
            self.g_norm_swish_gate = FusedRMSNormGated(
                self.head_v_dim, elementwise_affine, norm_eps
            )
        else:
            self.g_norm = RMSNorm(
                self.head_v_dim, elementwise_affine, norm_eps, dtype=torch.float32
            )

    def _silu_without_convolution(self) -> bool:
        return False

    def _operator(
        self,
        hidden_states: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        recurrent: bool,
        **carried: Any,
    ) -> tuple[Tensor, Tensor | None]:
        # fp32: a log decay rounded to bf16 would be off by up to 0.4 % at every token.
        gate = F.logsigmoid(self.gk_proj(hidden_states).float()) / self.gate_logit_normalizer
        if self.clamp_min is not None:
            gate = gate.clamp_min(self.clamp_min)
        gate = gate.unflatten(-1, (-1, self.head_k_dim))
        if self.num_kv_groups > 1:
            k, v, gate = (x.repeat_interleave(self.num_kv_groups, dim=2) for x in (k, v, gate))
        if self.feature_map is not None:
            q, k = ACTIVATIONS[self.feature_map](q), ACTIVATIONS[self.feature_map](k)
        operator = fused_recurrent_gla if recurrent else chunk_gla
        return operator(
            q,
            k,
            v,
            gate,
            **carried,
        )

    def _output(self, hidden_states: Tensor, o: Tensor) -> Tensor:
        if not self.use_output_gate:
            return self.g_norm(o)
        gate = self.g_proj(hidden_states).unflatten(-1, (self.num_heads, -1))
        if hasattr(self, "g_norm_swish_gate"):
            return self.g_norm_swish_gate(o, gate)
        return self.g_norm(o) * ACTIVATIONS[self.gate_fn](gate)


class LightningAttention(HeadMixer):
    """Lightning Attention (arXiv 2405.17381): additive rule, one constant decay for a head.

    Log decay of value head ``h`` of ``H``: ``-(8 / H) * (1 - layer_idx / num_layers) * h``, so
    head 0 never decays and later layers decay less. q, k, v pass through SiLU; output
    ``rms_norm(o) * sigmoid(g_proj(x))``.

    Args:
        hidden_size: model width.
        layer_idx: index of the layer in the model, in ``[0, num_layers)``; also its entry in a
            :class:`~linattn.nn.DecodeCache`.
        num_layers: layers of the model.
        expand_v: value dimension of a head over ``head_dim``; their product is a whole number.
        head_dim: key dimension of a head, at most 256.
        num_heads: q/k heads.
        num_v_heads: value heads, a multiple of ``num_heads``; default ``num_heads``.
        mode, use_short_conv, conv_size, conv_bias, norm_eps: as
            :class:`~linattn.nn.KimiDeltaAttention`.

    Raises:
        ValueError: an argument is outside what is stated above.
    """

    layer_idx: int

    def __init__(
        self,
        hidden_size: int = 2048,
        *,
        layer_idx: int,
        num_layers: int,
        expand_v: float = 1,
        head_dim: int = 128,
        num_heads: int = 16,
        num_v_heads: int | None = None,
        mode: str = "chunk",
        use_short_conv: bool = False,
        conv_size: int = 4,
        conv_bias: bool = False,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(
            hidden_size,
            expand_v,
            head_dim,
            num_heads,
            num_v_heads,
            mode,
            use_short_conv,
            conv_size,
            conv_bias,
            layer_idx,
        )
        self.num_layers = positive("num_layers", num_layers)
        if layer_idx >= num_layers:
            raise ValueError(f"layer_idx={layer_idx}: must be below num_layers={num_layers}")
        self.g_proj = nn.Linear(hidden_size, self.value_dim, bias=False)
        self.o_norm = FusedRMSNormGated(self.head_v_dim, eps=norm_eps, activation="sigmoid")

    def _operator(
        self,
        hidden_states: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        recurrent: bool,
        **carried: Any,
    ) -> tuple[Tensor, Tensor | None]:
        operator = fused_recurrent_lightning_attn if recurrent else chunk_lightning_attn
        return operator(
            q,
            k,
            v,
            layer_idx=self.layer_idx,
            num_layers=self.num_layers,
            **carried,
        )

    def _output(self, hidden_states: Tensor, o: Tensor) -> Tensor:
        return self.o_norm(o, self._value_heads(self.g_proj(hidden_states)))
