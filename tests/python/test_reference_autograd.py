"""The oracle against autograd of a plain fp64 loop over tokens, every family and form."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import linattn
from linattn.ops.delta_rule import chunk_delta_rule
from linattn.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from linattn.ops.gla import chunk_gla
from linattn.ops.kda import chunk_kda
from linattn.ops.lightning_attn import chunk_lightning_attn
from linattn.ops.simple_gla import chunk_simple_gla

HEADS, GROUP, DIM_K, DIM_V = 2, 2, 5, 3
HEADS_V = HEADS * GROUP
ENDS = [0, 6, 6, 11]  # packed calls: an empty sequence, and two rows past the last one
LENGTH = 13


@dataclass(frozen=True)
class Form:
    operator: Callable[..., Any]
    gate: str  # "none", "constant", "head", "channel"
    delta: bool
    gate_form: str = "given"  # "softplus", "bounded"
    beta: str = "value"  # "sigmoid", "sigmoid2", "absent"
    norm: bool = False
    A_log: bool = True
    dt_bias: bool = True

    def __str__(self) -> str:
        parts = [self.operator.__name__, self.gate, self.gate_form]
        parts += [f"beta_{self.beta}"] if self.delta else []
        parts += [name for name in ("norm",) if getattr(self, name)]
        if self.gate_form != "given":
            parts += [f"no_{name}" for name in ("A_log", "dt_bias") if not getattr(self, name)]
        return "-".join(parts)


def forms() -> list[Form]:
    found = []
    for beta, norm in itertools.product(("value", "sigmoid", "sigmoid2"), (False, True)):
        for gate_form, dt_bias in (("given", False), ("softplus", norm), ("bounded", not norm)):
            options = {"gate_form": gate_form, "beta": beta, "norm": norm, "dt_bias": dt_bias}
            found.append(Form(chunk_kda, "channel", True, **options))
            if gate_form != "bounded":
                found.append(Form(chunk_gated_delta_rule, "head", True, **options))
    found.append(Form(chunk_kda, "channel", True, "bounded", A_log=False))
    for gate in ("none", "head", "channel"):
        form = Form(fused_recurrent_gated_delta_rule, gate, True, beta="absent", norm=True)
        found.append(form)
    found += [Form(chunk_delta_rule, "none", True, norm=norm) for norm in (False, True)]
    found.append(Form(chunk_gla, "channel", False))
    found += [Form(chunk_simple_gla, gate, False) for gate in ("none", "constant", "head")]
    found.append(Form(chunk_lightning_attn, "constant", False))
    return found


def loop(
    form: Form, x: dict[str, Tensor], constant: Tensor | None, packed: bool, v_first: bool
) -> tuple[Tensor, Tensor]:
    """(o, final states) of fp64 inputs, written for autograd and for nothing else."""
    q, k, v = (x[name] for name in ("q", "k", "v"))
    if form.norm:
        q, k = (t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
    value_heads = torch.arange(HEADS_V) // GROUP
    q, k = q[:, :, value_heads], k[:, :, value_heads]
    log_decay = torch.zeros_like(k)
    if constant is not None:
        log_decay = log_decay + constant[:, None]
    if "g" in x:
        g = x["g"] if form.gate == "channel" else x["g"][..., None]
        if form.gate_form != "given":
            if "dt_bias" in x:
                g = g + x["dt_bias"].reshape(HEADS_V, -1)
            factor = x["A_log"].exp()[:, None] if "A_log" in x else 1.0
            if form.gate_form == "softplus":
                g = -factor * (1 + g.exp()).log()
            else:
                g = -4.0 / (1 + (-factor * g).exp())
        log_decay = log_decay + g
    beta = x.get("beta", torch.ones_like(v[..., 0]))
    if form.beta.startswith("sigmoid"):
        beta = (2.0 if form.beta == "sigmoid2" else 1.0) / (1 + (-beta).exp())
    states = x["initial_state"].mT if v_first else x["initial_state"]
    o, finals = torch.zeros_like(v), []
    spans = [(0, a, b) for a, b in itertools.pairwise(ENDS)] if packed else [(0, 0, LENGTH)]
    for n, (b, begin, end) in enumerate(spans):
        state = states[n]
        for t in range(begin, end):
            state = log_decay[b, t].exp()[..., None] * state
            u = v[b, t]
            if form.delta:
                u = beta[b, t][:, None] * (u - torch.einsum("hkv,hk->hv", state, k[b, t]))
            state = state + torch.einsum("hk,hv->hkv", k[b, t], u)
            row = 0.3 * torch.einsum("hkv,hk->hv", state, q[b, t])
            o = torch.cat([o[:, :t], row[None, None], o[:, t + 1 :]], 1)
        finals.append(state.mT if v_first else state)
    return o, torch.stack(finals)


def inputs(form: Form, packed: bool, v_first: bool) -> dict[str, Tensor]:
    x = {
        "q": torch.randn(1, LENGTH, HEADS, DIM_K),
        "k": torch.randn(1, LENGTH, HEADS, DIM_K) / 2,
        "v": torch.randn(1, LENGTH, HEADS_V, DIM_V),
        "initial_state": torch.randn(3 if packed else 1, HEADS_V, DIM_K, DIM_V),
    }
    if v_first:
        x["initial_state"] = x["initial_state"].mT.contiguous()
    raw = form.gate_form != "given"
    if form.gate in ("head", "channel"):
        shape = (1, LENGTH, HEADS_V, DIM_K) if form.gate == "channel" else (1, LENGTH, HEADS_V)
        x["g"] = torch.randn(shape) if raw else -torch.rand(shape)
    if form.delta and form.beta != "absent":
        draw = torch.rand if form.beta == "value" else torch.randn
        x["beta"] = draw(1, LENGTH, HEADS_V)
    if raw and form.A_log:
        x["A_log"] = torch.randn(HEADS_V) / 3
    if raw and form.dt_bias:
        x["dt_bias"] = (
            torch.randn(HEADS_V, DIM_K) if form.gate == "channel" else torch.randn(HEADS_V)
        )
    return x


def options(form: Form) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    if form.norm:
        chosen["use_qk_l2norm_in_kernel"] = True
    if form.gate_form != "given":
        chosen["use_gate_in_kernel"] = True
    if form.gate_form == "bounded":
        chosen["lower_bound"] = -4.0
    if form.beta.startswith("sigmoid"):
        chosen["use_beta_sigmoid_in_kernel"] = True
        chosen["allow_neg_eigval"] = form.beta == "sigmoid2"
    return chosen


def error(a: Tensor, b: Tensor) -> float:
    return ((a.double() - b).norm() / b.norm()).item()


@pytest.mark.parametrize("packed", (False, True), ids=("batch", "packed"))
@pytest.mark.parametrize("form", forms(), ids=str)
def test_oracle_equals_autograd(form: Form, packed: bool) -> None:
    torch.manual_seed(0)
    v_first = packed
    single = {name: t.requires_grad_() for name, t in inputs(form, packed, v_first).items()}
    double = {name: t.detach().double().requires_grad_() for name, t in single.items()}
    chosen = options(form)
    constant = None
    if form.operator is chunk_lightning_attn:
        chosen |= {"layer_idx": 1, "num_layers": 4}
        constant = -(8 / HEADS_V) * (1 - 1 / 4) * torch.arange(HEADS_V, dtype=torch.float64)
    elif form.gate == "constant":
        chosen["g_gamma"] = -torch.rand(HEADS_V)
        constant = chosen["g_gamma"].double()
    given = dict(single)
    if form.operator is fused_recurrent_gated_delta_rule and form.gate == "channel":
        given["gk"] = given.pop("g")
    if packed:
        chosen["cu_seqlens"] = torch.tensor(ENDS)
    with linattn.force("reference"):
        o, state = form.operator(
            **given, **chosen, scale=0.3, output_final_state=True, state_v_first=v_first
        )
        assert linattn.last_implementation() == "reference"
        do, dstate = torch.randn_like(o), torch.randn_like(state)
        torch.autograd.backward([o, state], [do, dstate])
        assert linattn.last_implementation() == "reference"
    wanted_o, wanted_state = loop(form, double, constant, packed, v_first)
    torch.autograd.backward([wanted_o, wanted_state], [do.double(), dstate.double()])

    # fp64 inside: what is left is one rounding to fp32.
    assert error(o.detach(), wanted_o) < 1e-7
    assert error(state.detach(), wanted_state) < 1e-7
    for name, t in single.items():
        off = error(t.grad, double[name].grad)
        assert off < 1e-7, f"gradient of {name} is off by {off:.2g}"
