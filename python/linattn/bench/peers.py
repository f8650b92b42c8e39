"""Other implementations of the same operators, each a thin adapter behind its import.

`prepare(name, workload, tensors, device)` gives a call without arguments, or raises
`Unavailable` with the reason: not installed, no such operator, or not on this device. Adapters
convert nothing inside the timed call: layouts and types are made ready beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ..testing.cases import Case
from .ours import operator, operator_arguments
from .workloads import Workload

Call = Callable[[], object]
Tensors = dict[str, Any]


class Unavailable(Exception):
    """Why a peer is not in the table."""


def _load(name: str) -> Any:
    try:
        return import_module(name)
    except Exception as error:  # a peer may fail in any way when its compiler or device is missing
        first = (str(error).splitlines() or [""])[0]
        raise Unavailable(f"import {name}: {type(error).__name__}: {first}") from error


def _need(condition: bool, reason: str) -> None:
    if not condition:
        raise Unavailable(reason)


def _torch(case: Case, t: Tensors) -> Call:
    _load("torch")
    from . import torch_chunked

    _need(not case.varlen, "plain torch here takes sequences of one length")
    t = _plain(case, t)
    names = ["q", "k", "v", "g", "beta", "g_gamma"]
    if case.direction == "forward":
        names.append("initial_state")
    inputs: Tensors = {name: t[name] for name in names if name in t}
    if case.state_v_first and case.form == "chunk" and "initial_state" in inputs:
        inputs["initial_state"] = inputs["initial_state"].mT
    if case.form == "recurrent":
        return _torch_decode(case, t, torch_chunked.decode_step)
    if case.direction == "forward":
        return _no_grad(lambda: torch_chunked.chunk_forward(**inputs))
    return _backward(lambda leaves: torch_chunked.chunk_forward(**leaves)[0], inputs, t["do_"])


def _torch_inplace(case: Case, t: Tensors) -> Call:
    _load("torch")
    from . import torch_chunked

    _need(case.form == "recurrent", "torch_inplace is a decode step alone")
    return _torch_decode(case, _plain(case, t), torch_chunked.decode_step_inplace)


def _plain(case: Case, t: Tensors) -> Tensors:
    """Unit q and k, log decays, beta as a value: what is inside our call and outside theirs."""
    import torch

    t = dict(t)
    if case.qk_norm:
        for name in ("q", "k"):
            x = t[name].float()
            t[name] = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)).to(t[name].dtype)
    if case.gate_form != "given":
        raw = t["g"].float() + t["dt_bias"]
        rate = t["A_log"].exp().reshape(-1, *(1,) * (raw.dim() - 3))
        if case.gate_form == "bounded":
            t["g"] = case.lower_bound * torch.sigmoid(rate * raw)
        else:
            t["g"] = -rate * torch.nn.functional.softplus(raw)
    if case.beta_form != "value":
        t["beta"] = torch.sigmoid(t["beta"].float()) * (2 if case.beta_form == "sigmoid2" else 1)
    return t


def _torch_decode(case: Case, t: Tensors, step: Callable[..., object]) -> Call:
    _need(not case.state_v_first, "plain torch here has K-first states")
    _need(case.tokens == 1, "plain torch here decodes one token")
    _need(case.state_dtype == "f32", "plain torch here has fp32 states")
    names = ("q", "k", "v", "g", "beta")
    token = {name: t[name][:, 0] for name in names if name in t}
    if "g_gamma" in t:
        token["g"] = t["g_gamma"].expand(case.num_sequences, -1)
    return lambda: step(t["initial_state"], **token)


def _no_grad(call: Call) -> Call:
    import torch

    def run() -> object:
        with torch.no_grad():
            return call()

    return run


def _backward(forward: Callable[[Tensors], Any], inputs: Tensors, do: Any) -> Call:
    """The backward pass alone: the graph of one forward is walked again and again."""
    import torch

    leaves = {n: x if n == "g_gamma" else x.clone().requires_grad_() for n, x in inputs.items()}
    o = forward(leaves)
    wanted = [x for x in leaves.values() if x.requires_grad]
    return lambda: torch.autograd.grad(o, wanted, do.to(o.dtype), retain_graph=True)


def _fla(case: Case, t: Tensors) -> Call:
    _need(t["q"].is_cuda, "fla's kernels need a CUDA device")
    _load("fla")
    call = operator(case, "fla.ops")
    _need(case.pool is None or case.pool.columns == 0, "fla here writes the last state alone")
    arguments = operator_arguments(case, {n: x for n, x in t.items() if n != "state_indices"})
    arguments.pop("safe_gate", None)
    if case.direction == "backward":
        wanted = {
            n: x for n, x in arguments.items() if getattr(x, "requires_grad", None) is not None
        }
        rest = {n: x for n, x in arguments.items() if n not in wanted}
        return _backward(lambda leaves: call(**leaves, **rest)[0], wanted, t["do_"])
    return _no_grad(lambda: call(**arguments, output_final_state=True))


def _flash_kda(case: Case, t: Tensors) -> Call:
    _need((case.family, case.form, case.direction) == ("kda", "chunk", "forward"),
          "flash_kda has the KDA chunk forward alone")  # fmt: skip
    _need(t["q"].is_cuda and case.dtype == "bf16", "flash_kda takes bf16 on a CUDA device")
    _need(case.gate_form == "bounded", "flash_kda takes raw bounded gates")
    module = _load("flash_kda")
    import torch

    out = torch.empty_like(t["v"])
    final = torch.empty(
        case.num_sequences, case.value_heads, case.dim_v, case.dim_k, device=out.device
    )
    inputs = [t[name] for name in ("q", "k", "v", "g", "beta")]
    rest = {name: t[name] for name in ("initial_state", "cu_seqlens") if name in t}
    return lambda: module.fwd(*inputs, case.scale_value, out, t["A_log"], t["dt_bias"],
                              case.lower_bound, final_state=final, **rest)  # fmt: skip


def _flash_qla(case: Case, t: Tensors) -> Call:
    _need(case.family == "gdn" and case.form == "chunk", "flash_qla has the GDN chunk form alone")
    _need(t["q"].is_cuda and case.dtype != "f32", "flash_qla takes 16-bit inputs on a CUDA device")
    module = _load("flash_qla")
    names = ("q", "k", "v", "g", "beta")
    call = module.chunk_gated_delta_rule
    if case.direction == "backward":
        inputs: Tensors = {name: t[name] for name in names}
        return _backward(lambda leaves: call(**leaves)[0], inputs, t["do_"])
    rest = {name: t[name] for name in ("initial_state", "cu_seqlens") if name in t}
    return _no_grad(lambda: call(*(t[name] for name in names), **rest, output_final_state=True))


def _cula(case: Case, t: Tensors) -> Call:
    _need(case.family == "kda" and case.direction == "forward", "cula here: KDA forward alone")
    _need(t["q"].is_cuda and case.dtype == "bf16", "cula takes bf16 on a CUDA device")
    module = _load("cula.kda")
    if case.form == "recurrent":
        raise Unavailable("cula's decode takes raw gates from a fused row; not the same inputs")
    plain = _plain(case, t)
    arguments: Tensors = {name: plain[name] for name in ("q", "k", "v", "g", "beta")}
    arguments |= {"output_final_state": True, "safe_gate": True, "lower_bound": -5.0}
    return _no_grad(lambda: module.kda_prefill_hopper(**arguments))


def _flashinfer(case: Case, t: Tensors) -> Call:
    _need(case.family == "gdn" and case.form == "chunk" and case.direction == "forward",
          "flashinfer here: GDN chunk forward alone")  # fmt: skip
    _need(t["q"].is_cuda and case.dtype != "f32", "flashinfer takes 16-bit inputs on CUDA")
    _need(case.batch == 1, "flashinfer takes packed sequences")
    module = _load("flashinfer.gdn_prefill")
    import torch

    q, k, v = (t[name][0] for name in ("q", "k", "v"))
    alpha, beta = t["g"][0].float().exp(), t["beta"][0].float()  # it takes the linear decay
    cu = t.get("cu_seqlens")
    if cu is None:
        cu = torch.tensor([0, case.tokens], dtype=torch.int64, device=q.device)
    state = t.get("initial_state")
    call = module.chunk_gated_delta_rule
    return lambda: call(q, k, v, alpha, beta, initial_state=state, output_final_state=True,
                        cu_seqlens=cu)  # fmt: skip


PEERS: dict[str, Callable[[Case, Tensors], Call]] = {
    "fla": _fla,
    "flash_kda": _flash_kda,
    "flash_qla": _flash_qla,
    "cula": _cula,
    "flashinfer": _flashinfer,
    "torch": _torch,
    "torch_inplace": _torch_inplace,
}


def prepare(name: str, workload: Workload, tensors: Tensors) -> Call:
    """The peer's call on the workload's tensors, tried once."""
    call = PEERS[name](workload.case, tensors)
    try:
        call()
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        raise Unavailable(f"{type(error).__name__}: {first}") from error
    return call
