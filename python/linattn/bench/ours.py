"""Our side of a workload: the planned call alone (kernel time), and the operator around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from .. import _abi
from .._library import Device
from ..testing.cases import Case, Spec, tensor_specs
from ..testing.dtypes import encode
from ..testing.inputs import make_inputs
from ..testing.native import Block, HostBlock, Plan, pack_args
from .workloads import Workload

Inputs = dict[str, np.ndarray]
Tensors = dict[str, Any]

# Of a large case so much is drawn; the rest repeats it.
DRAWN = {"batch": 4, "tokens": 4096, "heads": 8}


def drawn_inputs(workload: Workload) -> Inputs:
    """A part of a case's inputs, to be repeated; index tensors are whole."""
    case = workload.case
    sizes = {"batch": case.batch, "tokens": case.axis_tokens, "heads": case.value_heads}
    least: dict[str, Any] = {name: min(sizes[name], most) for name, most in DRAWN.items()}
    own = replace(case, **least, lengths=(), heads_v=0, pool=None, initial_state=True)
    drawn = make_inputs(own)
    parts: Inputs = {}
    for name, spec in tensor_specs(case).items():
        if name == "state_indices":
            slots = np.arange(case.num_slots)
            if workload.shuffled:
                slots = np.random.default_rng(0).permutation(slots)
            parts[name] = slots[: np.prod(spec.shape)].reshape(spec.shape)
        elif name == "cu_seqlens":
            parts[name] = np.concatenate([[0], np.cumsum(case.lengths)])
        elif name in drawn:
            parts[name] = drawn[name]
        elif not spec.output:
            raise NotImplementedError(f"no inputs are drawn for {name}")
    return parts


def _repeats(part: Any, shape: tuple[int, ...]) -> tuple[list[int], tuple[slice, ...]]:
    counts = [-(-a // max(1, b)) for a, b in zip(shape, part.shape, strict=True)]
    return counts, tuple(slice(n) for n in shape)


class Memory(Protocol):
    """Where the tensors of a call lie."""

    addresses: dict[str, int]
    workspace: int

    def tensors(self) -> Tensors:
        """The inputs for torch operators."""
        ...


class HostMemory:
    """numpy arrays: torch is not needed."""

    def __init__(self, workload: Workload, workspace_bytes: int) -> None:
        self.case = workload.case
        self.inputs: Inputs = {}
        blocks: dict[str, Block] = {}
        parts, specs = drawn_inputs(workload), tensor_specs(self.case)
        for name, spec in specs.items():
            values = np.zeros(spec.shape, np.float32)
            if name in parts:
                counts, cut = _repeats(parts[name], spec.shape)
                values = self.inputs[name] = np.tile(parts[name], counts)[cut]
            bits = np.ascontiguousarray(encode(values, spec.dtype))
            blocks[name] = HostBlock(bits.reshape(-1).view(np.uint8))
        blocks["workspace"] = HostBlock(np.zeros(max(1, workspace_bytes), np.uint8))
        self.blocks = blocks
        self.addresses = {name: block.address() for name, block in blocks.items()}
        self.workspace = self.addresses.pop("workspace")

    def tensors(self) -> Tensors:
        return torch_inputs(self.case, self.inputs, "cpu")


class TorchMemory:
    """torch's allocator on any device: what is drawn is repeated there, so gigabytes cost nothing.

    The planned call and the operators share the inputs.
    """

    def __init__(self, workload: Workload, workspace_bytes: int, device: str) -> None:
        import torch

        parts = drawn_inputs(workload)
        self.inputs, self.blocks = {}, {}
        for name, spec in tensor_specs(workload.case).items():
            if name in parts:
                part = _to_torch(parts[name], spec, device)
                counts, cut = _repeats(part, spec.shape)
                self.inputs[name] = part.repeat(counts)[cut].contiguous()
                self.blocks[name] = self.inputs[name]
            else:
                kind = getattr(torch, TORCH_TYPES[spec.dtype])
                self.blocks[name] = torch.zeros(spec.shape, dtype=kind, device=device)
        self.blocks["workspace"] = torch.zeros(
            max(1, workspace_bytes), dtype=torch.uint8, device=device
        )
        self.addresses = {name: int(block.data_ptr()) for name, block in self.blocks.items()}
        self.workspace = self.addresses.pop("workspace")

    def tensors(self) -> Tensors:
        return self.inputs


def memory_of(workload: Workload, workspace_bytes: int, device: Device) -> Memory:
    if device.type == _abi.DEVICE_CPU:
        return HostMemory(workload, workspace_bytes)
    return TorchMemory(workload, workspace_bytes, f"cuda:{device.index}")


class Launch:
    """A plan with its memory, ready to run again and again. Nothing is poisoned or compared."""

    def __init__(self, plan: Plan, memory: Memory, device: Device) -> None:
        self.plan, self.memory, self.device = plan, memory, device
        self.args = pack_args(memory.addresses, memory.workspace)

    def __call__(self) -> None:
        if self.device.type == _abi.DEVICE_CPU:
            self.plan.run(self.args)
            return
        import torch

        self.plan.run(self.args, torch.cuda.current_stream(self.device.index).cuda_stream)

    def crossing(self, stream: int) -> Callable[[], object]:
        """The call into the library alone, for what it costs the host."""
        return partial(self.plan.library.linattn_run, self.plan.handle, self.args, stream)


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


def _to_torch(values: np.ndarray, spec: Spec, device: str) -> Any:
    """In the case's type; index tensors as they are."""
    import torch

    tensor = torch.from_numpy(np.array(values)).to(device)
    kind = TORCH_TYPES.get(spec.dtype)
    return tensor.to(getattr(torch, kind)) if kind else tensor


def torch_inputs(case: Case, inputs: Inputs, device: str) -> Tensors:
    specs = tensor_specs(case)
    return {name: _to_torch(values, specs[name], device) for name, values in inputs.items()}


def operator_arguments(case: Case, tensors: Tensors) -> dict[str, Any]:
    """Keywords of the public operator (FLA's names)."""
    arguments = {name: tensors[name] for name in ("q", "k", "v")}
    gate = {"gla": "gk" if case.form == "recurrent" else "g"}.get(case.family, "g")
    if "g" in tensors:
        arguments[gate] = tensors["g"]
    if case.family == "lightning":
        arguments |= {"layer_idx": 1, "num_layers": 10}
    elif "g_gamma" in tensors:
        arguments["g_gamma"] = tensors["g_gamma"]
    others = ("beta", "A_log", "dt_bias", "initial_state", "state_indices", "cu_seqlens")
    arguments |= {name: tensors[name] for name in others if name in tensors}
    switches = {
        "use_gate_in_kernel": case.gate_form != "given",
        "use_beta_sigmoid_in_kernel": case.beta_form != "value",
        "allow_neg_eigval": case.beta_form == "sigmoid2",
        "use_qk_l2norm_in_kernel": case.qk_norm,
        "state_v_first": case.state_v_first,
        "safe_gate": case.safe_gate,
    }
    arguments |= {name: True for name, on in switches.items() if on}
    if case.gate_form == "bounded":
        arguments["lower_bound"] = case.lower_bound
    return arguments


def operator(case: Case, module: str = "linattn.ops") -> Callable[..., Any]:
    """The operator of a case in `linattn.ops`, or under the same names in another package."""
    from importlib import import_module

    submodule, chunk, recurrent = OPERATORS[case.family]
    found = import_module(f"{module}.{submodule}")
    return getattr(found, chunk if case.form == "chunk" else recurrent)
