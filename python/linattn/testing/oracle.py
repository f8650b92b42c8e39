"""What a case should give: the fp64 `reference` on the plainest form of the same numbers.

Each sequence is one dense fp32 call of its own: compact, key-first states, no packing, no pool.
So a mistake in strides, layouts, offsets, slots or types cannot cancel out, not even when the
implementation under test is the reference itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .cases import Case, tensor_specs
from .slots import Row, pool_rows

Inputs = dict[str, np.ndarray]
# Runs a plain case on the reference: outputs by name.
Reference = Callable[[Case, Inputs], Inputs]

TOKEN_INPUTS = ("q", "k", "v", "g", "beta", "do_")
TOKEN_GRADIENTS = ("dq", "dk", "dv", "dg", "dbeta")
HEAD_INPUTS = ("g_gamma", "A_log", "dt_bias")


def _plain(case: Case, tokens: int, initial: bool) -> Case:
    return replace(
        case, batch=1, tokens=tokens, lengths=(), tail=0, dtype="f32", gate_dtype="f32",
        beta_dtype="f32", state_dtype="f32", final_dtype="", state_v_first=False, pool=None,
        state_mask=False, initial_state=initial, final_state=True, layout="compact",
        safe_gate=False, auto_cp=True, batch_invariant=False,
    )  # fmt: skip


def _ranges(case: Case) -> list[tuple[int, int, int]]:
    """(batch row, first token, end) of each sequence."""
    if not case.varlen:
        return [(b, 0, case.tokens) for b in range(case.batch)]
    ends = np.cumsum(case.lengths)
    return [(0, int(end) - n, int(end)) for n, end in zip(case.lengths, ends, strict=True)]


def _key_first(case: Case, state: np.ndarray) -> np.ndarray:
    return np.swapaxes(state, -1, -2) if case.state_v_first else state


class _Sequence:
    """The plain call of one sequence; `run` may be asked for a part of its tokens."""

    def __init__(self, case: Case, inputs: Inputs, reference: Reference,
                 place: tuple[int, int, int]) -> None:  # fmt: skip
        self.case, self.inputs, self.reference = case, inputs, reference
        self.batch, self.begin, self.end = place

    def run(self, state: np.ndarray | None, dht: np.ndarray | None, begin: int, end: int) -> Inputs:
        inputs = {name: self.inputs[name] for name in HEAD_INPUTS if name in self.inputs}
        for name in TOKEN_INPUTS:
            if name in self.inputs:
                inputs[name] = self.inputs[name][self.batch : self.batch + 1, begin:end]
        if state is not None:
            inputs["initial_state"] = state[None]
        if dht is not None:
            inputs["dht"] = dht[None]
        return self.reference(_plain(self.case, end - begin, state is not None), inputs)


def expected_outputs(case: Case, inputs: Inputs, reference: Reference) -> Inputs:
    """Outputs by name in the shape and layout of the case; rows nobody owns are zero.

    With a pool, `initial_state` is the pool afterwards; slots that are not written keep their
    content.
    """
    specs = tensor_specs(case)
    out = {name: np.zeros(spec.shape, np.float32) for name, spec in specs.items() if spec.output}
    if case.pool:
        out["initial_state"] = inputs["initial_state"].copy()
    rows = pool_rows(case, inputs) if case.pool else None
    intermediate_row = 0
    for n, (batch, begin, end) in enumerate(_ranges(case)):
        sequence = _Sequence(case, inputs, reference, (batch, begin, end))
        if rows is not None and rows[n].start < 0:  # dead: its rows are zero, and are counted
            intermediate_row += -(-(end - begin) // case.every)
            continue
        state = _start(case, inputs, n, rows[n].start if rows else n)
        if case.direction == "backward":
            _backward(case, sequence, n, state, out)
            continue
        final = _forward(case, sequence, rows[n] if rows else None, state, out)
        if "final_state" in out:
            out["final_state"][n] = _key_first(case, final["final_state"])
        if "intermediate_states" in out and end > begin:
            states = _key_first(case, final["intermediate_states"][0])
            first = intermediate_row if case.varlen else 0
            target = out["intermediate_states"][0 if case.varlen else n]
            target[first : first + len(states)] = states
            intermediate_row += len(states)
    return out


def _start(case: Case, inputs: Inputs, n: int, slot: int) -> np.ndarray | None:
    mask = inputs.get("has_initial_state")
    if "initial_state" not in inputs or (mask is not None and not mask[n]):
        return None
    return _key_first(case, inputs["initial_state"][slot])


def _forward(
    case: Case, sequence: _Sequence, row: Row | None, state: np.ndarray | None, out: Inputs
) -> Inputs:
    """Fills in o and the pool; returns the final state (no batch axis) and intermediates."""
    begin, end = sequence.begin, sequence.end
    zero = np.zeros((case.value_heads, case.dim_k, case.dim_v), np.float32)
    result: Inputs = {"final_state": zero if state is None else state}
    # With a column for each token every state on the way is an output.
    columns = case.pool is not None and case.pool.columns > 0
    step = 1 if columns else max(1, end - begin)
    for first in range(begin, end, step):
        got = sequence.run(state, None, first, first + step)
        out["o"][sequence.batch, first : first + step] = got["o"][0]
        state = got["final_state"][0]
        result = {**got, "final_state": state}
        if row is not None and columns and row.targets[first - begin] >= 0:
            out["initial_state"][row.targets[first - begin]] = _key_first(case, state)
    if row is not None and not columns and row.targets[0] >= 0:
        out["initial_state"][row.targets[0]] = _key_first(case, result["final_state"])
    return result


def _backward(
    case: Case, sequence: _Sequence, n: int, state: np.ndarray | None, out: Inputs
) -> None:
    dht = _key_first(case, sequence.inputs["dht"][n]) if case.dht else None
    begin, end = sequence.begin, sequence.end
    if end == begin:
        if "dh0" in out and state is not None and dht is not None:
            out["dh0"][n] = _key_first(case, dht)
        return
    got = sequence.run(state, dht, begin, end)
    for name in TOKEN_GRADIENTS:
        if name in out:
            out[name][sequence.batch, begin:end] = got[name][0]
    for name in ("dA_log", "ddt_bias"):
        if name in out:
            out[name] += got[name]
    if "dh0" in out and state is not None:
        out["dh0"][n] = _key_first(case, got["dh0"][0])
