"""Which slots of a pool a call reads and writes: the contract's rules, written out plainly."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .cases import Case


class Row(NamedTuple):
    """One sequence of a call with a pool."""

    start: int  # slot it starts from; -1: the row is dead
    targets: tuple[int, ...]  # slot after each token, or one slot after the last; -1: not written
    reads: bool  # False: starts from zero whatever the slot holds


def _column(table: np.ndarray, row: int, column: int) -> int:
    return int(table[row] if table.ndim == 1 else table[row, column])


def pool_rows(case: Case, inputs: dict[str, np.ndarray]) -> list[Row]:
    assert case.pool is not None
    read = inputs["state_indices"]
    write = inputs.get("output_state_indices", read)
    null = 0 if "null" in case.pool.dead else None

    def live(index: int) -> int:
        return index if 0 <= index < case.num_slots and index != null else -1

    rows = []
    for n, length in enumerate(case.sequence_lengths):
        accepted = int(inputs["num_accepted_tokens"][n]) if case.pool.accepted else 1
        inside = 1 <= accepted <= max(1, case.pool.columns)
        start = live(_column(read, n, accepted - 1)) if inside else -1
        columns = range(length) if case.pool.columns else range(1)
        targets = tuple(live(_column(write, n, j)) for j in columns) if start >= 0 else ()
        mask = inputs.get("has_initial_state")
        rows.append(Row(start, targets, mask is None or bool(mask[n])))
    return rows


def dead_rows(case: Case, inputs: dict[str, np.ndarray]) -> list[int]:
    if not case.pool:
        return []
    return [n for n, row in enumerate(pool_rows(case, inputs)) if row.start < 0]


def written_slots(case: Case, inputs: dict[str, np.ndarray]) -> list[int]:
    return sorted({slot for row in pool_rows(case, inputs) for slot in row.targets if slot >= 0})


def poison_unread_states(case: Case, inputs: dict[str, np.ndarray]) -> None:
    """NaN in every state that the call has no business reading."""
    state = inputs.get("initial_state")
    if state is None:
        return
    if case.pool:
        used = {row.start for row in pool_rows(case, inputs) if row.start >= 0 and row.reads}
        for slot in range(case.num_slots):
            if slot not in used:
                state[slot] = np.nan
    elif case.state_mask:
        state[inputs["has_initial_state"] == 0] = np.nan
