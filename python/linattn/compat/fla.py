"""linattn as a backend of flash-linear-attention's own dispatcher.

``import linattn.compat.fla`` puts linattn before FLA's kernels for ``chunk_kda`` and
``chunk_gated_delta_rule``, its two dispatched operators. A call that linattn does not take goes
on to FLA's next backend, and FLA logs the reason. ``LINATTN_FLA=0`` switches it off.
"""

from __future__ import annotations

from typing import Any

import torch
from fla.ops.backends import BackendRegistry, BaseBackend
from torch import Tensor

from .. import ops
from .._dispatch import explain

__all__ = ["LinattnBackend", "register"]

OPERATIONS = {"kda": "chunk_kda", "gated_delta_rule": "chunk_gated_delta_rule"}


class LinattnBackend(BaseBackend):
    """Answers FLA's question whether linattn takes a call, and why not."""

    backend_type = "linattn"
    package_name = "linattn"
    env_var = "LINATTN_FLA"
    default_enable = True
    priority = 1

    def _verify(self, op: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        tensors = (t for t in (*args, *options.values()) if isinstance(t, Tensor))
        train = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        for name in (op, f"{op}_bwd") if train else (op,):
            try:
                answer = explain(name, *args, **options)
            except (ValueError, TypeError, NotImplementedError) as error:
                return False, str(error)
            if answer.implementation is None:
                reasons = (f"{entry}: {why}" for entry, why in answer.refused.items())
                return False, f"{name}: {'; '.join(reasons)}"
            if answer.implementation == "reference":
                return False, f"{name}: only the reference implementation takes it"
        return True, None

    def chunk_kda_verifier(self, *args: Any, **options: Any) -> Any:
        return self._verify("chunk_kda", args, options)

    def chunk_kda(self, *args: Any, **options: Any) -> Any:
        return ops.chunk_kda(*args, **options)

    def chunk_gated_delta_rule_verifier(self, *args: Any, **options: Any) -> Any:
        return self._verify("chunk_gated_delta_rule", args, options)

    def chunk_gated_delta_rule(self, *args: Any, **options: Any) -> Any:
        return ops.chunk_gated_delta_rule(*args, **options)


def register() -> None:
    """Registers the backend with each of FLA's registries; again it changes nothing."""
    for operation in OPERATIONS:
        BackendRegistry.ensure_initialized(operation)
        registry = BackendRegistry._registries.get(operation)
        if registry is None:
            registry = BackendRegistry(operation)
        if "linattn" not in registry._backends:
            registry.register(LinattnBackend())


register()
