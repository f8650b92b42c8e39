"""The numbers of a case: float32 arrays that its types hold exactly, and index arrays."""

from __future__ import annotations

import zlib

import numpy as np

from .cases import Case, Spec, tensor_specs
from .dtypes import FLOATS, rounded
from .slots import poison_unread_states

# Name of a dead row's kind -> its index, given the number of slots.
DEAD_INDEX = {
    "negative": lambda slots: -1,
    "far_negative": lambda slots: -7,
    "past_end": lambda slots: slots,
    "null": lambda slots: 0,
}
CONSTANT_GATES = {"zero": 0.0, "tiny": -1e-8, "minus_5": -5.0, "minus_30": -30.0,
                  "minus_1e4": -1e4, "minus_inf": -np.inf}  # fmt: skip
CONSTANT_BETAS = {"zero": 0.0, "one": 1.0, "1.7": 1.7, "two": 2.0}


def _gate(case: Case, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Log decays [.., T, HV(, K)]; the second axis is tokens."""
    kind = case.gates
    if kind in CONSTANT_GATES:
        return np.full(shape, CONSTANT_GATES[kind])
    mild = -0.5 * rng.random(shape)
    if kind == "mild":
        return mild
    token = np.arange(shape[1]).reshape((1, -1) + (1,) * (len(shape) - 2))
    if kind == "alternating":
        return np.broadcast_to(np.where(token % 2 == 0, 0.0, -5.0), shape).copy()
    if kind == "alternating_inf":
        return np.broadcast_to(np.where(token % 2 == 0, 0.0, -np.inf), shape).copy()
    if kind == "sparse_inf":  # document boundaries written into the gate
        return np.where(token % 11 == 7, -np.inf, mild)
    if kind == "spread":  # every size of decay, channel by channel
        return -(10.0 ** rng.uniform(-4, 1.3, shape))
    if kind in ("decaying", "mixed"):  # as published prefill tables draw them
        logits = rng.standard_normal(shape)
        gates = -np.logaddexp(0.0, -logits) / 16
        if kind == "mixed":  # every fourth head keeps all it has
            gates[:, :, ::4] = 0.0
        return gates
    if kind == "kept":
        return -5.0 / (1.0 + np.exp(8.0 - rng.standard_normal(shape)))
    if kind == "switch":  # halves of the channels decay hard in turn: their maximum bounds nothing
        channel = np.arange(shape[-1]) % 2
        hard = (token // 8) % 2 == channel
        return np.where(np.broadcast_to(hard, shape), -4.0, -1e-3)
    raise ValueError(f"unknown gates {kind!r}")


def _raw_gate(case: Case, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if case.gates == "mild":
        return rng.standard_normal(shape)
    if case.gates == "kept":  # of which almost nothing decays
        return rng.standard_normal(shape) - 8.0
    # Both ends of softplus and sigmoid, among ordinary values: gradients that vanish alone, near
    # the smallest normal number, have no relative precision to compare.
    extreme = 30.0 * np.sign(rng.standard_normal(shape))
    return np.where(rng.random(shape) < 0.5, extreme, rng.standard_normal(shape))


def _keys(case: Case, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    k = rng.standard_normal(shape)
    if case.keys in ("near", "repeated"):
        spread = 0.05 if case.keys == "near" else 0.0
        k = rng.standard_normal((shape[0], 1, *shape[2:])) + spread * k
    if case.keys == "zero_rows":
        k[:, ::3] = 0.0
    return k if case.qk_norm else k / np.maximum(np.linalg.norm(k, axis=-1, keepdims=True), 1e-9)


def _beta(case: Case, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if case.beta_form != "value":
        if case.betas == "saturated":
            return 30.0 * np.sign(rng.standard_normal(shape))
        return 2.0 * rng.standard_normal(shape)
    if case.betas in CONSTANT_BETAS:
        return np.full(shape, CONSTANT_BETAS[case.betas])
    return rng.random(shape) * (2.0 if case.betas == "random2" else 1.0)


def _indices(case: Case, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Tables of slots: a random permutation, live rows unique, dead rows as the case asks."""
    pool = case.pool
    assert pool is not None
    slots, sequences, columns = case.num_slots, case.num_sequences, max(1, pool.columns)
    free = rng.permutation(np.arange(1, slots) if "null" in pool.dead else np.arange(slots))
    tables = {}
    names = ["state_indices"] + ["output_state_indices"] * pool.separate_outputs
    for part, name in enumerate(names):
        used = free[part * sequences * columns :][: sequences * columns]
        table = used.reshape(sequences, columns).copy()
        for row, kind in enumerate(kind for kind in pool.dead if kind in DEAD_INDEX):
            table[row % sequences, :] = DEAD_INDEX[kind](slots)
        tables[name] = table if pool.columns else table[:, 0]
    if pool.accepted:
        accepted = 1 + np.arange(sequences) % columns
        if "no_accepted" in pool.dead:
            accepted[-1] = 0
        tables["num_accepted_tokens"] = accepted
    return tables


def make_inputs(case: Case) -> dict[str, np.ndarray]:
    """Inputs by tensor name.

    What the call has no business reading is NaN: rows after the last packed sequence, slots that
    no live row starts from, states that has_initial_state rules out.
    """
    rng = np.random.default_rng((case.seed, zlib.crc32(case.describe().encode())))
    specs = tensor_specs(case)
    made: dict[str, np.ndarray] = {}
    for name, spec in specs.items():
        if spec.output and name != "initial_state":
            continue
        values = _draw(case, name, spec, rng, made)
        made[name] = rounded(values, spec.dtype) if spec.dtype in FLOATS else values
    owned = sum(case.lengths)
    if case.varlen and owned < case.axis_tokens:
        for name in ("q", "k", "v", "g", "beta", "do_"):
            if name in made:
                made[name][:, owned:] = np.nan
    poison_unread_states(case, made)
    return made


def _draw(
    case: Case, name: str, spec: Spec, rng: np.random.Generator, made: dict[str, np.ndarray]
) -> np.ndarray:
    shape = spec.shape
    if name == "k":
        return _keys(case, shape, rng)
    if name == "q" and not case.qk_norm:
        q = rng.standard_normal(shape)
        return q / np.linalg.norm(q, axis=-1, keepdims=True) * 4.0
    if name == "q" and case.keys == "zero_rows":
        q = rng.standard_normal(shape)
        q[:, 1::3] = 0.0
        return q
    if name == "g":
        draw = _gate if case.gate_form == "given" else _raw_gate
        return draw(case, shape, rng)
    if name == "g_gamma":
        return _constant_gate(case, shape[0])
    if name == "beta":
        return _beta(case, shape, rng)
    if name == "A_log":
        ordinary = case.gates in ("mild", "kept")
        return rng.uniform(-2, 0.5, shape) if ordinary else rng.uniform(1.0, 3.0, shape)
    if name == "dt_bias":
        return rng.uniform(-1.0, 1.0, shape)
    if name == "cu_seqlens":
        return np.concatenate([[0], np.cumsum(case.lengths)]).astype(np.int64)
    if name == "has_initial_state":
        return (np.arange(shape[0]) % 2 == 0).astype(np.uint8)
    if name == "state_indices":
        made.update(_indices(case, rng))
    if name in made:
        return made[name]
    return rng.standard_normal(shape) * (0.5 if name == "initial_state" else 1.0)


def _constant_gate(case: Case, heads: int) -> np.ndarray:
    if case.gates in CONSTANT_GATES:
        return np.full(heads, CONSTANT_GATES[case.gates])
    # Lightning's slopes: head 0 never decays.
    return -(8.0 / heads) * 0.9 * np.arange(heads)
