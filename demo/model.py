"""A byte-level hybrid language model: KDA, GDN, GLA and Lightning, each followed by an MLP."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from linattn.nn import (
    DecodeCache,
    GatedDeltaNet,
    GatedLinearAttention,
    KimiDeltaAttention,
    LightningAttention,
    RMSNorm,
)

VOCABULARY = 256
TokenMixer = KimiDeltaAttention | GatedDeltaNet | GatedLinearAttention | LightningAttention


class SquaredReluMLP(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)).square())


class Block(nn.Module):
    """``x + mixer(norm(x))``, then ``x + mlp(norm(x))``."""

    def __init__(self, width: int, mixer: TokenMixer, mlp_ratio: float) -> None:
        super().__init__()
        self.mixer_norm = RMSNorm(width)
        self.mixer = mixer
        self.mlp_norm = RMSNorm(width)
        self.mlp = SquaredReluMLP(width, int(width * mlp_ratio))
        # Both branches start at zero: at step 0 the model is its embedding alone.
        nn.init.zeros_(mixer.o_proj.weight)
        nn.init.zeros_(self.mlp.down.weight)

    def forward(self, x: Tensor, cache: DecodeCache | None) -> Tensor:
        x = x + self.mixer(self.mixer_norm(x), cache)
        return x + self.mlp(self.mlp_norm(x))


def mixers(width: int, heads: int) -> list[TokenMixer]:
    """One layer of each kind. The local context that short convolutions see matters most in a
    byte model, so all four have them."""
    dim = width // heads
    kinds: list[Callable[[int], TokenMixer]] = [
        lambda i: KimiDeltaAttention(width, 1, dim, heads, layer_idx=i),
        lambda i: GatedDeltaNet(width, 1, dim, heads, layer_idx=i),
        lambda i: GatedLinearAttention(
            hidden_size=width, expand_k=1, num_heads=heads, use_short_conv=True, layer_idx=i
        ),
        lambda i: LightningAttention(
            width,
            layer_idx=i,
            num_layers=4,
            head_dim=dim,
            num_heads=heads,
            use_short_conv=True,
        ),
    ]
    return [kind(i) for i, kind in enumerate(kinds)]


class HybridLM(nn.Module):
    """Next-byte logits.

    Args:
        width: model width, a multiple of ``heads``.
        heads: heads of every mixer.
        mlp_ratio: hidden units of an MLP over ``width``.
    """

    def __init__(self, width: int, heads: int, mlp_ratio: float = 3) -> None:
        super().__init__()
        if width % heads != 0:
            raise ValueError(f"width={width}: must be a multiple of heads={heads}")
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, m, mlp_ratio) for m in mixers(width, heads))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        nn.init.normal_(self.embedding.weight, std=1.0)
        nn.init.zeros_(self.head.weight)

    def forward(self, tokens: Tensor, cache: DecodeCache | None = None) -> Tensor:
        """``tokens [B, T]`` int64 -> logits ``[B, T, 256]`` of the byte after each."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cache)
        return self.head(self.norm(x))

    def bits(self, tokens: Tensor) -> Tensor:
        """Mean bits per byte of predicting ``tokens [B, T]`` from the second on."""
        logits = self(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        return loss / math.log(2)
