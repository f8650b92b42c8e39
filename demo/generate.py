"""Generation: one chunked prefill, then one byte at a time from the carried states."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from model import HybridLM
from torch import Tensor

from linattn.nn import DecodeCache

# fp32 through four layers: each operator is held to 1e-5 of its fp64 reference.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Sample:
    prompt: bytes
    text: bytes
    error: float  # ||decode - prefill|| / ||prefill|| of the logits
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    state_bytes: int


@torch.no_grad()
def generate(
    model: HybridLM,
    prompt: Tensor,
    count: int,
    *,
    temperature: float,
    seed: int,
    device: torch.device,
) -> Sample:
    """Continues ``prompt [T]`` (int64) by ``count`` bytes, and compares every logit on the way
    with those of one prefill over the whole text."""
    generator = torch.Generator().manual_seed(seed)
    cache = DecodeCache()
    tokens = prompt[None].to(device)

    begin = time.perf_counter()
    logits = [model(tokens, cache)]
    logits[0].sum().item()  # waits for the device
    prefill_seconds = time.perf_counter() - begin

    written: list[int] = []
    begin = time.perf_counter()
    while True:
        weights = torch.softmax(logits[-1][0, -1].double().cpu() / temperature, dim=0)
        written.append(int(torch.multinomial(weights, 1, generator=generator)))
        if len(written) == count:
            break
        logits.append(model(torch.tensor([written[-1:]], device=device), cache))
    decode_seconds = time.perf_counter() - begin

    decoded = torch.cat(logits, dim=1)
    whole = torch.cat([prompt, torch.tensor(written[:-1], dtype=torch.int64)])
    reference = model(whole[None].to(device))
    # NaN compares as false with everything, so it must not pass for a small error.
    error = ((decoded - reference).norm() / reference.norm()).nan_to_num(nan=float("inf"))
    return Sample(
        prompt=bytes(prompt.tolist()),
        text=bytes(written),
        error=error.item(),
        prefill_tokens_per_second=len(prompt) / prefill_seconds,
        decode_tokens_per_second=max(1, count - 1) / decode_seconds,
        state_bytes=cache.nbytes,
    )
