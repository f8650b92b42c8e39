"""Depthwise causal convolution over the token axis, with carried state and packed documents."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from linattn.nn._check import one_of, positive, sequences


class ShortConvolution(nn.Conv1d):
    """``y[t, d] = act(bias[d] + sum_w weight[d, 0, w] * x[t - W + 1 + w, d])``.

    Inputs before a sequence's first token come from its state, or are zero.

    Args:
        hidden_size: channels ``D``.
        kernel_size: taps ``W``; the last one weighs the current token.
        bias: learn ``bias [D]``.
        activation: ``"silu"``, its other name ``"swish"``, or ``None``.
    """

    def __init__(
        self,
        hidden_size: int,
        kernel_size: int,
        bias: bool = False,
        activation: str | None = "silu",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        positive("hidden_size", hidden_size)
        positive("kernel_size", kernel_size)
        if activation is not None:
            one_of("activation", activation, ("silu", "swish"))
        super().__init__(
            hidden_size,
            hidden_size,
            kernel_size,
            groups=hidden_size,
            bias=bias,
            device=device,
            dtype=dtype,
        )
        self.hidden_size = hidden_size
        self.width = kernel_size
        self.activation = activation

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        residual: Tensor | None = None,
        mask: Tensor | None = None,
        cache: Tensor | None = None,
        output_final_state: bool = False,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Convolves ``x``.

        Args:
            x: ``[B, T, D]``; ``B = 1`` with ``cu_seqlens``. Any ``T``, zero included.
            residual: ``[B, T, D]``, added after the activation.
            mask: ``[B, T]``, multiplies ``x``; not together with ``cu_seqlens``.
            cache: state ``[N, D, W]``: the last ``W`` inputs of each sequence, oldest first. Never
                modified.
            output_final_state: return the new state.
            cu_seqlens: ``[N+1]`` int32 or int64 offsets of packed sequences. Rows at and after the
                last offset belong to none: their outputs and gradients are zero.

        Returns:
            ``y [B, T, D]`` and the state ``[N, D, W]``, or ``None`` when not asked for.

        Raises:
            ValueError: a shape does not fit, or ``mask`` comes with ``cu_seqlens``.
            TypeError: ``cu_seqlens`` is not int32 or int64.
        """
        num_sequences = sequences(x, "x", self.hidden_size, cu_seqlens)
        state_shape = (num_sequences, self.hidden_size, self.width)
        if cache is not None and cache.shape != state_shape:
            raise ValueError(
                f"cache has shape {tuple(cache.shape)}: must be [N, D, W] = {list(state_shape)}"
            )
        if mask is not None:
            if cu_seqlens is not None:
                raise ValueError("mask is given with cu_seqlens: only one of them is allowed")
            if mask.shape != x.shape[:2]:
                raise ValueError(f"mask has shape {tuple(mask.shape)}: must be {[*x.shape[:2]]}")
            x = x * mask.unsqueeze(-1).to(x.dtype)
        history = x.new_zeros(state_shape) if cache is None else cache.to(x.dtype)
        if cu_seqlens is None:
            y, state = self._dense(x, history, output_final_state)
        else:
            y, state = self._packed(x, history, cu_seqlens)
        if residual is not None:
            y = y + residual
        return y, (state if output_final_state else None)

    def _dense(self, x: Tensor, history: Tensor, want_state: bool) -> tuple[Tensor, Tensor | None]:
        width, num_tokens = self.width, x.shape[1]
        if num_tokens == 0:
            return x, history
        if num_tokens == 1:
            window = torch.cat([history[:, :, 1:], x.transpose(1, 2)], dim=2)
            y = (window * self.weight[:, 0].to(x.dtype)).sum(-1)
            y = y if self.bias is None else y + self.bias.to(x.dtype)
            return self._activate(y).unsqueeze(1), window
        past = history.transpose(1, 2)
        y = self._convolve(torch.cat([past[:, 1:], x], dim=1))
        if not want_state:
            return y, None
        # Sequences shorter than the kernel keep part of their history.
        recent = torch.cat([past, x[:, max(0, num_tokens - width) :]], dim=1)
        return y, recent[:, -width:].transpose(1, 2).contiguous()

    def _packed(self, x: Tensor, history: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        """One convolution over all documents, each preceded by its own W rows of history."""
        width, num_tokens, num_sequences = self.width, x.shape[1], history.shape[0]
        offsets = cu_seqlens.to(torch.int64)
        ends = offsets[1:] + width * torch.arange(1, num_sequences + 1, device=x.device)
        last_rows = ends.unsqueeze(1) + torch.arange(-width, 0, device=x.device)
        starts = offsets[:-1] + width * torch.arange(num_sequences, device=x.device)
        history_rows = starts.unsqueeze(1) + torch.arange(width, device=x.device)

        token = torch.arange(num_tokens, device=x.device)
        owned = token < offsets[-1]
        sequence = torch.searchsorted(offsets[1:], token, right=True).clamp_max(num_sequences - 1)
        rows = token + width * (sequence + 1)

        # where(), not a product: rows that nobody owns may hold NaN.
        inside = torch.where(owned.unsqueeze(-1), x[0], 0)
        padded = x.new_zeros(num_tokens + width * num_sequences, self.hidden_size)
        padded = padded.index_copy(0, rows, inside)
        past = history.transpose(1, 2).reshape(-1, self.hidden_size)
        padded = padded.index_copy(0, history_rows.flatten(), past)

        y = self._convolve(padded.unsqueeze(0))[0].index_select(0, rows - (width - 1))
        y = torch.where(owned.unsqueeze(-1), y, 0).unsqueeze(0)
        state = padded.index_select(0, last_rows.flatten()).unflatten(0, (num_sequences, width))
        return y, state.transpose(1, 2).contiguous()

    def _convolve(self, x: Tensor) -> Tensor:
        """``[B, T + W - 1, D] -> [B, T, D]``."""
        # As a 2-D convolution over a channels-last view: on the CPU 9x faster than conv1d, which
        # would transpose to channel-major and back.
        y = F.conv2d(
            x.transpose(1, 2).unsqueeze(2),
            self.weight.unsqueeze(2).to(x.dtype),
            None if self.bias is None else self.bias.to(x.dtype),
            groups=self.hidden_size,
        )
        return self._activate(y.squeeze(2).transpose(1, 2))

    def _activate(self, y: Tensor) -> Tensor:
        return y if self.activation is None else F.silu(y)

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"{self.hidden_size}, width={self.width}, bias={bias}, activation={self.activation}"
