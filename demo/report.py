"""What ran where, and the curves."""

from __future__ import annotations

import logging
from pathlib import Path

from rich.table import Table
from train import History


class Ledger(logging.Handler):
    """Collects the library's INFO lines: one for each new problem, with what will run it."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.ran: dict[str, set[str]] = {}

    def __enter__(self) -> Ledger:
        self._logger = logging.getLogger("linattn")
        self._level = self._logger.level
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)

    def emit(self, record: logging.LogRecord) -> None:
        # "kda chunk forward q [..] v [..] -> cpu on cpu"
        problem, _, where = record.getMessage().partition(" -> ")
        self.ran.setdefault(" ".join(problem.split()[:3]), set()).add(where)

    def table(self) -> Table:
        table = Table("operator", "ran on", title="Implementations")
        for operator, where in sorted(self.ran.items()):
            table.add_row(operator, ", ".join(sorted(where)))
        return table


def plot(history: History, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    steps = range(1, len(history.train) + 1)
    axes.plot(steps, history.train, color="tab:blue", alpha=0.3, linewidth=0.8)
    span = max(1, len(history.train) // 50)
    smooth = [
        sum(history.train[max(0, i - span) : i]) / min(i, span) for i in steps
    ]  # fmt: skip
    axes.plot(steps, smooth, color="tab:blue", label="train")
    axes.plot(*zip(*history.validation, strict=True), "o-", color="tab:orange", label="validation")
    axes.set(xlabel="step", ylabel="bits per byte", title="KDA + GDN + GLA + Lightning, byte level")
    axes.set_ylim(0, min(8.2, max(history.train)) * 1.02)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)
