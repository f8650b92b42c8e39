"""What a thread carries between calls: the forced implementation, the last one that ran."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class _Local(threading.local):
    force: int = 0
    last: str | None = None
    capture: Callable[..., Any] | None = None
    scratch: Any = None
    scratch_pointer: int = 0


local = _Local()

# Threads that at present force an implementation or capture a problem. A call reads the slower
# thread-local only while this is not zero.
special = 0
_lock = threading.Lock()


def _count(step: int) -> None:
    global special
    with _lock:
        special += step


@contextmanager
def forced(identifier: int) -> Iterator[None]:
    previous, local.force = local.force, identifier
    _count(1)
    try:
        yield
    finally:
        local.force = previous
        _count(-1)


@contextmanager
def captured(receiver: Callable[..., Any]) -> Iterator[None]:
    previous, local.capture = local.capture, receiver
    _count(1)
    try:
        yield
    finally:
        local.capture = previous
        _count(-1)
