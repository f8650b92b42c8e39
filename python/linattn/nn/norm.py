"""Root-mean-square norms, computed in fp32 whatever the input type."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from linattn.nn._check import one_of, positive


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """``weight * x / sqrt(mean(x^2) + eps)`` over the last axis, returned in fp32."""
    weight = None if weight is None else weight.float()
    return F.rms_norm(x.float(), x.shape[-1:], weight, eps)


class RMSNorm(nn.Module):
    """``weight * x / sqrt(mean(x^2) + eps)`` over the last axis, in the type of ``x``.

    Args:
        hidden_size: size of the last axis.
        elementwise_affine: learn ``weight [hidden_size]``, else none.
        eps: added to the mean square.
    """

    weight: nn.Parameter | None

    def __init__(
        self,
        hidden_size: int,
        elementwise_affine: bool = True,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.hidden_size = positive("hidden_size", hidden_size)
        self.eps = eps
        if elementwise_affine:
            self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        else:
            self.register_parameter("weight", None)

    def forward(self, x: Tensor) -> Tensor:
        """``x [..., hidden_size]`` -> the same shape and type."""
        return rms_norm(x, self.weight, self.eps).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, elementwise_affine={self.weight is not None}, eps={self.eps}"


class FusedRMSNormGated(RMSNorm):
    """``rms_norm(x) * act(g)``, rounded once.

    Args:
        hidden_size, elementwise_affine, eps: as :class:`RMSNorm`.
        activation: ``"swish"`` or ``"silu"`` (``g * sigmoid(g)``), or ``"sigmoid"``.
    """

    def __init__(
        self,
        hidden_size: int,
        elementwise_affine: bool = True,
        eps: float = 1e-5,
        activation: str = "swish",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(hidden_size, elementwise_affine, eps, device, dtype)
        self.activation = one_of("activation", activation, ("swish", "silu", "sigmoid"))

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        g: Tensor,
        residual: Tensor | None = None,
        prenorm: bool = False,
        residual_in_fp32: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Normalises ``x + residual`` and gates it by ``g``.

        Args:
            x, g: ``[..., hidden_size]``.
            residual: added to ``x`` first, in fp32.
            prenorm: also return the sum, in the type of ``residual``; without a residual in the
                type of ``x``, or fp32 with ``residual_in_fp32``.

        Returns:
            ``y`` of the type of ``x``, with ``prenorm`` the pair ``(y, sum)``.
        """
        if g.shape != x.shape:
            raise ValueError(f"g has shape {tuple(g.shape)}: must be that of x, {tuple(x.shape)}")
        total = x.float() if residual is None else x.float() + residual.float()
        gate = g.float()
        gate = gate.sigmoid() if self.activation == "sigmoid" else F.silu(gate)
        y = (rms_norm(total, self.weight, self.eps) * gate).to(x.dtype)
        if not prenorm:
            return y
        kept = torch.float32 if residual_in_fp32 else x.dtype
        return y, total.to(kept if residual is None else residual.dtype)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation}"
