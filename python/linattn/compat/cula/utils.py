"""``cula.utils``: the choice of a prefill function for a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .kda import kda_prefill_hopper

__all__ = ["get_kda_fused_fwd"]


def get_kda_fused_fwd(device: torch.device | str | int | None = None) -> Callable[..., Any]:
    """The fused KDA prefill: one function for every device, which dispatches by itself."""
    if device is not None:
        torch.device(device)  # refuses what is no device
    return kda_prefill_hopper
