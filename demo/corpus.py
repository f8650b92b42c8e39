"""Text that every machine with Python has: the sources of its standard library, as bytes."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
VALIDATION_EVERY = 20  # one file in so many is kept out of training


@dataclass(frozen=True)
class Corpus:
    """Whole files joined end to end; no file is in both parts."""

    root: Path
    num_files: int
    train: Tensor  # [bytes] uint8
    validation: Tensor


def standard_library() -> Corpus:
    """Reads the sources in the order of their names, so the same Python gives the same corpus."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if SKIPPED.isdisjoint(path.relative_to(root).parts)
    )
    if len(files) < VALIDATION_EVERY:
        raise FileNotFoundError(f"only {len(files)} Python sources under {root}")
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for number, name in enumerate(files):
        parts[number % VALIDATION_EVERY == VALIDATION_EVERY - 1].append((root / name).read_bytes())
    train, validation = (
        torch.frombuffer(bytearray(b"\n".join(part)), dtype=torch.uint8) for part in parts
    )
    return Corpus(root, len(files), train, validation)


def windows(text: Tensor, count: int, length: int) -> Tensor:
    """``[count, length]`` int64: evenly spaced pieces of ``text``, the same at every call."""
    starts = torch.linspace(0, len(text) - length, count).long()
    return text[starts.unsqueeze(1) + torch.arange(length)].long()


def random_windows(text: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """``[count, length]`` int64: pieces of ``text`` that start anywhere."""
    starts = torch.randint(len(text) - length + 1, (count, 1), generator=generator)
    return text[starts + torch.arange(length)].long()
