"""Runs a case through the C interface: numpy on the CPU, torch's allocator on a CUDA device."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from .. import _abi
from .._errors import DispatchError
from .._library import Device, explain_json, implementation_id, library, raise_status
from .cases import (
    BETA_FORM_CODES,
    FAMILY_CODES,
    FORM_CODES,
    GATE_CODES,
    GATE_FORM_CODES,
    PASS_CODES,
    Case,
    Spec,
    tensor_specs,
)
from .dtypes import code
from .images import Image, compact_strides, make_image
from .slots import dead_rows, written_slots

Inputs = dict[str, np.ndarray]


class Block(Protocol):
    """Bytes on a device."""

    def address(self) -> int: ...

    def fetch(self) -> np.ndarray: ...


class HostBlock:
    def __init__(self, image: np.ndarray) -> None:
        raw = np.empty(len(image) + 256, np.uint8)
        start = -raw.ctypes.data % 256
        self.bytes = raw[start : start + len(image)]
        self.bytes[...] = image

    def address(self) -> int:
        return int(self.bytes.ctypes.data)

    def fetch(self) -> np.ndarray:
        return self.bytes


class CudaBlock:
    def __init__(self, image: np.ndarray, index: int) -> None:
        import torch

        self.tensor = torch.from_numpy(np.ascontiguousarray(image)).to(f"cuda:{index}")

    def address(self) -> int:
        return int(self.tensor.data_ptr())

    def fetch(self) -> np.ndarray:
        fetched: np.ndarray = self.tensor.cpu().numpy()
        return fetched


def make_block(image: np.ndarray, device: Device) -> Block:
    if device.type == _abi.DEVICE_CPU:
        return HostBlock(image)
    return CudaBlock(image, device.index)


def device_of(text: str) -> Device:
    """`cpu`, `cuda` or `cuda:1`."""
    name, _, index = text.partition(":")
    if name not in ("cpu", "cuda") or (index and not index.isdigit()) or len(index) > 4:
        raise ValueError(f"device is {text!r}; allowed: cpu, cuda, cuda:<index> up to cuda:9999")
    return Device(_abi.DEVICE_CPU if name == "cpu" else _abi.DEVICE_CUDA, int(index or 0))


def pack_tensor(spec: Spec, strides: tuple[int, ...], device: Device) -> bytes:
    padding = (0,) * (_abi.MAX_RANK - len(spec.shape))
    return struct.pack(
        _abi.TENSOR_FORMAT, code(spec.dtype), len(spec.shape), device.type, device.index,
        *spec.shape, *padding, *strides, *padding,
    )  # fmt: skip


def _flags(case: Case) -> int:
    switches = (
        (case.qk_norm, _abi.FLAG_QK_NORM),
        (case.state_v_first, _abi.FLAG_STATE_V_FIRST),
        (case.safe_gate, _abi.FLAG_SAFE_GATE),
        (not case.auto_cp, _abi.FLAG_NO_AUTO_CP),
        (case.batch_invariant, _abi.FLAG_BATCH_INVARIANT),
        (case.pool is not None and "null" in case.pool.dead, _abi.FLAG_NULL_STATE_INDEX),
    )
    return sum(flag for on, flag in switches if on)


def pack_problem(
    case: Case,
    device: Device,
    implementation: str | None = None,
    strides: dict[str, tuple[int, ...]] | None = None,
) -> bytes:
    """linattn_problem of a case; tensors without an entry in `strides` are compact."""
    force = 0
    if implementation is not None:
        force = implementation_id(implementation)
    head = struct.pack(
        _abi.PROBLEM_SCALARS_FORMAT,
        int(_abi.STRUCTS["linattn_problem"]["size"]),  # type: ignore[call-overload]
        FAMILY_CODES[case.family],
        FORM_CODES[case.form],
        PASS_CODES[case.direction],
        GATE_CODES[case.gate_kind],
        GATE_FORM_CODES[case.gate_form],
        BETA_FORM_CODES[case.beta_form],
        _flags(case),
        0,  # null_state_index: slot 0 where the case has one
        case.state_every,
        force,
        0,
        case.scale_value,
        case.lower_bound if case.gate_form == "bounded" else 0.0,
    )
    specs = tensor_specs(case)
    absent = bytes(struct.calcsize(_abi.TENSOR_FORMAT))
    tensors = []
    for name in _abi.PROBLEM_TENSORS:
        spec = specs.get(name)
        if spec is None:
            tensors.append(absent)
            continue
        own = (strides or {}).get(name) or compact_strides(spec.shape)
        tensors.append(pack_tensor(spec, own, device))
    return head + b"".join(tensors)


def explain_case(case: Case, device: Device, implementation: str | None = None) -> dict[str, Any]:
    return explain_json(pack_problem(case, device, implementation), device)


class Plan:
    """A plan of the C interface, freed with the object."""

    def __init__(self, problem: bytes, device: Device) -> None:
        self.library = library()
        self.handle = ctypes.c_void_p()
        status = self.library.linattn_plan(problem, device, ctypes.byref(self.handle))
        if status != _abi.OK:
            raise_status(self.library, status, problem, device)
        self.workspace_bytes = int(self.library.linattn_plan_workspace_bytes(self.handle))
        self.implementation = self.library.linattn_plan_implementation(self.handle).decode()

    def run(self, args: bytes, stream: int | None = None) -> None:
        status = self.library.linattn_run(self.handle, args, stream)
        if status != _abi.OK:
            raise_status(self.library, status)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.library.linattn_plan_destroy(self.handle)


def pack_args(addresses: dict[str, int], workspace: int) -> bytes:
    size = int(_abi.STRUCTS["linattn_args"]["size"])  # type: ignore[call-overload]
    pointers = (addresses.get(name, 0) for name in _abi.PROBLEM_TENSORS)
    return struct.pack(_abi.ARGS_FORMAT, size, 0, workspace, *pointers)


@dataclass
class Result:
    implementation: str
    workspace_bytes: int
    outputs: dict[str, np.ndarray]
    faults: list[str] = field(default_factory=list)  # memory that the call had no right to touch


class Prepared:
    """A planned case with its memory; may run several times from the same start."""

    def __init__(
        self, case: Case, inputs: Inputs, device: Device, implementation: str | None = None
    ) -> None:
        self.case, self.inputs, self.device = case, inputs, device
        self.specs = tensor_specs(case)
        self.images: dict[str, Image] = {
            name: make_image(case, name, spec, inputs.get(name))
            for name, spec in self.specs.items()
        }
        strides = {name: image.strides for name, image in self.images.items()}
        self.plan = Plan(pack_problem(case, device, implementation, strides), device)
        if implementation is not None and self.plan.implementation != implementation:
            raise DispatchError(f"asked for {implementation}, planned {self.plan.implementation}")

    def run(self) -> Result:
        blocks = {name: make_block(i.block, self.device) for name, i in self.images.items()}
        guard = 256
        scratch = np.full(self.plan.workspace_bytes + 2 * guard, 0xFF, np.uint8)
        workspace = make_block(scratch, self.device)
        addresses = {n: b.address() + self.images[n].offset for n, b in blocks.items()}
        self.plan.run(pack_args(addresses, workspace.address() + guard))
        return self._collect({name: b.fetch() for name, b in blocks.items()}, workspace.fetch())

    def _collect(self, after: dict[str, np.ndarray], scratch: np.ndarray) -> Result:
        outputs, faults = {}, []
        for name, image in self.images.items():
            allowed: list[int] | None = None if self.specs[name].output else []
            if name == "initial_state" and self.case.pool:
                allowed = written_slots(self.case, self.inputs)
            stray = image.stray_writes(after[name], allowed)
            if stray:
                faults.append(f"{stray} bytes of {name} changed that the call does not own")
            if self.specs[name].output:
                outputs[name] = image.values(after[name])
        if np.any(scratch[:256] != 0xFF) or np.any(scratch[-256:] != 0xFF):
            faults.append("bytes beside the workspace changed")
        return Result(self.plan.implementation, self.plan.workspace_bytes, outputs, faults)


def run_case(
    case: Case, inputs: Inputs, device: Device, implementation: str | None = None
) -> Result:
    return Prepared(case, inputs, device, implementation).run()


def reference(case: Case, inputs: Inputs) -> dict[str, np.ndarray]:
    """The fp64 reference on the CPU, for `oracle.expected_outputs`."""
    return run_case(case, inputs, Device(_abi.DEVICE_CPU, 0), "reference").outputs


__all__ = ["DispatchError", "Plan", "Prepared", "Result", "dead_rows", "explain_case", "run_case"]
