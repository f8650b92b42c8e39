"""What every layer shares: projections, convolutions, carried state, the choice of operator."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from linattn.nn._check import (
    key_dim,
    layer_index,
    multiple,
    one_of,
    positive,
    scaled,
    sequences,
)
from linattn.nn.cache import DecodeCache, LayerState
from linattn.nn.convolution import ShortConvolution

MODES = ("chunk", "fused_recurrent")


class TokenMixer(nn.Module):
    """Base of the layers: ``forward`` and what it needs; a subclass supplies projections and
    ``_operator`` and ``_output``."""

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    o_proj: nn.Linear
    q_conv1d: ShortConvolution
    k_conv1d: ShortConvolution
    v_conv1d: ShortConvolution
    head_k_dim: int
    head_v_dim: int

    def __init__(self, hidden_size: int, mode: str, layer_idx: int | None) -> None:
        super().__init__()
        self.hidden_size = positive("hidden_size", hidden_size)
        self.mode = one_of("mode", mode, MODES)
        self.layer_idx = layer_index(layer_idx)
        self.use_short_conv = False

    def _add_convolutions(self, dims: tuple[int, int, int], size: int, bias: bool) -> None:
        """Short convolutions over q, k, v of the given channels."""
        self.use_short_conv = True
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (
            ShortConvolution(dim, size, bias=bias, activation="silu") for dim in dims
        )

    def forward(
        self,
        hidden_states: Tensor,
        cache: DecodeCache | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Mixes tokens.

        Args:
            hidden_states: ``[B, T, hidden_size]``; ``B = 1`` with ``cu_seqlens``.
            cache: the sequences' earlier tokens; its entry ``layer_idx`` is read and replaced.
                Prefill, decode and any split between them give the same outputs within rounding.
            cu_seqlens: ``[N+1]`` int32 or int64 offsets of packed sequences, on the device. Rows
                at and after the last offset belong to none: their outputs and gradients are zero.

        Returns:
            ``[B, T, hidden_size]``.

        Raises:
            ValueError: a shape does not fit, the cache holds another number of sequences, or a
                cache is given to a layer without ``layer_idx``.
            TypeError: ``cu_seqlens`` is not int32 or int64.
        """
        num_sequences = sequences(hidden_states, "hidden_states", self.hidden_size, cu_seqlens)
        past = self._past(cache, num_sequences)
        num_tokens = hidden_states.shape[1]
        if cu_seqlens is not None:
            owned = torch.arange(num_tokens, device=hidden_states.device) < cu_seqlens[-1]
            hidden_states = torch.where(owned.unsqueeze(-1), hidden_states, 0)

        q, k, v, conv = self._qkv(hidden_states, past, cache is not None, cu_seqlens)
        state = None if past is None else past.recurrent
        # One token is the token-by-token operator's: 81 us against 104 (KDA, 8 heads of 128, one
        # core). From two on the chunk is faster: 112 us against 151, at 16 tokens 278 against 788.
        one_each = num_tokens == (1 if cu_seqlens is None else num_sequences)
        recurrent = self.mode == "fused_recurrent" or one_each
        o, state = self._operator(
            hidden_states,
            q,
            k,
            v,
            recurrent,
            initial_state=state,
            output_final_state=cache is not None,
            cu_seqlens=cu_seqlens,
        )
        if cache is not None and state is not None and self.layer_idx is not None:
            if cu_seqlens is None:
                tokens = torch.full((num_sequences,), num_tokens, device=o.device)
            else:
                tokens = cu_seqlens.diff().to(torch.int64)
            tokens = tokens if past is None else past.tokens + tokens
            cache.set(self.layer_idx, LayerState(state, conv, tokens))
        output: Tensor = self.o_proj(self._output(hidden_states, o).flatten(2))
        return output

    @abstractmethod
    def _operator(
        self,
        hidden_states: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        recurrent: bool,
        **carried: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Gates and the operator, which takes ``carried`` as it is: ``o [B, T, HV, V]`` and the
        final state ``[N, HV, K, V]``."""

    @abstractmethod
    def _output(self, hidden_states: Tensor, o: Tensor) -> Tensor:
        """Norm and output gate on ``o [B, T, HV, V]``."""

    def _silu_without_convolution(self) -> bool:
        """Whether q, k, v pass through SiLU when there is no convolution to do it."""
        return True

    def _qkv(
        self,
        hidden_states: Tensor,
        past: LayerState | None,
        want_state: bool,
        cu_seqlens: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
        """``q, k [B, T, heads, K]``, ``v [B, T, heads, V]`` and the convolutions' states."""
        q, k, v = (p(hidden_states) for p in (self.q_proj, self.k_proj, self.v_proj))
        conv: list[Tensor] = []
        if self.use_short_conv:
            layers = (self.q_conv1d, self.k_conv1d, self.v_conv1d)
            mixed = []
            for i, (layer, x) in enumerate(zip(layers, (q, k, v), strict=True)):
                y, state = layer(
                    x,
                    cache=None if past is None else past.conv[i],
                    output_final_state=want_state,
                    cu_seqlens=cu_seqlens,
                )
                mixed.append(y)
                if state is not None:
                    conv.append(state)
            q, k, v = mixed
        elif self._silu_without_convolution():
            q, k, v = F.silu(q), F.silu(k), F.silu(v)
        return (
            q.unflatten(-1, (-1, self.head_k_dim)),
            k.unflatten(-1, (-1, self.head_k_dim)),
            v.unflatten(-1, (-1, self.head_v_dim)),
            tuple(conv),
        )

    def _past(self, cache: DecodeCache | None, num_sequences: int) -> LayerState | None:
        if cache is None:
            return None
        if self.layer_idx is None:
            raise ValueError("layer_idx=None: must be the layer's index when a cache is given")
        past = cache.get(self.layer_idx)
        if past is not None and past.recurrent.shape[0] != num_sequences:
            raise ValueError(
                f"cache holds {past.recurrent.shape[0]} sequences: must be {num_sequences}, as in "
                "hidden_states (cu_seqlens, when given)"
            )
        return past


class HeadMixer(TokenMixer):
    """A mixer whose sizes are given by head, with q, k, v and output projections."""

    def __init__(
        self,
        hidden_size: int,
        expand_v: float,
        head_dim: int,
        num_heads: int,
        num_v_heads: int | None,
        mode: str,
        use_short_conv: bool,
        conv_size: int,
        conv_bias: bool,
        layer_idx: int | None,
    ) -> None:
        super().__init__(hidden_size, mode, layer_idx)
        self.num_heads = positive("num_heads", num_heads)
        self.num_v_heads = multiple(
            "num_v_heads", num_heads if num_v_heads is None else num_v_heads, "num_heads", num_heads
        )
        self.head_k_dim = key_dim("head_dim", head_dim)
        self.head_v_dim = scaled("expand_v", expand_v, "head_dim", head_dim)
        self.key_dim = self.num_heads * self.head_k_dim
        self.value_dim = self.num_v_heads * self.head_v_dim
        self.q_proj = nn.Linear(hidden_size, self.key_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, self.key_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, self.value_dim, bias=False)
        self.o_proj = nn.Linear(self.value_dim, hidden_size, bias=False)
        if use_short_conv:
            dims = (self.key_dim, self.key_dim, self.value_dim)
            self._add_convolutions(dims, conv_size, conv_bias)

    def _value_heads(self, x: Tensor) -> Tensor:
        """``[B, T, HV * D] -> [B, T, HV, D]``."""
        return x.unflatten(-1, (self.num_v_heads, -1))


def undecayed(values: Tensor) -> nn.Parameter:
    """A parameter marked, as in FLA, to be left out of weight decay."""
    parameter = nn.Parameter(values)
    parameter._no_weight_decay = True  # type: ignore[attr-defined]
    return parameter
