"""What is timed: each workload is a case with its count of work, as data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..testing.cases import FAMILIES, Case, Pool, tensor_specs
from ..testing.dtypes import item_bytes

# Work is counted as a chunked form of 32 rows does it, whatever chunk an implementation uses, so
# that rates compare: at K = V = 128 131k FLOP a token and head for the delta families, 82k for the
# additive ones.
COUNTED_CHUNK = 32
KINDS = ("chunk", "prefill", "long", "backward", "decode", "speculative", "call")


@dataclass(frozen=True)
class Workload:
    name: str
    kind: str  # one of KINDS
    case: Case
    shuffled: bool = False  # slots of a pool in random order

    @property
    def flops(self) -> float:
        return flops_per_token_head(self.case) * self._token_heads()

    @property
    def bytes(self) -> int:
        """Each input read once, each output written once; of a pool, each sequence's state is read
        once and written once, or after each token where the indices have a column for each."""
        total, pool = 0, self.case.pool
        for name, spec in tensor_specs(self.case).items():
            size = int(np.prod(spec.shape, dtype=np.int64)) * item_bytes(spec.dtype)
            if name == "initial_state" and pool:
                written = self.case.tokens if pool.columns else 1
                size = size // self.case.num_slots * self.case.num_sequences * (1 + written)
            total += size
        return total

    def _token_heads(self) -> int:
        return sum(self.case.sequence_lengths) * self.case.value_heads


def flops_per_token_head(case: Case) -> float:
    k, v, c = case.dim_k, case.dim_v, COUNTED_CHUNK
    if case.form == "recurrent":
        return (7 if case.is_delta else 5) * k * v
    if case.direction == "backward":
        return 16 * k * v + 11 * c * (k + v) if case.is_delta else 10 * k * v + 5 * c * (k + v)
    return 6 * k * v + 4 * c * (k + v) if case.is_delta else 4 * k * v + 2 * c * (k + v)


def _chunk(family: str, **changes: object) -> Case:
    base = Case(family, heads=8, tokens=4096, dim_k=128, dim_v=128, initial_state=False)
    return replace(base, **changes)  # type: ignore[arg-type]


def _decode(family: str, sequences: int, heads: int, **changes: object) -> Case:
    base = Case(
        family, "recurrent", batch=sequences, tokens=1, heads=heads, dim_k=128, dim_v=128,
        pool=Pool(spare=0),
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def _call(family: str) -> Case:
    return Case(family, "recurrent", tokens=1, heads=1, dim_k=64, dim_v=64)


def cpu_workloads(families: tuple[str, ...] = FAMILIES) -> Iterator[Workload]:
    for family in families:
        yield Workload(f"{family} chunk fp32 T=4096 H=8", "chunk", _chunk(family))
        half = _chunk(family, dtype="bf16", gate_dtype="f32", beta_dtype="f32")
        yield Workload(f"{family} chunk bf16 T=4096 H=8", "chunk", half)
        yield Workload(f"{family} chunk fp32 T=4096 H=1", "long", _chunk(family, heads=1))
        backward = _chunk(family, direction="backward", dht=False)
        yield Workload(f"{family} backward fp32 T=4096 H=8", "backward", backward)
        yield Workload(f"{family} decode fp32 N=64 HV=32", "decode", _decode(family, 64, 32))
        yield Workload(f"{family} call T=1 H=1", "call", _call(family))


# CUDA: bf16 tokens, gates and beta, as served models have them. Published tables and
# `goals.H200` are over these sizes: (T, H, HV).
CUDA_CHUNK = {
    "kda": ((8192, 96, 96), (8192, 64, 64), (2048, 12, 12)),
    "gdn": ((32768, 16, 64), (8192, 16, 64), (8192, 2, 8)),
    "delta": ((8192, 64, 64),),
    "gla": ((8192, 32, 32),),
    "simple_gla": ((8192, 64, 64),),
    "lightning": ((8192, 64, 64),),
}
CUDA_BACKWARD = {
    "kda": ((8192, 96, 96), (8192, 64, 64)),
    "gdn": ((32768, 16, 32), (8192, 16, 32)),
    "delta": ((8192, 64, 64),),
    "gla": ((8192, 32, 32),),
    "simple_gla": ((8192, 64, 64),),
    "lightning": ((8192, 64, 64),),
}
# GDN's forward as served: H, HV, lengths of the sequences.
CUDA_PREFILL = (
    (16, 64, (8192,)),
    (16, 64, (32768,)),
    (16, 64, (8192,) * 4),
    (16, 64, (1024,) * 8),
    (16, 64, (2048,)),
    (16, 48, (8192,)),
    (16, 32, (8192,)),
    (16, 32, (32768,)),
    (16, 32, (1024, 7168)),
    (16, 16, (4096,) * 8),
    (8, 32, (8192,)),
    (4, 16, (8192,)),
    (2, 8, (32768,)),
    (2, 8, (8192,)),
    (2, 8, (2048,)),
)
# Whether all heads decay, or a quarter of them not at all.
PREFILL_GATES = ("decaying", "mixed")
# KDA's: H, rows of the batch, lengths of the sequences of one. Those of the second table also with
# gates that keep almost all.
MIXED_LENGTHS = (1300, 547, 2048, 963, 271, 3063)
CUDA_PREFILL_KDA = (
    (96, 1, (8192,)),
    (96, 1, MIXED_LENGTHS),
    (96, 1, (1024,) * 8),
    (64, 1, (8192,)),
    (64, 1, MIXED_LENGTHS),
    (64, 1, (1024,) * 8),
    (64, 1, (512,)),
    (64, 1, (1024,)),
    (64, 1, (4096,)),
    (64, 1, (16384,)),
    (64, 2, (8192,)),
    (24, 1, (8192,)),
    (16, 1, (8192,)),
    (16, 1, (2048,) * 8),
    (12, 1, (2048,) * 4),
    (12, 1, (2048,)),
    (8, 1, (4096,)),
    (4, 1, (1024,)),
    (32, 1, (32768,)),
)
CUDA_KEPT_KDA = ((96, 8192), (64, 8192), (12, 2048), (8, 4096), (32, 32768))  # H, T
CUDA_DECODE = ((256, 128), (64, 64), (16, 64), (1, 64))  # N, HV
STATE_NAMES = {"f32": "fp32", "bf16": "bf16"}


def _raw(case: Case) -> Case:
    """What a model's layer hands over: KDA's and GDN's gates and beta as logits, norms inside."""
    case = replace(case, dtype="bf16", gate_dtype="bf16", beta_dtype="bf16")
    case = replace(case, qk_norm=case.is_delta)
    if case.family in ("kda", "gdn"):
        return replace(case, gate_form="softplus", beta_form="sigmoid")
    return case


