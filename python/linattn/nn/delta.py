"""Layers of the delta rule: Kimi Delta Attention and Gated DeltaNet."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from linattn.nn._mixer import HeadMixer, undecayed
from linattn.nn.norm import FusedRMSNormGated, RMSNorm
from linattn.ops.gated_delta_rule import (
    chunk_gated_delta_rule,
    fused_recurrent_gated_delta_rule,
)
from linattn.ops.kda import chunk_kda, fused_recurrent_kda

# Time steps at initialisation are log-uniform in this range, as in Mamba-2.
DT_MIN, DT_MAX = 1e-3, 1e-1


def initial_dt_bias(count: int) -> Tensor:
    """``softplus^-1(dt)`` for ``dt`` log-uniform in ``[DT_MIN, DT_MAX]``."""
    dt = torch.empty(count).uniform_(math.log(DT_MIN), math.log(DT_MAX)).exp()
    return dt + torch.log(-torch.expm1(-dt))


class KimiDeltaAttention(HeadMixer):
    """Kimi Delta Attention (arXiv 2510.26692): delta rule with a decay for every key channel.

    Log decay ``-exp(A_log) * softplus(f_proj(x) + dt_bias)``, or with ``lower_bound`` given
    ``lower_bound * sigmoid(exp(A_log) * (f_proj(x) + dt_bias))``; ``beta = sigmoid(b_proj(x))``;
    q and k normalised inside the operator; output ``rms_norm(o) * sigmoid(g_proj(x))``.
    Parameters are named as in FLA's layer of this name, so its checkpoints load.

    Args:
        hidden_size: model width.
        expand_v: value dimension of a head over ``head_dim``; their product is a whole number.
        head_dim: key dimension of a head, at most 256.
        num_heads: q/k heads.
        num_v_heads: value heads, a multiple of ``num_heads``; default ``num_heads``.
        mode: ``"chunk"`` (single tokens take the token-by-token operator all the same), or
            ``"fused_recurrent"`` always.
        use_short_conv: convolve q, k, v over the last ``conv_size`` tokens.
        allow_neg_eigval: ``beta = 2 * sigmoid``.
        safe_gate: promise that log decays are in ``[-5, 0)``, which lets faster kernels run;
            needs ``lower_bound``.
        lower_bound: in ``[-5, 0)``: choose the bounded gate.
        conv_size, conv_bias: of the short convolutions.
        layer_idx: the layer's entry in a :class:`~linattn.nn.DecodeCache`.
        norm_eps: of the output norm.

    Raises:
        ValueError: an argument is outside what is stated above.
    """

    def __init__(
        self,
        hidden_size: int = 2048,
        expand_v: float = 1,
        head_dim: int = 128,
        num_heads: int = 16,
        num_v_heads: int | None = None,
        mode: str = "chunk",
        use_short_conv: bool = True,
        allow_neg_eigval: bool = False,
        safe_gate: bool = False,
        lower_bound: float | None = None,
        conv_size: int = 4,
        conv_bias: bool = False,
        layer_idx: int | None = None,
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
        self.allow_neg_eigval = allow_neg_eigval
        self.b_proj = nn.Linear(hidden_size, self.num_v_heads, bias=False)
        if lower_bound is not None and not -5 <= lower_bound < 0:
            raise ValueError(f"lower_bound={lower_bound!r}: must be None or in [-5, 0)")
        if safe_gate and lower_bound is None:
            raise ValueError("safe_gate=True: needs lower_bound in [-5, 0), which is None")
        self.safe_gate = safe_gate
        self.lower_bound = lower_bound

        rank, gate_dim = self.head_v_dim, self.num_v_heads * self.head_k_dim
        self.f_proj = nn.Sequential(
            nn.Linear(hidden_size, rank, bias=False), nn.Linear(rank, gate_dim, bias=False)
        )
        self.g_proj = nn.Sequential(
            nn.Linear(hidden_size, rank, bias=False), nn.Linear(rank, self.value_dim, bias=True)
        )
        decay = torch.empty(self.num_v_heads).uniform_(1, 16).log()
        self.A_log = undecayed(torch.zeros_like(decay) if safe_gate else decay)
        self.dt_bias = undecayed(initial_dt_bias(gate_dim))
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
        # The token-by-token operator has no kernels to choose from by that promise.
        promise: dict[str, Any] = {} if recurrent else {"safe_gate": self.safe_gate}
        operator = fused_recurrent_kda if recurrent else chunk_kda
        return operator(
            q,
            k,
            v,
            self._value_heads(self.f_proj(hidden_states)),
            self.b_proj(hidden_states),
            # fp32 also when the module was converted to bf16.
            A_log=self.A_log.float(),
            dt_bias=self.dt_bias.float(),
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            allow_neg_eigval=self.allow_neg_eigval,
            lower_bound=self.lower_bound,
            **promise,
            **carried,
        )

    def _output(self, hidden_states: Tensor, o: Tensor) -> Tensor:
        return self.o_norm(o, self._value_heads(self.g_proj(hidden_states)))


class GatedDeltaNet(HeadMixer):
    """Gated DeltaNet (arXiv 2412.06464): delta rule with one decay for a head.

    Log decay ``-exp(A_log) * softplus(a_proj(x) + dt_bias)``; ``beta = sigmoid(b_proj(x))``;
    q and k normalised inside the operator; output ``rms_norm(o) * silu(g_proj(x))``.
    Parameters are named as in FLA's layer of this name, so its checkpoints load.

    Args:
        hidden_size, expand_v, head_dim, num_heads, num_v_heads, mode: as KimiDeltaAttention.
        use_short_conv, allow_neg_eigval, conv_size, conv_bias, layer_idx, norm_eps: likewise.
        use_gate: gate the output; else only normalise it.

    Raises:
        ValueError: an argument is outside what is stated above.
    """

    def __init__(
        self,
        hidden_size: int = 2048,
        expand_v: float = 2,
        head_dim: int = 256,
        num_heads: int = 6,
        num_v_heads: int | None = None,
        mode: str = "chunk",
        use_gate: bool = True,
        use_short_conv: bool = True,
        allow_neg_eigval: bool = False,
        conv_size: int = 4,
        conv_bias: bool = False,
        layer_idx: int | None = None,
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
        self.allow_neg_eigval = allow_neg_eigval
        self.b_proj = nn.Linear(hidden_size, self.num_v_heads, bias=False)
        self.use_gate = use_gate
        self.a_proj = nn.Linear(hidden_size, self.num_v_heads, bias=False)
        # The floor keeps log(0) out: uniform_ may draw 0.
        decay = torch.empty(self.num_v_heads).uniform_(0, 16).clamp_min(1e-4)
        self.A_log = undecayed(decay.log())
        self.dt_bias = undecayed(initial_dt_bias(self.num_v_heads))
        self.o_norm: nn.Module
        if use_gate:
            self.g_proj = nn.Linear(hidden_size, self.value_dim, bias=False)
            self.o_norm = FusedRMSNormGated(self.head_v_dim, eps=norm_eps)
        else:
            self.o_norm = RMSNorm(self.head_v_dim, eps=norm_eps, dtype=torch.float32)

    def _operator(
        self,
        hidden_states: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        recurrent: bool,
        **carried: Any,
    ) -> tuple[Tensor, Tensor | None]:
        operator = fused_recurrent_gated_delta_rule if recurrent else chunk_gated_delta_rule
        return operator(
            q,
            k,
            v,
            g=self.a_proj(hidden_states),
            beta=self.b_proj(hidden_states),
            A_log=self.A_log.float(),
            dt_bias=self.dt_bias.float(),
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            allow_neg_eigval=self.allow_neg_eigval,
            **carried,
        )

    def _output(self, hidden_states: Tensor, o: Tensor) -> Tensor:
        if self.use_gate:
            return self.o_norm(o, self._value_heads(self.g_proj(hidden_states)))
        return self.o_norm(o)
