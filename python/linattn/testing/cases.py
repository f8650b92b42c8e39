"""One call of an operator as data: what is asked, and how its numbers are drawn.

A `Case` is all that the runner, the oracle, `linattn check`, `linattn explain` and the property
tests need; nothing else describes a test problem. `tensor_specs` gives the shapes and types that
the interface wants for it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

FAMILIES = ("kda", "gdn", "delta", "gla", "simple_gla", "lightning")
DELTA_FAMILIES = ("kda", "gdn", "delta")
FORMS = ("chunk", "recurrent")
PASSES = ("forward", "backward")

FAMILY_CODES = {name: i + 1 for i, name in enumerate(FAMILIES)}
FORM_CODES = {"chunk": 1, "recurrent": 2}
PASS_CODES = {"forward": 1, "backward": 2}
GATE_CODES = {"none": 0, "head_constant": 1, "head": 2, "channel": 3}
GATE_FORM_CODES = {"given": 0, "softplus": 1, "bounded": 2}
BETA_FORM_CODES = {"value": 0, "sigmoid": 1, "sigmoid2": 2}

FAMILY_GATE = {
    "kda": "channel",
    "gdn": "head",
    "delta": "none",
    "gla": "channel",
    "simple_gla": "head",
    "lightning": "head_constant",
}
FAMILY_GATE_FORMS = {"kda": ("given", "softplus", "bounded"), "gdn": ("given", "softplus")}
FAMILY_BETA_FORMS = {
    "kda": ("value", "sigmoid", "sigmoid2"),
    "gdn": ("value", "sigmoid", "sigmoid2"),
    "delta": ("value",),
}

# How the natural-log decays of a given gate are drawn (inputs.py has the formulas).
GATES = ("mild", "zero", "tiny", "minus_5", "minus_30", "minus_1e4", "minus_inf", "alternating",
         "alternating_inf", "sparse_inf", "spread", "switch", "decaying", "mixed",
         "kept")  # fmt: skip
KEYS = ("unit", "near", "repeated", "zero_rows")
BETAS = ("random", "random2", "zero", "one", "1.7", "two", "saturated")
LAYOUTS = ("compact", "fused", "heads_first")


@dataclass(frozen=True)
class Pool:
    """States in slots. Sequences use a random permutation of them; `spare` slots stay untouched."""

    spare: int = 3
    padding: int = 0  # elements between two slots
    columns: int = 0  # 1 + S of [N, 1+S] indices; 0: [N]
    accepted: bool = False  # num_accepted_tokens given (needs columns)
    separate_outputs: bool = False
    dead: tuple[str, ...] = ()  # of "negative", "far_negative", "past_end", "null", "no_accepted"


@dataclass(frozen=True)
class Case:
    family: str
    form: str = "chunk"
    direction: str = "forward"
    gate: str = ""  # "": the family's own
    gate_form: str = "given"
    beta_form: str = "value"
    batch: int = 1
    tokens: int = 64  # of each batch row; with `lengths` their sum plus `tail`
    lengths: tuple[int, ...] = ()  # packed sequences (cu_seqlens)
    tail: int = 0  # rows after the last packed sequence
    heads: int = 2
    heads_v: int = 0  # 0: heads
    dim_k: int = 32
    dim_v: int = 32
    dtype: str = "f32"
    gate_dtype: str = "f32"
    beta_dtype: str = "f32"
    state_dtype: str = "f32"
    final_dtype: str = ""  # "": state_dtype
    index_dtype: str = "i64"
    state_v_first: bool = False
    qk_norm: bool = False
    scale: float | None = None  # None: dim_k ** -0.5
    lower_bound: float = -5.0
    initial_state: bool = True
    state_mask: bool = False  # has_initial_state given, false for every other sequence
    final_state: bool = True
    intermediate: bool = False
    state_every: int = 0
    pool: Pool | None = None
    dht: bool = True
    without: tuple[str, ...] = ()  # gradients not asked for
    safe_gate: bool = False
    auto_cp: bool = True
    batch_invariant: bool = False
    gates: str = "mild"
    keys: str = "unit"
    betas: str = "random"
    layout: str = "compact"
    seed: int = 0
    theme: str = ""  # what the case is there for

    @property
    def gate_kind(self) -> str:
        return self.gate or FAMILY_GATE[self.family]

    @property
    def is_delta(self) -> bool:
        return self.family in DELTA_FAMILIES

    @property
    def value_heads(self) -> int:
        return self.heads_v or self.heads

    @property
    def varlen(self) -> bool:
        return bool(self.lengths)

    @property
    def axis_tokens(self) -> int:
        """Size of the T axis."""
        return sum(self.lengths) + self.tail if self.varlen else self.tokens

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        return self.lengths if self.varlen else (self.tokens,) * self.batch

    @property
    def num_sequences(self) -> int:
        return len(self.sequence_lengths)

    @property
    def num_slots(self) -> int:
        assert self.pool is not None
        used = self.num_sequences * max(1, self.pool.columns)
        return used * (2 if self.pool.separate_outputs else 1) + self.pool.spare

    @property
    def scale_value(self) -> float:
        return self.dim_k**-0.5 if self.scale is None else self.scale

    @property
    def every(self) -> int:
        return self.state_every or 64

    @property
    def list_name(self) -> str:
        """The ordered list that this case walks."""
        return "backward" if self.direction == "backward" else f"{self.form}_{self.direction}"

    def describe(self) -> str:
        """Every field that differs from its default, as keywords of `Case`."""
        shown = [f"{self.family!r}"]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                shown.append(f"{field.name}={value!r}")
        return f"Case({', '.join(shown)})"


class Spec(NamedTuple):
    """One tensor: type, shape, and whether the call writes it."""

    dtype: str
    shape: tuple[int, ...]
    output: bool = False


def _gradient_specs(case: Case, forward: dict[str, Spec]) -> dict[str, Spec]:
    specs = {"do_": Spec(case.dtype, forward["v"].shape)}
    if case.dht:
        specs["dht"] = Spec("f32", _state_shape(case))
    sources = {"dq": "q", "dk": "k", "dv": "v", "dg": "g", "dbeta": "beta", "dA_log": "A_log",
               "ddt_bias": "dt_bias", "dh0": "initial_state"}  # fmt: skip
    for gradient, source in sources.items():
        if source in forward and gradient not in case.without:
            specs[gradient] = Spec(forward[source].dtype, forward[source].shape, True)
    return specs


def _state_shape(case: Case) -> tuple[int, ...]:
    inner = (case.dim_v, case.dim_k) if case.state_v_first else (case.dim_k, case.dim_v)
    leading = case.num_slots if case.pool else case.num_sequences
    return (leading, case.value_heads, *inner)


def intermediate_rows(case: Case) -> int:
    return sum(-(-length // case.every) for length in case.sequence_lengths)


def tensor_specs(case: Case) -> dict[str, Spec]:
    """Tensors of the call by their name in linattn.h, in that order."""
    rows = (case.batch if not case.varlen else 1, case.axis_tokens)
    hv = case.value_heads
    specs: dict[str, Spec] = {
        "q": Spec(case.dtype, (*rows, case.heads, case.dim_k)),
        "k": Spec(case.dtype, (*rows, case.heads, case.dim_k)),
        "v": Spec(case.dtype, (*rows, hv, case.dim_v)),
    }
    gate = case.gate_kind
    if gate == "channel":
        specs["g"] = Spec(case.gate_dtype, (*rows, hv, case.dim_k))
    elif gate == "head":
        specs["g"] = Spec(case.gate_dtype, (*rows, hv))
    elif gate == "head_constant":
        specs["g_gamma"] = Spec("f32", (hv,))
    if case.is_delta:
        specs["beta"] = Spec(case.beta_dtype, (*rows, hv))
    if case.gate_form != "given":
        specs["A_log"] = Spec("f32", (hv,))
        specs["dt_bias"] = Spec("f32", (hv, case.dim_k) if gate == "channel" else (hv,))
    if case.initial_state or case.pool:
        specs["initial_state"] = Spec(case.state_dtype, _state_shape(case), case.pool is not None)
    if case.varlen:
        specs["cu_seqlens"] = Spec(case.index_dtype, (case.num_sequences + 1,))
    if case.pool:
        columns = (case.pool.columns,) if case.pool.columns else ()
        indices = Spec(case.index_dtype, (case.num_sequences, *columns))
        specs["state_indices"] = indices
        if case.pool.separate_outputs:
            specs["output_state_indices"] = indices
    if case.state_mask:
        specs["has_initial_state"] = Spec("bool", (case.num_sequences,))
    if case.pool and case.pool.accepted:
        specs["num_accepted_tokens"] = Spec(case.index_dtype, (case.num_sequences,))
    if case.direction == "backward":
        return specs | _gradient_specs(case, specs)
    specs["o"] = Spec(case.dtype, specs["v"].shape, True)
    if case.final_state and not case.pool:
        specs["final_state"] = Spec(case.final_dtype or case.state_dtype, _state_shape(case), True)
    if case.intermediate:
        leading = (1, intermediate_rows(case))
        if not case.varlen:
            leading = (case.batch, -(-case.tokens // case.every))
        shape = (*leading, *_state_shape(case)[1:])
        specs["intermediate_states"] = Spec(case.dtype, shape, True)
    return specs
