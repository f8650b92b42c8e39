"""State carried from one call of a model to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LayerState:
    """What one layer remembers of ``N`` sequences.

    Attributes:
        recurrent: operator state ``[N, HV, K, V]``, fp32.
        conv: the last ``W`` inputs of each short convolution, each ``[N, D, W]``; empty for a
            layer without convolutions.
        tokens: tokens seen by each sequence, ``[N]`` int64.
    """

    recurrent: Tensor
    conv: tuple[Tensor, ...]
    tokens: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        """Everything held."""
        return (self.recurrent, *self.conv, self.tokens)

    def map(self, function: Callable[[Tensor], Tensor]) -> LayerState:
        """Returns a state with ``function`` applied to every tensor."""
        return LayerState(
            function(self.recurrent),
            tuple(function(state) for state in self.conv),
            function(self.tokens),
        )


class DecodeCache:
    """Per-layer states of a batch of sequences, keyed by the layers' ``layer_idx``.

    Starts empty: an absent state is the zero state. A layer called with the cache reads its own
    entry and replaces it; tensors are never modified in place, so a state taken out of the cache
    stays what it was, and gradients flow from a later call into an earlier one.
    """

    def __init__(self) -> None:
        self._layers: dict[int, LayerState] = {}

    def get(self, layer_idx: int) -> LayerState | None:
        """Returns the state of one layer, ``None`` before its first call."""
        return self._layers.get(layer_idx)

    def set(self, layer_idx: int, state: LayerState) -> None:
        """Replaces the state of one layer."""
        self._layers[layer_idx] = state

    def __len__(self) -> int:
        return len(self._layers)

    @property
    def tokens(self) -> Tensor | None:
        """Tokens seen by each sequence, ``[N]`` int64; ``None`` while empty."""
        return self._layers[min(self._layers)].tokens if self._layers else None

    @property
    def nbytes(self) -> int:
        """Bytes held by all states."""
        return sum(t.nbytes for state in self._layers.values() for t in state.tensors())

    def reset(self) -> None:
        """Forgets everything."""
        self._layers.clear()

    def _map(self, function: Callable[[Tensor], Tensor]) -> DecodeCache:
        copy = DecodeCache()
        copy._layers = {idx: state.map(function) for idx, state in self._layers.items()}
        return copy

    def detach(self) -> DecodeCache:
        """Returns a cache of the same tensors, cut from the autograd graph."""
        return self._map(Tensor.detach)

    def to(self, device: torch.device | str) -> DecodeCache:
        """Returns a cache on ``device``."""
        return self._map(lambda tensor: tensor.to(device))

    def select(self, sequences: Tensor) -> DecodeCache:
        """Returns a cache of the sequences with the given numbers (``[M]`` int64), repeats
        allowed: to drop finished sequences, or to fork one."""
        return self._map(lambda tensor: tensor.index_select(0, sequences))
