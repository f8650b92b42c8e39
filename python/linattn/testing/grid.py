"""The grid of cases that `linattn check` walks: a generator for each theme, for every family.

A theme varies one thing and lets the rest (batch, heads, dimensions, types) rotate, so that a case
costs milliseconds and pairs of features still meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .cases import FAMILIES, FAMILY_BETA_FORMS, FAMILY_GATE_FORMS, Case, Pool

LENGTHS = (0, 1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 200)
QUICK_LENGTHS = (0, 1, 17, 63, 64, 65, 129)
RECURRENT_LENGTHS = (0, 1, 2, 3, 7, 33)
DIMS = ((32, 32), (64, 32), (32, 64), (16, 48))
ODD_DIMS = ((1, 1), (5, 3), (33, 7), (60, 100), (64, 64), (96, 40), (128, 128), (256, 256))
QUICK_ODD_DIMS = ((5, 3), (60, 100), (128, 128))


class Base:
    """What all themes of one (family, form, direction) start from."""

    def __init__(self, family: str, form: str, direction: str, quick: bool) -> None:
        self.family, self.form, self.direction, self.quick = family, form, direction, quick
        self.recurrent = form == "recurrent"
        self.default = Case(family, form, direction, tokens=5 if self.recurrent else 70, dim_v=24)

    def case(self, theme: str, **changes: object) -> Case:
        return replace(self.default, theme=theme, **changes)  # type: ignore[arg-type]


def _lengths(base: Base) -> Iterator[Case]:
    lengths = QUICK_LENGTHS if base.quick else LENGTHS
    for i, tokens in enumerate(RECURRENT_LENGTHS if base.recurrent else lengths):
        k, v = DIMS[i % len(DIMS)]
        yield base.case("lengths", tokens=tokens, batch=1 + i % 2, heads=1 + i % 3,
                        dim_k=k, dim_v=v)  # fmt: skip
    if not base.recurrent:
        # One head and a long sequence: cut into segments where cores would idle.
        yield base.case("segments", tokens=520 if base.quick else 1500, heads=1, dim_k=64, dim_v=48)


def _packed(base: Base) -> Iterator[Case]:
    yield base.case("packed", lengths=(1, 0, 2, 5) if base.recurrent else (5, 0, 64, 1, 0, 130, 17),
                    tail=3)  # fmt: skip
    yield base.case("packed", lengths=(0, 0), tail=2, index_dtype="i32")
    yield base.case("packed", lengths=(1,) * 6, index_dtype="i32", initial_state=False)
    if not base.quick:
        yield base.case("packed", lengths=(64, 64), heads=1, heads_v=3)
        yield base.case("packed", lengths=(0,))
        yield base.case("packed", lengths=(300, 0, 3), tail=70, initial_state=False)


def _gates(base: Base) -> Iterator[Case]:
    kind = base.default.gate_kind
    if kind == "none":
        return
    hard = ["zero", "tiny", "minus_5", "minus_30", "minus_1e4", "minus_inf"]
    if kind != "head_constant":
        hard += ["alternating", "alternating_inf", "sparse_inf"]
    if kind == "channel":
        hard += ["spread", "switch"]
    for gates in hard:
        yield base.case("gates", gates=gates, tokens=7 if base.recurrent else 100)
    if kind == "channel" and not base.recurrent:
        for gates in ("mild", "minus_5"):
            yield base.case("safe gate", gates=gates, safe_gate=True, tokens=130)


def _keys(base: Base) -> Iterator[Case]:
    if not base.default.is_delta:
        return
    # Long runs of the same key without decay are the worst case of the solve and of the state.
    long = base.default.list_name == "chunk_forward" and base.family in ("kda", "delta")
    for keys in ("near", "repeated"):
        for betas in ("one", "1.7", "two"):
            tokens = 9 if base.recurrent else 200
            yield base.case("keys", gates="zero", keys=keys, betas=betas, tokens=tokens, dim_k=64)
            if long and not base.quick:
                yield base.case("keys", gates="zero", keys=keys, betas=betas, tokens=2048, heads=1,
                                dim_k=64, dim_v=32)  # fmt: skip
    for betas in ("zero", "random2"):
        yield base.case("beta", betas=betas)
    yield base.case("zero rows", keys="zero_rows", qk_norm=True)
    yield base.case("zero rows", keys="zero_rows", qk_norm=True, betas="random2", heads_v=4)


def _forms(base: Base) -> Iterator[Case]:
    """Gates and beta computed inside, with and without the norm."""
    gate_forms = FAMILY_GATE_FORMS.get(base.family, ("given",))
    beta_forms = FAMILY_BETA_FORMS.get(base.family, ("value",))
    for i, gate_form in enumerate(gate_forms):
        for j, beta_form in enumerate(beta_forms):
            if i == j == 0:
                continue
            common = {"gate_form": gate_form, "beta_form": beta_form, "qk_norm": (i + j) % 2 == 0}
            yield base.case("forms", **common, heads_v=4)
            saturated = "saturated" if beta_form != "value" else "random"
            yield base.case("forms", **common, gates="spread", betas=saturated)
    if base.default.is_delta:
        yield base.case("norm", qk_norm=True)
    if base.family == "kda":
        yield base.case("forms", gate_form="bounded", lower_bound=-1.0, safe_gate=True)
    other = {"gdn": ("none", "channel"), "simple_gla": ("none", "head_constant"), "gla": ("none",)}
    for gate in other.get(base.family, ()):
        yield base.case("other gate", gate=gate)


def _shapes(base: Base) -> Iterator[Case]:
    for heads, heads_v in ((2, 4), (1, 3)) if base.quick else ((2, 4), (1, 3), (3, 12), (5, 5)):
        yield base.case("groups", heads=heads, heads_v=heads_v)
    for k, v in QUICK_ODD_DIMS if base.quick else ODD_DIMS:
        yield base.case("dims", dim_k=k, dim_v=v, heads=1)
        # One channel normalises to a sign, whose gradient is what cancellation leaves of it.
        if base.default.is_delta and v > 1:
            yield base.case("dims", dim_k=v, dim_v=k, heads=1, heads_v=2, qk_norm=True)
    for layout in ("fused", "heads_first"):
        yield base.case("strides", layout=layout, batch=2)
        if not base.quick:
            yield base.case("strides", layout=layout, lengths=(3, 0, 2), tail=1, heads_v=4)
    for scale in (0.0, 1.0):
        yield base.case("scale", scale=scale)
    yield base.case("flags", batch_invariant=True, batch=2)
    yield base.case("flags", auto_cp=False, heads=1, tokens=6 if base.recurrent else 300)


def _states(base: Base) -> Iterator[Case]:
    yield base.case("states", state_v_first=True, batch=2)
    yield base.case("states", state_v_first=True, state_dtype="bf16")
    yield base.case("states", initial_state=False, final_state=False)
    yield base.case("states", state_dtype="f16", state_v_first=True, heads_v=4)
    if base.direction == "backward":
        yield base.case("states", dht=False)
        yield base.case("gradients", without=("dq", "dv", "dh0", "dA_log"))
        yield base.case("gradients", without=("dk", "dg", "dbeta", "ddt_bias"))
        return
    yield base.case("states", state_mask=True, batch=3)
    yield base.case("states", state_dtype="bf16", final_dtype="f32")
    yield base.case("states", state_dtype="f32", final_dtype="bf16", initial_state=False)
    if base.recurrent:
        return
    yield base.case("intermediate", intermediate=True, tokens=130, batch=2)
    yield base.case("intermediate", intermediate=True, lengths=(5, 0, 64, 129), state_v_first=True)
    yield base.case("intermediate", intermediate=True, tokens=300, state_every=128)


def _pools(base: Base) -> Iterator[Case]:
    if base.direction == "backward":
        return
    one = {"tokens": 1 if base.recurrent else 70, "batch": 6}
    dead = ("negative", "past_end", "null", "far_negative")
    yield base.case("pool", **one, pool=Pool())
    yield base.case("pool", **one, pool=Pool(dead=dead, padding=64), state_v_first=True)
    yield base.case("pool", **one, pool=Pool(dead=dead, separate_outputs=True), index_dtype="i32")
    yield base.case("pool", **one, pool=Pool(), state_mask=True, state_dtype="bf16")
    yield base.case("pool", lengths=(3, 0, 1, 5), tail=2, pool=Pool(dead=("negative",)))
    if not base.recurrent:
        return
    spec = {"tokens": 4, "batch": 5}
    yield base.case("speculative", **spec, pool=Pool(columns=4, accepted=True))
    yield base.case("speculative", **spec, pool=Pool(columns=5, accepted=True, dead=dead),
                    index_dtype="i32", state_v_first=True)  # fmt: skip
    yield base.case("speculative", **spec, pool=Pool(columns=4, separate_outputs=True,
                    accepted=True, dead=("no_accepted",)))  # fmt: skip
    yield base.case("speculative", lengths=(3, 0, 1, 4), pool=Pool(columns=4))


def _square(base: Base) -> Iterator[Case]:
    """K = V = 128, which kernels are tuned for: lengths, forms and states meet here once more."""
    if base.recurrent or base.direction == "backward":
        return
    square = {"dim_k": 128, "dim_v": 128, "heads": 1}
    delta = base.default.is_delta
    yield base.case("square", **square, heads_v=4, lengths=(5, 0, 64, 1, 0, 130, 17), tail=3,
                    state_v_first=True, intermediate=True)  # fmt: skip
    yield base.case("square", **square, heads_v=3, batch=2, tokens=97, layout="heads_first",
                    qk_norm=delta, intermediate=True, state_every=64)  # fmt: skip
    # One head and a long sequence: pieces where multiprocessors would idle.
    yield base.case("square", **square, tokens=700, intermediate=True)
    yield base.case("square", **square, lengths=(640, 1, 300), batch_invariant=True)
    if base.quick:
        return
    yield base.case("square", **square, batch=3, tokens=70, pool=Pool(dead=("negative",)))
    yield base.case("square", **square, heads_v=2, tokens=260, layout="fused", scale=1.0)
    if base.default.gate_kind != "none":
        yield base.case("square", **square, gates="minus_inf", tokens=300)
        yield base.case("square", **square, gates="zero", tokens=600)
    if base.default.gate_kind in ("head", "channel"):
        yield base.case("square", **square, gates="sparse_inf", tokens=600, heads_v=2)
    if delta:
        for keys, betas in (("near", "two"), ("repeated", "two"), ("near", "one")):
            yield base.case("square", **square, gates="zero", keys=keys, betas=betas, tokens=700)
        yield base.case("square", **square, betas="random2", tokens=600)


def _anchored(base: Base) -> Iterator[Case]:
    """Channel gates bounded by -5, K = V = 128: kernels may count decays from a chunk's middle."""
    if base.recurrent or base.direction == "backward" or base.default.gate_kind != "channel":
        return
    delta = base.default.is_delta
    anchored = {"dim_k": 128, "dim_v": 128, "heads": 1, "safe_gate": True, "qk_norm": delta}
    yield base.case("anchored", **anchored, heads_v=4, lengths=(5, 0, 64, 1, 0, 130, 17), tail=3,
                    state_v_first=True, intermediate=True, gates="switch")  # fmt: skip
    yield base.case("anchored", **anchored, heads_v=3, batch=2, tokens=97, layout="heads_first",
                    gates="minus_5", intermediate=True, state_every=64)  # fmt: skip
    yield base.case("anchored", **anchored, gates="switch", tokens=700)
    yield base.case("anchored", **anchored, lengths=(640, 1, 300), batch_invariant=True)
    if base.quick:
        return
    yield base.case("anchored", **anchored, batch=3, tokens=70, pool=Pool(dead=("negative",)))
    yield base.case("anchored", **anchored, heads_v=2, tokens=260, layout="fused", scale=1.0)
    for gates in ("zero", "tiny", "alternating", "minus_5", "mild"):
        yield base.case("anchored", **anchored, gates=gates, tokens=300, heads_v=2)
    if not delta:
        return
    for keys in ("near", "repeated"):
        for betas in ("one", "1.7", "two"):
            yield base.case("anchored", **anchored, gates="zero", keys=keys, betas=betas,
                            tokens=2000)  # fmt: skip
    if base.family != "kda":
        return
    for form in ("sigmoid", "sigmoid2"):
        for norm in (True, form == "sigmoid2"):
            case = {**anchored, "gate_form": "bounded", "beta_form": form, "qk_norm": norm}
            yield base.case("anchored", **case, tokens=200, heads_v=2)
            yield base.case("anchored", **case, tokens=200, gates="spread", betas="saturated")


