"""Options that describe one problem, and the `Case` they make."""

from __future__ import annotations

import argparse

from ..testing.cases import FAMILIES, FORMS, PASSES, Case, Pool

DTYPES = {"bf16": "bf16", "bfloat16": "bf16", "f16": "f16", "fp16": "f16", "float16": "f16",
          "half": "f16", "f32": "f32", "fp32": "f32", "float32": "f32", "float": "f32"}  # fmt: skip
FAMILY_ALIASES = {"gated_delta_rule": "gdn", "delta_rule": "delta", "deltanet": "delta",
                  "lightning_attn": "lightning"}  # fmt: skip


def family(text: str) -> str:
    """A family by its own or its operators' names: `kda`, `chunk_kda`, `gated_delta_rule`."""
    name = text.removeprefix("chunk_").removeprefix("fused_recurrent_")
    name = FAMILY_ALIASES.get(name, name)
    if name not in FAMILIES:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: {', '.join(FAMILIES)}")
    return name


def dtype(text: str) -> str:
    if text not in DTYPES:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: {', '.join(DTYPES)}")
    return DTYPES[text]


def lengths(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: lengths such as 1024,0,300")
    return found


def count(text: str) -> int:
    value = int(text) if text.isdigit() else -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a number of at least 0")
    return value


def add_problem_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("family", type=family, help=f"one of {', '.join(FAMILIES)}")
    add("--form", choices=FORMS, default="chunk", help="default: chunk")
    add("--pass", dest="direction", choices=PASSES, default="forward", help="default: forward")
    add("--tokens", type=count, default=4096, metavar="T", help="of each batch row (default: 4096)")
    add("--varlen", type=lengths, default=(), metavar="LENGTHS",
        help="packed sequences by length, such as 1024,0,300; replaces --tokens")  # fmt: skip
    add("--batch", type=count, default=1, metavar="B", help="default: 1")
    add("--heads", type=count, default=8, metavar="H", help="of q and k (default: 8)")
    add("--heads-v", type=count, default=0, metavar="HV", help="default: as --heads")
    add("--dim-k", type=count, default=128, metavar="K", help="default: 128")
    add("--dim-v", type=count, default=128, metavar="V", help="default: 128")
    add("--dtype", type=dtype, default="bf16", help="of q, k, v (default: bf16)")
    add("--gate-dtype", type=dtype, default="f32", help="of g (default: f32)")
    add("--state-dtype", type=dtype, default="f32", help="of the states (default: f32)")
    add("--state-v-first", action="store_true", help="states are [.., V, K]")
    add("--gate-form", choices=("given", "softplus", "bounded"), default="given",
        help="bounded and softplus compute the gate inside (default: given)")  # fmt: skip
    add("--beta-form", choices=("value", "sigmoid", "sigmoid2"), default="value",
        help="default: value")  # fmt: skip
    add("--qk-norm", action="store_true", help="L2 norm of q and k inside")
    add("--safe-gate", action="store_true", help="promise log decays in [-5, 0)")
    add("--no-initial-state", action="store_true", help="start from zero")
    add("--no-final-state", action="store_true", help="forward: do not return the state")
    add("--intermediate-states", action="store_true", help="return the state every 64 tokens")
    add("--pool", type=count, default=0, metavar="SLOTS", help="states in a pool of so many slots")
    add("--batch-invariant", action="store_true", help="bitwise the same alone and in a batch")
    add("--no-auto-cp", action="store_true", help="never cut a sequence into parallel segments")


def case_of(options: argparse.Namespace) -> Case:
    case = Case(
        family=options.family,
        form=options.form,
        direction=options.direction,
        gate_form=options.gate_form,
        beta_form=options.beta_form,
        batch=options.batch,
        tokens=options.tokens,
        lengths=options.varlen,
        heads=options.heads,
        heads_v=options.heads_v,
        dim_k=options.dim_k,
        dim_v=options.dim_v,
        dtype=options.dtype,
        gate_dtype=options.gate_dtype,
        state_dtype=options.state_dtype,
        state_v_first=options.state_v_first,
        qk_norm=options.qk_norm,
        safe_gate=options.safe_gate,
        initial_state=not options.no_initial_state,
        final_state=not options.no_final_state and options.direction == "forward",
        intermediate=options.intermediate_states,
        batch_invariant=options.batch_invariant,
        auto_cp=not options.no_auto_cp,
    )
    return case if not options.pool else _with_pool(case, options.pool)


def _with_pool(case: Case, slots: int) -> Case:
    spare = slots - case.num_sequences
    if spare < 0:
        raise ValueError(f"--pool is {slots}; allowed: at least one slot for each of the "
                         f"{case.num_sequences} sequences")  # fmt: skip
    fields = {name: getattr(case, name) for name in case.__dataclass_fields__}
    return Case(**{**fields, "pool": Pool(spare=spare), "initial_state": True})
