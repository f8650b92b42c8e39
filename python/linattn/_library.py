"""The shared library: where it is, the signatures of its functions, statuses as exceptions."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from . import _abi
from ._errors import EXCEPTIONS, DispatchError

_c = ctypes


class Device(_c.Structure):
    """linattn_device."""

    _fields_ = (("type", _c.c_int32), ("index", _c.c_int32))


# Structs cross as bytes that the struct module packed: ctypes hands over the address of their
# buffer, which is what makes one crossing cost less than a microsecond.
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "linattn_version": (_c.c_char_p, []),
    "linattn_build_info": (_c.c_char_p, []),
    "linattn_last_error": (_c.c_char_p, []),
    "linattn_plan": (_c.c_int32, [_c.c_char_p, Device, _c.POINTER(_c.c_void_p)]),
    "linattn_plan_destroy": (None, [_c.c_void_p]),
    "linattn_plan_workspace_bytes": (_c.c_int64, [_c.c_void_p]),
    "linattn_plan_implementation": (_c.c_char_p, [_c.c_void_p]),
    "linattn_run": (_c.c_int32, [_c.c_void_p, _c.c_char_p, _c.c_void_p]),
    "linattn_explain": (
        _c.c_int32,
        [_c.c_char_p, Device, _c.c_char_p, _c.c_int64, _c.POINTER(_c.c_int64)],
    ),
    "linattn_implementations": (_c.c_int32, [_c.c_char_p, _c.c_int64, _c.POINTER(_c.c_int64)]),
    "linattn_implementation_id": (_c.c_int32, [_c.c_char_p]),
    "linattn_intermediate_rows_bound": (_c.c_int64, [_c.c_int64, _c.c_int64, _c.c_int64]),
    "linattn_set_num_threads": (_c.c_int32, [_c.c_int32]),
    "linattn_get_num_threads": (_c.c_int32, []),
    "linattn_set_debug_checks": (_c.c_int32, [_c.c_int32]),
    "linattn_abi_layout": (_c.c_int32, [_c.c_char_p, _c.c_int64, _c.POINTER(_c.c_int64)]),
}


def library_path() -> Path:
    """The file to load: ``LINATTN_LIBRARY`` if set, else ``lib/`` of the installed package.

    An editable install has its sources and its library in different folders, both of which are in
    the package's ``__path__``.
    """
    override = os.environ.get("LINATTN_LIBRARY")
    if override:
        return Path(override)
    folders = [Path(folder) / "lib" for folder in sys.modules["linattn"].__path__]
    for folder in folders:
        candidate = folder / "liblinattn.so"
        if candidate.is_file():
            return candidate
    looked = ", ".join(str(folder) for folder in folders)
    raise ImportError(
        f"liblinattn.so is in none of: {looked}. Install the package (pip install .), or point "
        "LINATTN_LIBRARY at a built library."
    )


_lock = threading.Lock()
_loaded: _c.CDLL | None = None


def library() -> _c.CDLL:
    """The loaded library; loads it on first use and checks that it matches this package."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                _loaded = _load(library_path())
    return _loaded


def _load(path: Path) -> _c.CDLL:
    try:
        handle = _c.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"liblinattn.so cannot be loaded: {error}; LINATTN_LIBRARY names another "
                          "file") from None  # fmt: skip
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(handle, name)
        function.restype, function.argtypes = result, arguments
    layout = json.loads(_text(handle, handle.linattn_abi_layout))
    if {name: _abi.STRUCTS.get(name) for name in layout} != layout:
        raise ImportError(
            f"{path} (linattn {handle.linattn_version().decode()}) has other structs than this "
            "package: both must come from the same version"
        )
    return handle


_threads_follow_torch = False


def follow_torch_threads(count: int) -> None:
    """Called before the first plan: two pools of other sizes on the same cores slow each other.

    The library itself reads LINATTN_NUM_THREADS.
    """
    global _threads_follow_torch
    if not _threads_follow_torch:
        _threads_follow_torch = True
        if not os.environ.get("LINATTN_NUM_THREADS"):
            library().linattn_set_num_threads(count)


def _text(handle: _c.CDLL, function: Callable[..., int], *leading: Any) -> str:
    """Text of a function that fills a caller's buffer: asks for its size, then for the text."""
    length = _c.c_int64()
    status = function(*leading, None, 0, _c.byref(length))
    if status == _abi.OK:
        buffer = _c.create_string_buffer(length.value + 1)
        status = function(*leading, buffer, length.value + 1, _c.byref(length))
        if status == _abi.OK:
            return buffer.value.decode()
    raise_status(handle, status)


def explain_json(problem: bytes, device: Device) -> dict[str, Any]:
    handle = library()
    result: dict[str, Any] = json.loads(_text(handle, handle.linattn_explain, problem, device))
    return result


def implementations_json() -> dict[str, dict[str, list[dict[str, Any]]]]:
    handle = library()
    result: dict[str, Any] = json.loads(_text(handle, handle.linattn_implementations))
    return result


def implementation_id(name: str) -> int:
    """The number that a problem's ``force`` takes for an implementation."""
    identifier: int = library().linattn_implementation_id(name.encode())
    if identifier < 0:
        lists = implementations_json().values()
        known = {e["name"] for devices in lists for entries in devices.values() for e in entries}
        raise ValueError(f"no implementation is named {name!r}; known: {', '.join(sorted(known))}")
    return identifier


def raise_status(
    handle: _c.CDLL, status: int, problem: bytes | None = None, device: Device | None = None
) -> NoReturn:
    """Raises the exception of a status with the library's text."""
    message = handle.linattn_last_error().decode() or f"status {status}"
    if status == _abi.UNSUPPORTED:
        refused: dict[str, str] = {}
        if problem is not None and device is not None:
            refused = explain_json(problem, device)["refused"]
        raise DispatchError(message, refused)
    raise EXCEPTIONS.get(status, RuntimeError)(message)
