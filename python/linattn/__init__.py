"""linattn: linear-attention operators (KDA, GDN, DeltaNet, GLA, Lightning) for CPU and CUDA.

``linattn.ops`` has the operators, ``linattn.nn`` layers, ``linattn.compat`` other libraries'
names over the same operators; those three need torch. This module needs neither torch nor a GPU.
"""

from . import _abi
from ._dispatch import (
    Explanation,
    Implementation,
    Launch,
    explain,
    force,
    implementations,
    last_implementation,
)
from ._errors import DispatchError

__version__ = f"{_abi.VERSION_MAJOR}.{_abi.VERSION_MINOR}.{_abi.VERSION_PATCH}"

__all__ = [
    "DispatchError",
    "Explanation",
    "Implementation",
    "Launch",
    "__version__",
    "explain",
    "force",
    "implementations",
    "last_implementation",
]
