"""Training: AdamW, warm-up and cosine, a progress bar, bits per byte."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import torch
from corpus import Corpus, random_windows, windows
from model import HybridLM
from torch import Tensor
from tqdm import tqdm

WARMUP = 0.04  # of the whole training
FINAL_RATE = 0.02  # of the peak
VALIDATIONS = 5
VALIDATION_WINDOWS, VALIDATION_BYTES = 16, 4096  # at the end; a quarter of the windows on the way


@dataclass
class History:
    """Curves in bits per byte."""

    train: list[float] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    tokens_per_second: float = 0.0
    seconds: float = 0.0

    def recent(self) -> float:
        last = self.train[-max(1, len(self.train) // 20) :]
        return sum(last) / len(last)


def optimizer(model: HybridLM, rate: float, weight_decay: float) -> torch.optim.AdamW:
    """Matrices decay; norms, biases, convolutions and what the layers mark do not."""
    decayed: list[Tensor] = []
    kept: list[Tensor] = []
    for parameter in model.parameters():
        plain = parameter.dim() == 2 and not getattr(parameter, "_no_weight_decay", False)
        (decayed if plain else kept).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-10, fused=True)


def rate_at(progress: float) -> float:
    """Fraction of the peak rate at ``progress`` in [0, 1): linear warm-up, then cosine."""
    if progress < WARMUP:
        return max(progress, 0.1 * WARMUP) / WARMUP
    done = (progress - WARMUP) / (1 - WARMUP)
    return FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * done))


@torch.no_grad()
def validate(model: HybridLM, text: Tensor, count: int, device: torch.device) -> float:
    """Bits per byte over ``count`` windows, each read from its start in one chunked pass."""
    length = min(VALIDATION_BYTES, len(text))
    bits = [model.bits(w[None].to(device)).item() for w in windows(text, count, length)]
    return sum(bits) / len(bits)


def train(
    model: HybridLM,
    corpus: Corpus,
    *,
    steps: int,
    seconds: float,
    batch: int,
    context: int,
    rate: float,
    weight_decay: float,
    seed: int,
    device: torch.device,
) -> History:
    """Trains in place for ``steps``, or for ``seconds`` where the machine is too slow for them;
    the learning rate follows whichever is nearer its end. Validates on the way and at the end."""
    history = History()
    generator = torch.Generator().manual_seed(seed)
    adam = optimizer(model, rate, weight_decay)
    step, progress, validated = 0, 0.0, 0
    began = time.perf_counter()
    bar = tqdm(total=steps, unit="step", dynamic_ncols=True, mininterval=0.5)
    while progress < 1:
        begin = time.perf_counter()
        for group in adam.param_groups:
            group["lr"] = rate * rate_at(progress)
        tokens = random_windows(corpus.train, batch, context + 1, generator).to(device)
        loss = model.bits(tokens)
        adam.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        history.train.append(loss.item())
        if not math.isfinite(history.train[-1]):
            raise FloatingPointError(f"the loss of step {step} is {history.train[-1]}")
        step += 1
        history.seconds += time.perf_counter() - begin
        history.tokens_per_second = step * batch * context / history.seconds
        progress = max(step / steps, (time.perf_counter() - began) / seconds)
        bar.update()
        bar.set_postfix_str(
            f"{history.recent():.3f} bits/byte, {history.tokens_per_second:,.0f} tokens/s"
        )
        if progress >= 1 or int(progress * VALIDATIONS) > validated:
            validated = int(progress * VALIDATIONS)
            count = VALIDATION_WINDOWS if progress >= 1 else VALIDATION_WINDOWS // 4
            value = validate(model, corpus.validation, count, device)
            history.validation.append((step, value))
            bar.write(
                f"step {step:5}: train {history.recent():.3f}, validation {value:.3f} bits/byte, "
                f"{history.tokens_per_second:,.0f} tokens/s"
            )
    bar.close()
    if step < steps:
        bar.write(f"stopped after {step} of {steps} steps: the limit is {seconds:g} s")
    return history
