"""Trains a small hybrid language model on Python's own sources, then writes with it.

    python demo/run.py [--steps N] [--device cpu|cuda] ...

Exit status 1 when decoding does not reproduce the prefill's logits.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from corpus import standard_library
from generate import TOLERANCE, generate
from model import HybridLM
from report import Ledger, plot
from rich.console import Console
from train import train

import linattn
from linattn.nn import DecodeCache

PROMPT_BYTES = 512


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Trains a small hybrid language model, then writes with it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--steps", type=int, default=1400, help="optimizer steps")
    add("--seconds", type=float, default=130, help="end training by then, steps done or not")
    add("--batch", type=int, default=8, help="windows in a step")
    add("--context", type=int, default=128, help="bytes in a window")
    add("--width", type=int, default=128, help="model width")
    add("--heads", type=int, default=2, help="heads of every layer")
    add("--rate", type=float, default=1e-2, help="peak learning rate")
    add("--weight-decay", type=float, default=0.1)
    add("--seed", type=int, default=0)
    add("--device", choices=["auto", "cpu", "cuda"], default="auto")
    add("--sample-bytes", type=int, default=600, help="bytes to write at the end")
    add("--temperature", type=float, default=0.7)
    add(
        "--output", type=Path, default=Path(__file__).parent, help="folder for loss.png, sample.txt"
    )
    options = parser.parse_args(argv)
    for name in ("steps", "batch", "context", "width", "heads", "sample_bytes"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}: at least 1")
    if options.width % options.heads != 0:
        parser.error(f"--width is {options.width}: a multiple of --heads, {options.heads}")
    for name in ("seconds", "temperature"):
        if not getattr(options, name) > 0:
            parser.error(f"--{name} is {getattr(options, name)}: above 0")
    return options


def choose_device(wanted: str, width: int, heads: int) -> tuple[torch.device, str]:
    """The device and why: CUDA if every operator of the model runs there, forward and back."""
    if wanted == "cpu":
        return torch.device("cpu"), "as asked"
    if not torch.cuda.is_available():
        if wanted == "cuda":
            sys.exit("--device cuda: torch finds no CUDA device")
        return torch.device("cpu"), "torch finds no CUDA device"
    try:
        model = HybridLM(width, heads).cuda()
        tokens = torch.zeros(1, 80, dtype=torch.int64, device="cuda")
        model.bits(tokens).backward()
        with torch.no_grad():
            model(tokens[:, :1], DecodeCache())
    except linattn.DispatchError as refused:
        if wanted == "cuda":
            raise
        reason = str(refused).splitlines()[0]
        return torch.device("cpu"), f"CUDA does not run every operator: {reason}"
    return torch.device("cuda"), torch.cuda.get_device_name()


def main(argv: list[str] | None = None) -> int:
    with Ledger() as ledger:
        return demonstrate(arguments(argv), ledger)


def demonstrate(options: argparse.Namespace, ledger: Ledger) -> int:
    began = time.perf_counter()
    console = Console(soft_wrap=True)
    device, reason = choose_device(options.device, options.width, options.heads)
    torch.manual_seed(options.seed)
    corpus = standard_library()
    model = HybridLM(options.width, options.heads).to(device)
    parameters = sum(p.numel() for p in model.parameters())
    console.print(f"device      {device} ({reason}), {torch.get_num_threads()} CPU threads")
    console.print(
        f"corpus      {corpus.num_files} files under {corpus.root}: "
        f"{len(corpus.train) / 1e6:.1f} MB to train on, "
        f"{len(corpus.validation) / 1e6:.2f} MB held out"
    )
    console.print(
        f"model       KDA, GDN, GLA, Lightning; width {options.width}, {options.heads} heads, "
        f"{parameters / 1e6:.2f} M parameters"
    )
    console.print(
        f"training    {options.steps} steps of {options.batch} x {options.context} bytes, AdamW"
    )
    history = train(
        model,
        corpus,
        steps=options.steps,
        seconds=options.seconds,
        batch=options.batch,
        context=options.context,
        rate=options.rate,
        weight_decay=options.weight_decay,
        seed=options.seed,
        device=device,
    )

    middle = len(corpus.validation) // 2
    sample = generate(
        model,
        corpus.validation[middle : middle + PROMPT_BYTES].long(),
        options.sample_bytes,
        temperature=options.temperature,
        seed=options.seed,
        device=device,
    )
    options.output.mkdir(parents=True, exist_ok=True)
    plot(history, options.output / "loss.png")
    (options.output / "sample.txt").write_bytes(
        sample.prompt + b"\n--- written by the model ---\n" + sample.text + b"\n"
    )
    console.rule("prompt")
    console.print(sample.prompt.decode(errors="replace"), markup=False, highlight=False)
    console.rule("written by the model")
    console.print(sample.text.decode(errors="replace"), markup=False, highlight=False)
    console.rule()
    console.print(ledger.table())
    matches = sample.error <= TOLERANCE
    console.print(
        f"loss        train {history.recent():.3f}, validation {history.validation[-1][1]:.3f} "
        f"bits per byte"
    )
    console.print(
        f"speed       training {history.tokens_per_second:,.0f} tokens/s, "
        f"prefill {sample.prefill_tokens_per_second:,.0f}, "
        f"decode {sample.decode_tokens_per_second:,.0f}; "
        f"state {sample.state_bytes / 1024:.0f} KiB whatever the length"
    )
    verdict = "equals" if matches else "DOES NOT EQUAL"
    console.print(
        f"check       decode {verdict} prefill: relative error {sample.error:.1e} of the logits "
        f"(limit {TOLERANCE:.0e})"
    )
    console.print(f"written     {options.output / 'loss.png'}, {options.output / 'sample.txt'}")
    console.print(f"time        {time.perf_counter() - began:.0f} s")
    return 0 if matches else 1


if __name__ == "__main__":
    sys.exit(main())