THEMES = (
    _lengths, _packed, _gates, _keys, _forms, _shapes, _states, _pools, _square, _anchored
)  # fmt: skip
WALKS = (("chunk", "forward"), ("chunk", "backward"), ("recurrent", "forward"))


def _typed(case: Case, dtype: str, turn: int) -> Case:
    """The case in another type; gates, beta and states follow it in turns."""
    if dtype == "f32":
        return case
    state = dtype if case.state_dtype == "f32" and turn % 3 == 0 else case.state_dtype
    return replace(
        case,
        dtype=dtype,
        gate_dtype=dtype if turn % 2 else "f32",
        beta_dtype="f32" if turn % 2 else dtype,
        state_dtype=state,
    )


def cases(families: tuple[str, ...] = FAMILIES, quick: bool = False) -> Iterator[Case]:
    """Every case: `quick` draws fewer and gives each one of fp32 and bf16, in turns."""
    turn = 0
    for family in families:
        for form, direction in WALKS:
            base = Base(family, form, direction, quick)
            for theme in THEMES:
                for case in theme(base):
                    turn += 1
                    types = ["f32", "bf16", "f16"]
                    if quick:
                        types = ["bf16"] if turn % 3 == 0 else ["f32"]
                    for dtype in types:
                        yield _typed(replace(case, seed=turn), dtype, turn)
