"""The examples in the package's docstrings run and give what they say."""

import doctest
import importlib
import pkgutil

import pytest

import linattn

# Importing it registers a backend with flash-linear-attention, which need not be installed.
SKIPPED = {"linattn.compat.fla", "linattn.__main__"}
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(linattn.__path__, "linattn.")
    if module.name not in SKIPPED
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    import torch

    torch.manual_seed(0)
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_every_operator_module_has_examples():
    finder = doctest.DocTestFinder()
    for name in MODULES:
        if name.startswith("linattn.ops.") and "._" not in name:
            tests = finder.find(importlib.import_module(name))
            assert sum(len(test.examples) for test in tests) >= 3, name
