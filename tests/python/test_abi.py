"""The Python side of the C interface is what the header and the library say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from linattn import _abi, _library

ROOT = Path(__file__).resolve().parents[2]
GENERATOR = ROOT / "tools" / "generate_abi.py"


@pytest.mark.skipif(not GENERATOR.is_file(), reason="not in a source tree")
def test_generated_file_is_current():
    run = subprocess.run(
        [sys.executable, str(GENERATOR), "--check"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_layout_is_the_librarys():
    handle = _library.library()
    layout = json.loads(_library._text(handle, handle.linattn_abi_layout))
    assert layout == _abi.STRUCTS


def test_formats_have_the_structs_sizes():
    import struct

    sizes = {name: entry["size"] for name, entry in _abi.STRUCTS.items()}
    problem = _abi.PROBLEM_SCALARS_FORMAT + _abi.TENSOR_FORMAT * len(_abi.PROBLEM_TENSORS)
    assert struct.calcsize("@" + _abi.TENSOR_FORMAT) == sizes["linattn_tensor"]
    assert struct.calcsize("@" + problem) == sizes["linattn_problem"]
    assert struct.calcsize("@" + _abi.ARGS_FORMAT) == sizes["linattn_args"]


def test_version_is_the_librarys():
    import linattn

    assert _library.library().linattn_version().decode() == linattn.__version__


def test_import_needs_no_torch():
    code = "import sys, linattn; linattn.implementations(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_library_says_where_it_looked(tmp_path):
    code = (
        "import linattn, os\n"
        "os.environ.pop('LINATTN_LIBRARY', None)\n"
        f"linattn.__path__[:] = [{str(tmp_path)!r}]\n"
        "try:\n    linattn.implementations()\n"
        f"except ImportError as error:\n    assert {str(tmp_path)!r} in str(error), error\n"
        "else:\n    raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
