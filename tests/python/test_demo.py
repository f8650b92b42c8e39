"""The demo end to end, at a size that trains in seconds."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

for needed in ("torch", "tqdm", "rich", "matplotlib"):
    pytest.importorskip(needed)

RUN = Path(__file__).parents[2] / "demo" / "run.py"
TINY = ["--steps", "4", "--batch", "2", "--context", "96", "--width", "32", "--heads", "2"]


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.syspath_prepend(RUN.parent)
    spec = importlib.util.spec_from_file_location("demo_run", RUN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_trains_and_writes(tmp_path):
    options = ["--device", "cpu", "--sample-bytes", "24", "--output", tmp_path]
    result = subprocess.run(
        [sys.executable, RUN, *TINY, *options], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert "decode equals prefill" in result.stdout
    for family in ("kda", "gdn", "gla", "lightning"):
        for work in ("chunk forward", "chunk backward", "recurrent forward"):
            assert f"{family} {work}" in result.stdout
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    prompt, _, text = (tmp_path / "sample.txt").read_bytes().partition(b"\n--- written")
    assert len(prompt) == 512 and text.endswith(b"\n")


def test_fails_when_decode_differs_from_prefill(demo, tmp_path, monkeypatch):
    class Forgetful(demo.HybridLM):
        """Starts from nothing at every call: what the check is there to find."""

        def forward(self, tokens, cache=None):
            return super().forward(tokens, None if cache is None else type(cache)())

    monkeypatch.setattr(demo, "HybridLM", Forgetful)
    options = ["--device", "cpu", "--sample-bytes", "24", "--output", str(tmp_path)]
    assert demo.main([*TINY, *options]) == 1


def test_stops_when_the_time_is_up(demo, tmp_path, capsys):
    options = ["--steps", "1000", "--seconds", "0.001", "--device", "cpu", "--sample-bytes", "2"]
    assert demo.main([*TINY, *options, "--output", str(tmp_path)]) == 0
    assert "stopped after 1 of 1000 steps: the limit is" in capsys.readouterr().out


@pytest.mark.parametrize(
    "option, text",
    [
        (["--steps", "0"], "--steps is 0: at least 1"),
        (["--temperature", "0"], "--temperature is 0.0: above 0"),
        (["--width", "33"], "--width is 33: a multiple of --heads, 2"),
        (["--device", "tpu"], "invalid choice"),
    ],
)
def test_bad_options(demo, option, text, capsys):
    with pytest.raises(SystemExit) as stopped:
        demo.main([*TINY, *option])
    assert stopped.value.code == 2
    assert text in capsys.readouterr().err