def _cuda_chunk(family: str, size: tuple[int, int, int], **changes: object) -> Case:
    tokens, heads, heads_v = size
    own = {"dtype": "bf16", "tokens": tokens, "heads": heads, "heads_v": heads_v}
    case = _chunk(family, **own, beta_dtype="bf16", **changes)
    if family == "kda":  # as FlashKDA's interface has it
        return replace(_raw(case), gate_form="bounded", safe_gate=True)
    if family == "gla":
        return replace(case, gate_dtype="bf16")
    return case


def _sizes(size: tuple[int, int, int]) -> str:
    tokens, heads, heads_v = size
    return f"T={tokens} H={heads}" + (f" HV={heads_v}" if heads_v != heads else "")


def lengths_text(case: Case) -> str:
    """Tokens of each sequence: 8192, 4x8192, 1024+7168."""
    lengths = case.sequence_lengths
    if len(set(lengths)) > 1:
        return "+".join(map(str, lengths))
    return f"{len(lengths)}x{lengths[0]}" if len(lengths) > 1 else str(lengths[0])


def _prefill_kda() -> Iterator[Workload]:
    kept = ((heads, 1, (tokens,)) for heads, tokens in CUDA_KEPT_KDA)
    for gates, sizes in (("mild", CUDA_PREFILL_KDA), ("kept", tuple(kept))):
        for heads, batch, lengths in sizes:
            packed = lengths if len(lengths) > 1 else ()
            case = _cuda_chunk("kda", (sum(lengths), heads, heads), batch=batch, lengths=packed,
                               state_v_first=True, initial_state=True, gates=gates)  # fmt: skip
            name = f"kda prefill T={lengths_text(case)} H={heads} {gates}"
            yield Workload(name, "prefill", case)


