"""Layers over :mod:`linattn.ops`: projections, short convolution, gate, operator, gated norm.

A layer maps hidden states ``[B, T, hidden_size]`` to the same shape. Call it with a
:class:`DecodeCache` to continue sequences, and with ``cu_seqlens`` for packed documents.
"""

from linattn.nn.cache import DecodeCache, LayerState
from linattn.nn.convolution import ShortConvolution
from linattn.nn.delta import GatedDeltaNet, KimiDeltaAttention
from linattn.nn.gated import GatedLinearAttention, LightningAttention
from linattn.nn.norm import FusedRMSNormGated, RMSNorm

__all__ = [
    "DecodeCache",
    "FusedRMSNormGated",
    "GatedDeltaNet",
    "GatedLinearAttention",
    "KimiDeltaAttention",
    "LayerState",
    "LightningAttention",
    "RMSNorm",
    "ShortConvolution",
]
