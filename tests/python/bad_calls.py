"""Calls that have to be refused: what is changed in a legal call, and what the refusal says.

The texts of a row are parts of the message: the argument with its value, then what is allowed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattn import ops

B, T, H, HV, K, V, SLOTS = 2, 6, 2, 4, 8, 6, 5
Arguments = dict[str, Any]

OPERATORS = (
    "chunk_kda",
    "fused_recurrent_kda",
    "chunk_gated_delta_rule",
    "fused_recurrent_gated_delta_rule",
    "chunk_delta_rule",
    "fused_recurrent_delta_rule",
    "chunk_gla",
    "fused_recurrent_gla",
    "chunk_simple_gla",
    "fused_recurrent_simple_gla",
    "chunk_lightning_attn",
    "fused_recurrent_lightning_attn",
)


class Row(NamedTuple):
    op: str
    change: Callable[[Arguments], Arguments] | Arguments
    error: type[Exception]
    texts: tuple[str, ...]
    title: str = ""


def legal(op: str) -> Arguments:
    """Keywords of a call that op takes; K, V, H and HV all differ."""
    channel = "kda" in op or "chunk_gla" in op
    every = {
        "q": torch.randn(B, T, H, K),
        "k": torch.randn(B, T, H, K),
        "v": torch.randn(B, T, HV, V),
        "g": -torch.rand(B, T, HV, K) if channel else -torch.rand(B, T, HV),
        "beta": torch.rand(B, T, HV),
        "layer_idx": 1,
        "num_layers": 4,
    }
    if op.endswith("_gate"):
        every["A_log"] = torch.zeros(HV)
    if op == "fused_recurrent_gla":
        every["gk"] = -torch.rand(B, T, HV, K)
    if op == "fused_recurrent_kda_fwd":
        every["initial_state"] = torch.randn(B, HV, K, V)
    taken = inspect.signature(getattr(ops, op)).parameters
    return {name: value for name, value in every.items() if name in taken}


def axes(op: str, name: str) -> str:
    if name in ("q", "k"):
        return "[B,T,H,K]"
    if name == "v":
        return "[B,T,HV,V]"
    if name in ("g", "gk") and ("kda" in op or op.endswith(("chunk_gla", "recurrent_gla"))):
        return "[B,T,HV,K]"
    return "[B,T,HV]"


def shape(t: Tensor) -> str:
    return "[" + ",".join(map(str, t.shape)) + "]"


def tensor_rows() -> Iterator[Row]:
    """Each tensor of each operator: a token short, an axis short, other types, device, layout."""
    for op in OPERATORS:
        for name, t in legal(op).items():
            if isinstance(t, Tensor):
                yield from rows_of(op, name, t)
        yield from state_rows(op)
        for change, error, *texts in (
            ({"v": torch.zeros(B, T, 3, V)}, ValueError, "v has HV = 3 heads",
             "allowed: a positive multiple of the H = 2"),
            ({"v": torch.zeros(B, T, HV, 257)}, ValueError, "v has head dimension V = 257",
             "allowed: 1 to 256"),
            ({"q": torch.zeros(B, T, H, 0), "k": torch.zeros(B, T, H, 0)}, ValueError,
             "q has head dimension K = 0", "allowed: 1 to 256"),
            ({"use_magic": True}, TypeError, "unexpected keyword", "use_magic"),
        ):  # fmt: skip
            yield Row(op, change, error, tuple(texts), texts[0])


def rows_of(op: str, name: str, t: Tensor) -> Iterator[Row]:
    floats = "allowed: float32, bfloat16, float16"
    rows = [
        ("without B", t[0], ValueError, f"{name} has shape {shape(t[0])}", "allowed: [B,T"),
        ("float64", t.double(), TypeError, f"{name} has type float64", floats),
        ("int64", t.long(), TypeError, f"{name} has type int64", floats),
        ("bool", t.bool(), TypeError, f"{name} has type bool", floats),
        ("on meta", t.to("meta"), TypeError, f"{name} is on meta", "cpu"),
        ("sparse", t.to_sparse(), TypeError, f"{name} has layout torch.sparse_coo",
         "allowed: torch.strided"),
        ("list", t.tolist(), TypeError, f"{name} has type list", "allowed: torch.Tensor"),
    ]  # fmt: skip
    if name != "q":  # which says what T is
        texts = f"{name} has shape {shape(t[:, 1:])}", f"allowed: {axes(op, name)} = "
        rows.append(("a token short", t[:, 1:], ValueError, *texts))
    if name in ("k", "v"):
        texts = f"{name} has type bfloat16", "allowed: float32, the type of q"
        rows.append(("bfloat16", t.bfloat16(), TypeError, *texts))
    for title, bad, error, *texts in rows:
        yield Row(op, {name: bad}, error, tuple(texts), f"{name} {title}")


def zeros(*size: int, **more: Any) -> Callable[[Arguments], Arguments]:
    """An initial state of such a size."""
    return lambda a: {"initial_state": torch.zeros(size), "output_final_state": True, **more}


def out(t: Tensor) -> Callable[[Arguments], Arguments]:
    return lambda a: {"out": t}


def state_rows(op: str) -> Iterator[Row]:
    """States in the other layout, of other sizes and types; out; a pool."""
    kv, vk = "allowed: [N,HV,K,V] = [2,4,8,6]", "allowed: [N,HV,V,K] = [2,4,6,8]"
    state, dense = torch.zeros(B, HV, K, V), torch.zeros(B, T, HV, V)
    rows = (
        ("state in the other layout", zeros(B, HV, V, K), ValueError,
         "initial_state has shape [2,4,6,8]", kv),
        ("v-first state in the other layout", zeros(B, HV, K, V, state_v_first=True), ValueError,
         "initial_state has shape [2,4,8,6]", vk),
        ("a state too many", zeros(B + 1, HV, K, V), ValueError,
         "initial_state has shape [3,4,8,6]", kv),
        ("states of the q heads", zeros(B, H, K, V), ValueError,
         "initial_state has shape [2,2,8,6]", kv),
        ("state float64", {"initial_state": state.double()}, TypeError,
         "initial_state has type float64", "allowed: float32, bfloat16, float16"),
        ("state on meta", {"initial_state": state.to("meta")}, TypeError,
         "initial_state is on meta", "must be on cpu"),
        ("out too wide", out(torch.zeros(B, T, HV, V + 1)), ValueError,
         "out has shape [2,6,4,7]", "allowed: [B,T,HV,V] = [2,6,4,6]"),
        ("out with an axis more", out(dense[None]), ValueError,
         "out has shape [1,2,6,4,6]", "allowed: [B,T,HV,V] = [2,6,4,6]"),
        ("out bfloat16", out(dense.bfloat16()), TypeError,
         "out has type bfloat16", "allowed: float32, the type of q"),
        ("out on meta", out(dense.to("meta")), TypeError, "out is on meta", "must be on cpu"),
        ("out shares memory", out(dense[:, :, :1].expand(B, T, HV, V)), ValueError,
         "out has strides [144,24,0,1] for shape [2,6,4,6]", "an output must not"),
        ("pool in the other layout", pool(initial_state=torch.zeros(SLOTS, HV, V, K)), ValueError,
         "initial_state has shape [5,4,6,8]", "allowed: [slots,HV,K,V] = [5,4,8,6]"),
        ("an index too few", pool(state_indices=torch.tensor([1])), ValueError,
         "state_indices has shape [1]", "allowed: [N] = [2]"),
    )  # fmt: skip
    for title, change, error, *texts in rows:
        yield Row(op, change, error, tuple(texts), title)


def offsets(*values: int, **more: Any) -> Callable[[Arguments], Arguments]:
    """A batch row packed by such cu_seqlens."""

    def change(a: Arguments) -> Arguments:
        rows = {name: t[:1] for name, t in a.items() if isinstance(t, Tensor)}
        return {**rows, "cu_seqlens": torch.tensor(values, dtype=torch.int32), **more}

    return change


def pool(**more: Any) -> Callable[[Arguments], Arguments]:
    """A call with five slots, rows 3 and 1 of them."""

    def change(a: Arguments) -> Arguments:
        own = {name: value(a) if callable(value) else value for name, value in more.items()}
        slots = torch.randn(SLOTS, HV, K, V)
        return {"initial_state": slots, "state_indices": torch.tensor([3, 1]), **own}

    return change


def leaf(name: str) -> Callable[[Arguments], Tensor]:
    return lambda a: a[name].clone().requires_grad_()
