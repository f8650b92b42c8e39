"""Which implementation runs, which did not and why; and the choice of one by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from . import _state
from ._library import explain_json, implementation_id, implementations_json


@dataclass(frozen=True)
class Implementation:
    """An entry of an ordered list. ``reason`` says why it cannot run on this machine."""

    name: str
    available: bool
    reason: str


@dataclass(frozen=True)
class Launch:
    """A kernel launch, on the CPU a task. ``note`` says in words how the work is cut."""

    name: str
    grid: tuple[int, int, int]
    block: int
    shared_bytes: int = 0
    note: str = ""

    def __str__(self) -> str:
        grid = " x ".join(map(str, self.grid))
        text = f"{self.name}, grid {grid}, block {self.block}"
        if self.shared_bytes:
            text += f", {self.shared_bytes} bytes of shared memory"
        return f"{text}; {self.note}" if self.note else text


@dataclass(frozen=True)
class Explanation:
    """What a call would do. ``implementation`` is None where every entry refused."""

    operator: str
    device: str
    implementation: str | None
    refused: dict[str, str] = field(default_factory=dict)
    workspace_bytes: int = 0
    launches: tuple[Launch, ...] = ()

    def __str__(self) -> str:
        rows = [("operator", self.operator), ("device", self.device)]
        rows += [("refused", f"{name}: {reason}") for name, reason in self.refused.items()]
        rows += [("implementation", self.implementation or "none")]
        if self.implementation:
            rows += [("workspace", f"{self.workspace_bytes} bytes")]
        for launch in self.launches:
            rows += [("launch", str(launch))]
        return "\n".join(f"{title:<15}{text}" for title, text in rows)


def implementations(
    op: str | None = None, device: str | None = None
) -> dict[str, dict[str, list[Implementation]]]:
    """The ordered lists: ``{list: {device: [Implementation, ..]}}``, fastest entry first.

    ``op`` is a list (``"chunk_forward"``, ``"recurrent_forward"``, ``"backward"``) or an operator
    (``"chunk_kda"``), ``device`` is ``"cpu"`` or ``"cuda"``; both default to all.
    """
    lists = implementations_json()
    if op is not None:
        _require_name("op", op)
        name = _list_of(op, tuple(lists))
        lists = {name: lists[name]}
    if device is not None and device not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}; allowed: 'cpu', 'cuda'")
    return {
        name: {
            kind: [Implementation(e["name"], e["available"], e["reason"]) for e in entries]
            for kind, entries in devices.items()
            if device in (None, kind)
        }
        for name, devices in lists.items()
    }


def _require_name(what: str, name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{what} has type {type(name).__name__}; allowed: str")


def _list_of(op: str, lists: tuple[str, ...]) -> str:
    if op in lists:
        return op
    from ._explain import find_operator, operator_names

    if find_operator(op) is None:
        allowed = ", ".join((*lists, *operator_names()))
        raise ValueError(f"op is {op!r}; allowed: {allowed}")
    if op.endswith("_bwd"):
        return "backward"
    return "chunk_forward" if op.startswith("chunk_") else "recurrent_forward"


@contextmanager
def force(name: str) -> Iterator[None]:
    """Calls of this thread inside the block run the named implementation or raise its reason."""
    _require_name("name", name)
    with _state.forced(implementation_id(name)):
        yield


def last_implementation() -> str | None:
    """What the calling thread's last call ran; None before the first."""
    return _state.local.last


def explain(op: str | Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """What a call of an operator with these arguments would do, without doing it.

    ``op`` is an operator of ``linattn.ops`` or its name; the name with ``_bwd`` explains the
    backward pass, in which every gradient is wanted. Tensors give shapes, types and a device;
    fake tensors (``torch._subclasses.FakeTensorMode``) do too. What the call would refuse, this
    refuses.

    >>> import torch, linattn
    >>> q = torch.zeros(1, 64, 2, 16)
    >>> print(linattn.explain("chunk_delta_rule", q, q, q, torch.ones(1, 64, 2)).device)
    cpu
    """
    from ._explain import problem_of

    name, device, problem, where = problem_of(op, args, kwargs)
    answer = explain_json(problem, device)
    launches = tuple(
        Launch(**{**launch, "grid": tuple(launch["grid"])}) for launch in answer["launches"]
    )
    return Explanation(
        operator=name,
        device=where,
        implementation=answer["implementation"],
        refused=answer["refused"],
        workspace_bytes=answer["workspace_bytes"],
        launches=launches,
    )
