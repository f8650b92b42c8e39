"""What is timed: each workload is a case with its count of work, as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..testing.cases import FAMILIES, Case, Pool, tensor_specs
from ..testing.dtypes import item_bytes

# Work is counted as a chunked form of 32 rows does it, whatever chunk an implementation uses, so
# that rates compare: at K = V = 128 131k FLOP a token and head for the delta families, 82k for the
# additive ones.
COUNTED_CHUNK = 32


@dataclass(frozen=True)
class Workload:
    name: str
    kind: str  # chunk, long, backward, decode, call
    case: Case

    @property
    def flops(self) -> float:
        return flops_per_token_head(self.case) * self._token_heads()

    @property
    def bytes(self) -> int:
        """Each input read once, each output written once; a pool read and written."""
        total = 0
        for name, spec in tensor_specs(self.case).items():
            size = int(np.prod(spec.shape, dtype=np.int64)) * item_bytes(spec.dtype)
            total += 2 * size if name == "initial_state" and self.case.pool else size
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


def _decode(family: str, sequences: int, heads_v: int) -> Case:
    return Case(
        family, "recurrent", batch=sequences, tokens=1, heads=heads_v, dim_k=128, dim_v=128,
        pool=Pool(spare=0),
    )  # fmt: skip


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


def cuda_workloads(families: tuple[str, ...] = FAMILIES) -> Iterator[Workload]:
    for family in families:
        for tokens, heads in ((8192, 96), (8192, 64), (32768, 8)):
            case = _chunk(family, dtype="bf16", tokens=tokens, heads=heads, beta_dtype="bf16")
            if family in ("kda", "gla"):
                case = replace(case, gate_dtype="bf16", safe_gate=True, gates="mild")
            yield Workload(f"{family} chunk bf16 T={tokens} H={heads}", "chunk", case)
        backward = _chunk(family, dtype="bf16", tokens=8192, heads=64, direction="backward",
                          dht=False)  # fmt: skip
        yield Workload(f"{family} backward bf16 T=8192 H=64", "backward", backward)
        decode = replace(_decode(family, 256, 128), dtype="bf16")
        yield Workload(f"{family} decode bf16 N=256 HV=128", "decode", decode)
        yield Workload(f"{family} call T=1 H=1", "call", replace(_call(family), dtype="bf16"))


def small(workload: Workload) -> Workload:
    """The same work in miniature, to try the command itself."""
    case = workload.case
    tokens = min(case.tokens, 256)
    batch = min(case.batch, 2)
    return replace(workload, name=f"{workload.name} (small)",
                   case=replace(case, tokens=tokens, batch=batch))  # fmt: skip
