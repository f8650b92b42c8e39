"""Our side of a workload: the planned call alone (kernel time), and the operator around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .. import _abi
from .._library import Device
from ..testing.cases import Case, tensor_specs
from ..testing.dtypes import encode
from ..testing.inputs import make_inputs
from ..testing.native import Block, Plan, make_block, pack_args, pack_problem

Inputs = dict[str, np.ndarray]


def bench_inputs(case: Case) -> Inputs:
    """Inputs of a large case: a part of its heads and batch is drawn, then repeated."""
    part = replace(case, batch=min(case.batch, 4), heads=min(case.heads, 8), heads_v=0, pool=None)
    drawn = make_inputs(part)
    made: Inputs = {}
    for name, spec in tensor_specs(case).items():
        if name == "state_indices":
            made[name] = np.random.default_rng(0).permutation(case.num_slots)[: case.batch]
        elif name in drawn:
            full, small = spec.shape, drawn[name].shape
            repeats = [-(-a // max(1, b)) for a, b in zip(full, small, strict=True)]
            made[name] = np.tile(drawn[name], repeats)[tuple(slice(n) for n in full)]
    return made


class Launch:
    """A plan with its memory, ready to run again and again. Nothing is poisoned or compared."""

    def __init__(self, case: Case, inputs: Inputs, device: Device,
                 implementation: str | None = None) -> None:  # fmt: skip
        self.plan = Plan(pack_problem(case, device, implementation), device)
        self.device = device
        self.blocks: dict[str, Block] = {}
        for name, spec in tensor_specs(case).items():
            values = inputs.get(name)
            bits = np.zeros(spec.shape, np.float32) if values is None else values
            flat = np.ascontiguousarray(encode(bits, spec.dtype)).reshape(-1)
            self.blocks[name] = make_block(flat.view(np.uint8), device)
        self.workspace = make_block(np.zeros(max(1, self.plan.workspace_bytes), np.uint8), device)
        addresses = {name: block.address() for name, block in self.blocks.items()}
        self.args = pack_args(addresses, self.workspace.address())

    def __call__(self) -> None:
        if self.device.type == _abi.DEVICE_CPU:
            self.plan.run(self.args)
            return
        import torch

        self.plan.run(self.args, torch.cuda.current_stream(self.device.index).cuda_stream)


# family -> (submodule of linattn.ops, chunk operator, recurrent operator)
OPERATORS = {
    "kda": ("kda", "chunk_kda", "fused_recurrent_kda"),
    "gdn": ("gated_delta_rule", "chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"),
    "delta": ("delta_rule", "chunk_delta_rule", "fused_recurrent_delta_rule"),
    "gla": ("gla", "chunk_gla", "fused_recurrent_gla"),
    "simple_gla": ("simple_gla", "chunk_simple_gla", "fused_recurrent_simple_gla"),
    "lightning": ("lightning_attn", "chunk_lightning_attn", "fused_recurrent_lightning_attn"),
}
TORCH_TYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def torch_inputs(case: Case, inputs: Inputs, device: str) -> dict[str, Any]:
    """Floating tensors in the case's types; index tensors as they are."""
    import torch

    specs = tensor_specs(case)
    made = {}
    for name, values in inputs.items():
        tensor = torch.from_numpy(np.array(values)).to(device)
        kind = TORCH_TYPES.get(specs[name].dtype)
        made[name] = tensor.to(getattr(torch, kind)) if kind else tensor
    return made


def operator_arguments(case: Case, tensors: dict[str, Any]) -> dict[str, Any]:
    """Keywords of the public operator (FLA's names)."""
    arguments = {name: tensors[name] for name in ("q", "k", "v")}
    gate = {"gla": "gk" if case.form == "recurrent" else "g"}.get(case.family, "g")
    if "g" in tensors:
        arguments[gate] = tensors["g"]
    if "beta" in tensors:
        arguments["beta"] = tensors["beta"]
    if case.family == "lightning":
        arguments |= {"layer_idx": 1, "num_layers": 10}
    elif "g_gamma" in tensors:
        arguments["g_gamma"] = tensors["g_gamma"]
    for name in ("initial_state", "state_indices"):
        if name in tensors:
            arguments[name] = tensors[name]
    if case.safe_gate:
        arguments["safe_gate"] = True
    return arguments


def operator(case: Case, module: str = "linattn.ops") -> Callable[..., Any]:
    """The operator of a case in `linattn.ops`, or under the same names in another package."""
    from importlib import import_module

    submodule, chunk, recurrent = OPERATORS[case.family]
    found = import_module(f"{module}.{submodule}")
    return getattr(found, chunk if case.form == "chunk" else recurrent)
