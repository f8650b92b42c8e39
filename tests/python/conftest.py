"""Numbers that a test draws are the same in every run and on every worker."""

import pytest


@pytest.fixture(autouse=True)
def seeded():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
