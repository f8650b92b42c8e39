"""Draws docs/images/call.svg: what a call passes through, and the two switches behind it.

python tools/draw_call.py        then commit the file
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

OUTPUT = Path(__file__).resolve().parent.parent / "docs" / "images" / "call.svg"
WIDTH, HEIGHT = 960, 470
INK, SOFT, PAPER = "#1f2933", "#52606d", "#ffffff"
FRONT, CORE, ENTRY, REFUSED = "#e0e8f9", "#e3f8ec", "#fff3d6", "#f0f2f5"

parts: list[str] = []


def text(x: float, y: float, words: str, size: int = 14, color: str = INK, **more: str) -> None:
    style = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    place = f'x="{x}" y="{y}" font-size="{size}" fill="{color}"{style}'
    parts.append(f'<text {place} xml:space="preserve">{escape(words)}</text>')


def box(x: int, y: int, w: int, h: int, fill: str, title: str, *lines: str) -> None:
    parts.append(
        f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="6" fill="{fill}" stroke="{SOFT}"/>'
    )
    text(x + 12, y + 22, title, 14, font_weight="600")
    for row, line in enumerate(lines):
        text(x + 12, y + 42 + 18 * row, line, 12, SOFT)


def arrow(x1: int, y1: int, x2: int, y2: int, label: str = "") -> None:
    parts.append(
        f'<path d="M{x1} {y1} L{x2} {y2}" stroke="{SOFT}" stroke-width="1.5" fill="none"'
        ' marker-end="url(#head)"/>'
    )
    if label:
        text((x1 + x2) / 2, (y1 + y2) / 2 - 6, label, 11, SOFT, text_anchor="middle")


def draw() -> str:
    box(
        20,
        20,
        250,
        82,
        FRONT,
        "Python  linattn.ops",
        "defaults, outputs, autograd",
        "a problem as bytes",
    )
    box(20, 122, 250, 64, FRONT, "C++20  linattn.hpp", "designated initialisers, buffers")
    box(20, 206, 250, 64, FRONT, "C11  linattn.h", "problem, plan, args")

    for y in (61, 154, 238):
        arrow(270, y, 356, 145, "problem" if y == 154 else "")
    box(
        360,
        60,
        240,
        170,
        CORE,
        "plan, once a problem",
        "validate: every rule, in one place",
        "walk the list: who takes it, and",
        "why the others do not",
        "launches, workspace bytes",
        "",
        "pure function of problem + device",
    )

    text(690, 36, "an ordered list for each form and pass", 12, SOFT)
    entries = [
        ("cuda_sm90_...", "refused: no device", REFUSED),
        ("cuda_portable", "refused: no device", REFUSED),
        ("cpu", "takes it", ENTRY),
        ("reference", "fp64, last", REFUSED),
    ]
    for row, (name, why, fill) in enumerate(entries):
        y = 50 + 52 * row
        parts.append(
            f'<rect x="690" y="{y}" width="250" height="42" rx="6" fill="{fill}" stroke="{SOFT}"/>'
        )
        text(702, y + 26, name, 14, font_weight="600" if fill == ENTRY else "400")
        text(928, y + 26, why, 12, SOFT, text_anchor="end")
    arrow(600, 145, 686, 175)
    text(612, 190, "first that", 11, SOFT)
    text(612, 203, "takes it", 11, SOFT)

    box(20, 320, 580, 130, PAPER, "one recurrence, two switches")
    for row, (formula, note) in enumerate(
        [
            ("S ← decay · S", "gate: none | constant | head | channel"),
            ("u = v   or   β (v − Sᵀk)", "update: additive | delta"),
            ("S ← S + k uᵀ", ""),
            ("o = scale · Sᵀq", "KDA  GDN  DeltaNet  GLA  Simple GLA  Lightning"),
        ]
    ):
        text(32, 366 + 22 * row, formula, 13)
        text(270, 366 + 22 * row, note, 13, SOFT)
    box(
        690,
        320,
        250,
        130,
        CORE,
        "run, every call",
        "args: pointers, one workspace",
        "1 to 3 launches, caller's stream",
        "no allocation, no synchronisation",
        "status, or a text",
    )
    arrow(815, 250, 815, 316)
    arrow(600, 385, 686, 385, "kernels")

    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="system-ui, sans-serif">\n'
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{SOFT}"/></marker>'
        "</defs>\n"
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(draw())
    print(OUTPUT)