def _prefill() -> Iterator[Workload]:
    for gates in PREFILL_GATES:
        for heads, heads_v, lengths in CUDA_PREFILL:
            packed = lengths if len(lengths) > 1 else ()
            case = _chunk("gdn", dtype="bf16", beta_dtype="bf16", heads=heads, heads_v=heads_v,
                          tokens=sum(lengths), lengths=packed, qk_norm=True, initial_state=True,
                          gates=gates)  # fmt: skip
            name = f"gdn prefill T={lengths_text(case)} H={heads} HV={heads_v} {gates}"
            yield Workload(name, "prefill", case)


def _cuda_decode(family: str) -> Iterator[Workload]:
    group = 4 if family == "gdn" else 1
    for state in STATE_NAMES:
        for v_first in (True, False):
            layout = f"{STATE_NAMES[state]} {'VK' if v_first else 'KV'}"
            own = {"state_dtype": state, "state_v_first": v_first}
            for sequences, heads in CUDA_DECODE:
                case = _raw(_decode(family, sequences, heads // group, heads_v=heads, **own))
                yield Workload(f"{family} decode {layout} N={sequences} HV={heads}", "decode", case)
    largest = _raw(_decode(family, 256, 128 // group, heads_v=128, state_v_first=True))
    yield Workload(f"{family} decode fp32 VK N=256 HV=128 shuffled", "decode", largest, True)
    if family == "kda":
        for dim in (64, 256):
            for v_first in (True, False):
                case = replace(largest, batch=128, heads=64, heads_v=64, dim_k=dim, dim_v=dim,
                               state_v_first=v_first)  # fmt: skip
                layout = "VK" if v_first else "KV"
                yield Workload(f"kda decode fp32 {layout} N=128 HV=64 K=V={dim}", "decode", case)
    if family in ("kda", "gdn"):
        for tokens in (2, 4, 8):
            name = f"{family} {tokens} tokens fp32 VK N=256 HV=128"
            case = replace(largest, tokens=tokens)
            yield Workload(f"{name}, last state", "speculative", case)
            case = replace(case, pool=Pool(spare=0, columns=tokens))
            yield Workload(f"{name}, every state", "speculative", case)


def cuda_workloads(families: tuple[str, ...] = FAMILIES) -> Iterator[Workload]:
    for family in families:
        for size in CUDA_CHUNK[family]:
            yield Workload(f"{family} chunk {_sizes(size)}", "chunk", _cuda_chunk(family, size))
        if family == "kda":
            yield from _prefill_kda()
        if family == "gdn":
            yield from _prefill()
        for size in CUDA_BACKWARD[family]:
            case = _cuda_chunk(family, size, direction="backward", dht=False)
            yield Workload(f"{family} backward {_sizes(size)}", "backward", case)
        yield from _cuda_decode(family)
        call = _raw(_decode(family, 1, 64, state_v_first=True))
        yield Workload(f"{family} call N=1 HV=64", "call", call)


def small(workload: Workload) -> Workload:
    """The same work in miniature, to try the command itself."""
    case = workload.case
    lengths = tuple(min(n, 256 // len(case.lengths)) for n in case.lengths)
    tokens = sum(lengths) or min(case.tokens, 256)
    case = replace(case, tokens=tokens, lengths=lengths, batch=min(case.batch, 2))
    cut = {"T": lengths_text(case), "N": case.num_sequences}
    name = re.sub(r"\b([TN])=[\dx+]+", lambda size: f"{size[1]}={cut[size[1]]}", workload.name)
    return replace(workload, name=f"{name} (small)", case=case)
