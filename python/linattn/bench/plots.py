"""Roofline and bars of one run, as one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..testing.cases import FAMILIES
from .measure import Measurement
from .timing import Roof

MARKERS = {"chunk": "o", "prefill": "P", "long": "s", "backward": "^", "decode": "v",
           "speculative": "D"}  # fmt: skip
COLOURS = dict(zip(FAMILIES, ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple",
                              "tab:brown"), strict=True))  # fmt: skip


def plot(path: Path, measurements: Sequence[Measurement], roof: Roof, title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [m for m in measurements if not m.refused and m.workload.kind != "call"]
    height = 2.5 + 0.28 * len(shown)
    figure, (left, right) = plt.subplots(1, 2, figsize=(15, max(5.0, height)))
    _roofline(left, shown, roof)
    _bars(right, shown, roof)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _roofline(axes, shown: Sequence[Measurement], roof: Roof) -> None:  # type: ignore[no-untyped-def]
    ridge = roof.flops_per_s / roof.bytes_per_s
    points = [m.workload.flops / m.workload.bytes for m in shown] or [ridge]
    low, high = min(*points, ridge) / 2, max(*points, ridge) * 4
    line = [low, ridge, high]
    axes.loglog(line, [min(x * roof.bytes_per_s, roof.flops_per_s) / 1e9 for x in line], "k-")
    for m, x in zip(shown, points, strict=False):
        style = {"color": COLOURS[m.workload.case.family], "linestyle": "none"}
        hollow = {"markerfacecolor": "none"} if m.workload.case.dtype != "f32" else {}
        axes.plot(x, m.flops_per_s / 1e9, MARKERS[m.workload.kind], **style, **hollow)
    # Colour says the family, shape the kind of work; hollow points have 16-bit inputs.
    for kind in dict.fromkeys(m.workload.kind for m in shown):
        axes.plot([], [], MARKERS[kind], color="grey", label=kind)
    for name in dict.fromkeys(m.workload.case.family for m in shown):
        axes.plot([], [], "o", color=COLOURS[name], label=name)
    axes.set_xlabel("FLOP / byte")
    axes.set_ylabel("GFLOP/s")
    product = f"{roof.flops_type} {roof.flops_per_s / 1e9:.0f} GFLOP/s"
    axes.set_title(f"roof: copy {roof.bytes_per_s / 1e9:.1f} GB/s, {product}", fontsize=9)
    axes.grid(True, which="both", alpha=0.2)
    if shown:
        axes.legend(fontsize=8, title="hollow: 16-bit inputs", title_fontsize=8)


def _bars(axes, shown: Sequence[Measurement], roof: Roof) -> None:  # type: ignore[no-untyped-def]
    """Time over the floor of the machine: 1 is the floor, longer bars are slower."""
    who = ["linattn", *dict.fromkeys(peer for m in shown for peer in m.peers_s)]
    thickness = 0.8 / len(who)
    for i, name in enumerate(who):
        places, lengths = [], []
        for row, m in enumerate(shown):
            seconds = m.kernel_s if name == "linattn" else m.peers_s.get(name)
            if seconds is not None:
                places.append(row + i * thickness)
                lengths.append(seconds / m.floor_s(roof))
        axes.barh(places, lengths, height=thickness, label=name)
    axes.set_yticks([row + 0.4 - thickness / 2 for row in range(len(shown))],
                    [m.workload.name for m in shown], fontsize=7)  # fmt: skip
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.axvline(1, color="k", linewidth=0.8)
    axes.set_xlabel("time / floor of this machine")
    axes.grid(True, axis="x", alpha=0.2)
    axes.legend(fontsize=8)
