"""The exceptions the library raises, one class for each status of the C interface."""

from __future__ import annotations

from . import _abi


class DispatchError(RuntimeError):
    """A legal problem that no implementation takes.

    ``refused`` maps every implementation of the device to its reason.
    """

    def __init__(self, message: str, refused: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.refused: dict[str, str] = dict(refused or {})


EXCEPTIONS: dict[int, type[Exception]] = {
    _abi.INVALID_VALUE: ValueError,
    _abi.INVALID_TYPE: TypeError,
    _abi.UNSUPPORTED: DispatchError,
    _abi.DEVICE_FAILURE: RuntimeError,
    _abi.OUT_OF_MEMORY: MemoryError,
    _abi.NOT_IMPLEMENTED: NotImplementedError,
}
