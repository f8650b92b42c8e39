"""Random problems from the whole contract: the fast CPU implementation against the fp64 oracle."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linattn import testing
from linattn.testing.cases import (
    BETAS,
    DELTA_FAMILIES,
    FAMILIES,
    FAMILY_BETA_FORMS,
    FAMILY_GATE,
    FAMILY_GATE_FORMS,
    GATES,
    KEYS,
    LAYOUTS,
    Case,
    Pool,
)

CPU = testing.device_of("cpu")
FLOATS = st.sampled_from(["f32", "bf16", "f16"])
# Gates that a head or channel of its own needs, by the kinds that have one.
OTHER_GATES = {
    "gdn": ("none", "channel"),
    "simple_gla": ("none", "head_constant"),
    "gla": ("none",),
}
GATES_OF = {
    "none": ("mild",),
    "head_constant": tuple(g for g in GATES if g.startswith("minus") or g in ("mild", "zero")),
    "head": tuple(g for g in GATES if g not in ("spread", "switch")),
    "channel": GATES,
}
DEAD = ("negative", "far_negative", "past_end", "null")
GRADIENTS = ("dq", "dk", "dv", "dg", "dbeta", "dA_log", "ddt_bias", "dh0")
# Multiplications of the oracle in one problem: milliseconds.
BUDGET = 3_000_000

dims = st.one_of(st.integers(1, 40), st.sampled_from([48, 60, 64, 100, 128, 192, 256]))
flags = st.booleans()


@st.composite
def shapes(draw, recurrent):
    """Tokens, sequences and dimensions that the oracle can afford."""
    longest = 9 if recurrent else 150
    fields = {"dim_k": draw(dims), "dim_v": draw(dims), "heads": draw(st.integers(1, 3))}
    fields["heads_v"] = fields["heads"] * draw(st.integers(1, 4))
    if draw(flags):
        lengths = draw(st.lists(st.integers(0, longest), min_size=1, max_size=5))
        fields |= {"lengths": tuple(lengths), "tail": draw(st.integers(0, 5))}
        total = sum(lengths)
    else:
        fields |= {"tokens": draw(st.integers(0, longest)), "batch": draw(st.integers(1, 3))}
        total = fields["tokens"] * fields["batch"]
    work = total * fields["heads_v"] * fields["dim_k"] * fields["dim_v"]
    if work > BUDGET:  # one head, and dimensions within what is left
        fields |= {"heads": 1, "heads_v": 1}
        side = max(1, int((BUDGET / total) ** 0.5))
        fields |= {"dim_k": min(fields["dim_k"], side), "dim_v": min(fields["dim_v"], side)}
    return fields


@st.composite
def pools(draw, case):
    longest = max(case.sequence_lengths)
    columns = longest + draw(st.integers(0, 2)) if case.form == "recurrent" and draw(flags) else 0
    dead = draw(st.lists(st.sampled_from(DEAD), unique=True, max_size=case.num_sequences))
    accepted = columns > 0 and draw(flags)
    if accepted and draw(flags):
        dead.append("no_accepted")
    return Pool(
        spare=draw(st.integers(1, 3)),
        padding=draw(st.sampled_from([0, 1, 64])),
        columns=columns,
        accepted=accepted,
        separate_outputs=draw(flags),
        dead=tuple(dead),
    )


@st.composite
def cases(draw, form, direction):
    family = draw(st.sampled_from(FAMILIES))
    gate = draw(st.sampled_from((FAMILY_GATE[family], *OTHER_GATES.get(family, ()))))
    gate_form = "given"
    if gate == FAMILY_GATE[family]:
        gate_form = draw(st.sampled_from(FAMILY_GATE_FORMS.get(family, ("given",))))
    gates = draw(st.sampled_from(GATES_OF[gate] if gate_form == "given" else ("mild", "spread")))
    delta = family in DELTA_FAMILIES
    beta_form = draw(st.sampled_from(FAMILY_BETA_FORMS.get(family, ("value",))))
    betas = BETAS[:-1] if beta_form == "value" else ("random", "saturated")
    qk_norm = delta and draw(flags)
    shape = draw(shapes(form == "recurrent"))
    if delta:  # a unit key of one channel is a sign: what is left of state and gradients cancels
        shape["dim_k"] = max(2, shape["dim_k"])
    keys = [k for k in KEYS if delta and (k != "zero_rows" or qk_norm)] or ["unit"]
    case = Case(
        family,
        form,
        direction,
        gate=gate,
        gate_form=gate_form,
        beta_form=beta_form,
        **shape,
        dtype=draw(FLOATS),
        gate_dtype=draw(FLOATS),
        beta_dtype=draw(FLOATS),
        state_dtype=draw(FLOATS),
        final_dtype=draw(FLOATS),
        index_dtype=draw(st.sampled_from(["i32", "i64"])),
        state_v_first=draw(flags),
        qk_norm=qk_norm,
        scale=draw(st.sampled_from([None, 0.0, 1.0, -0.3])),
        lower_bound=draw(st.sampled_from([-5.0, -1.0, -1e-3])),
        initial_state=draw(flags),
        final_state=draw(flags),
        safe_gate=gate == "channel" and gates in ("mild", "minus_5") and gate_form != "softplus"
        and draw(flags),
        auto_cp=draw(flags),
        batch_invariant=draw(flags),
        gates=gates,
        keys=draw(st.sampled_from(keys)),
        betas=draw(st.sampled_from(betas)),
        layout=draw(st.sampled_from(LAYOUTS)),
        seed=draw(st.integers(0, 9)),
    )  # fmt: skip
    if direction == "backward":
        if case.dtype == "f16" and case.keys == "zero_rows":
            case = replace(case, keys="unit")  # a zero row's gradient, times 1000, leaves fp16
        without = draw(st.sets(st.sampled_from(GRADIENTS), max_size=7))
        return replace(case, dht=draw(flags), without=tuple(sorted(without)))
    if draw(flags):
        case = replace(case, pool=draw(pools(case)))
    if case.initial_state or case.pool:
        case = replace(case, state_mask=draw(flags))
    if form == "chunk" and draw(flags):
        case = replace(case, intermediate=True, state_every=draw(st.sampled_from([0, 64, 128])))
    return case


def check(case):
    inputs = testing.make_inputs(case)
    result = testing.run_case(case, inputs, CPU, "cpu")
    assert result.implementation == "cpu"
    assert not result.faults
    expected = testing.expected_outputs(case, inputs, testing.reference)
    failed = [str(v) for v in testing.compare(case, inputs, result.outputs, expected)
              if not v.passed]  # fmt: skip
    assert not failed, f"{case.describe()}: {failed}"


def budget(examples):
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,  # the same problems everywhere: a failure here is one there
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@budget(200)
@given(cases("chunk", "forward"))
def test_chunk_forward(case):
    check(case)


@budget(200)
@given(cases("recurrent", "forward"))
def test_recurrent_forward(case):
    check(case)


@budget(200)
@given(cases("chunk", "backward"))
def test_backward(case):
    check(case)
