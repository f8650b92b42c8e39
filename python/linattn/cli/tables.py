"""Tables and progress: `rich` on a terminal where it is installed, plain text everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import TypeVar

Item = TypeVar("Item")


def _terminal(stream: object) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)()) and find_spec("rich") is not None


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> str:
    """Aligned text; columns named in `right` are aligned to the right."""
    cells = [list(columns), *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(row, widths, columns, strict=True)
        )
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(cells[0]), rule, *map(line, cells[1:])])


def show_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[str] = (),
) -> None:
    if not _terminal(sys.stdout):
        print(f"{title}\n{plain_table(columns, rows, right)}\n")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left")
    for row in rows:
        table.add_row(*[Text(str(cell), style=_style(str(cell))) for cell in row])
    Console().print(table)


def _style(cell: str) -> str:
    return {"pass": "green", "FAIL": "bold red", "yes": "green", "no": "yellow"}.get(cell, "")


def progress(items: Iterable[Item], total: int, label: str) -> Iterator[Item]:
    """The items, with a bar on standard error where that is a terminal."""
    if not _terminal(sys.stderr):
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, description=label, total=total, console=Console(stderr=True))
