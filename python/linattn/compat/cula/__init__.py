"""``cula``: KDA and Lightning Attention, prefill and decode."""

from . import kda, lightning, utils

__all__ = ["kda", "lightning", "utils"]
