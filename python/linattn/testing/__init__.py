"""Cases, inputs, oracle and comparison: shared by `linattn check` and the property tests."""

from .cases import Case, Pool, tensor_specs
from .compare import compare, error, tolerance
from .inputs import make_inputs
from .native import device_of, explain_case, reference, run_case
from .oracle import expected_outputs

__all__ = [
    "Case",
    "Pool",
    "compare",
    "device_of",
    "error",
    "expected_outputs",
    "explain_case",
    "make_inputs",
    "reference",
    "run_case",
    "tensor_specs",
    "tolerance",
]
