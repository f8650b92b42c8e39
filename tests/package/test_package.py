"""The package as users get it: installed by CMake, and as a wheel in a bare environment.

Everything here packages the library that lies in build/; nothing of it is compiled again.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "include" / "linattn" / "linattn.h"
# The development tree must not leak into what is tested here.
BARE = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LINATTN_LIBRARY")}


def run(*command: object, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in command], env=env or BARE, cwd=cwd, text=True, capture_output=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", ROOT / "build", "--prefix", where)
    return where


@pytest.fixture(scope="session")
def wheel(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After `prefix`: the wheel configures build/ for itself until the next `make build`."""
    where = tmp_path_factory.mktemp("dist")
    run("make", "-C", ROOT, "wheel", f"DIST={where}")
    (found,) = where.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def bare_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a new environment that holds the wheel and what it requires, so no torch."""
    where = tmp_path_factory.mktemp("bare") / "venv"
    run(sys.executable, "-m", "venv", where)
    python = where / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    return python


@pytest.fixture(scope="session")
def wheel_prefix(bare_python: Path) -> Path:
    code = "import linattn, os; print(os.path.dirname(linattn.__file__))"
    return Path(run(bare_python, "-c", code).strip())


def library_of(prefix: Path) -> Path:
    return prefix / "lib" / "liblinattn.so"


def test_exports_are_the_header_and_nothing_else(prefix: Path) -> None:
    lines = run("nm", "--dynamic", "--defined-only", library_of(prefix)).splitlines()
    exported = {line.split()[-1].split("@")[0] for line in lines}
    declared = set(re.findall(r"LINATTN_API [^;]*?\b(linattn_\w+)\(", HEADER.read_text()))
    assert exported == declared


def test_needs_the_system_libraries_alone(prefix: Path) -> None:
    dynamic = run("readelf", "--dynamic", library_of(prefix))
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    allowed = r"(libc|libm|libstdc\+\+|libgcc_s|libpthread|libdl|librt|ld-linux-\S+)\.so\.\d+"
    assert {name for name in needed if not re.fullmatch(allowed, name)} == set()
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic


@pytest.mark.parametrize("language", ["c", "cpp"])
@pytest.mark.parametrize("source", ["prefix", "wheel_prefix"])
def test_examples_build_and_run_out_of_tree(
    language: str, source: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    where = request.getfixturevalue(source)
    build = tmp_path / "build"
    example = ROOT / "examples" / language
    run("cmake", "-S", example, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={where}")
    run("cmake", "--build", build)
    told = run(build / "prefill_decode")
    assert "relative difference from one run" in told
    assert "a wrong problem is refused" in told


def test_another_minor_version_is_not_found(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(p LANGUAGES CXX)\n"
        "find_package(linattn 99.0 CONFIG REQUIRED)\n"
    )
    done = subprocess.run(
        ["cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={prefix}"],
        env=BARE,
        text=True,
        capture_output=True,
    )
    assert done.returncode != 0
    assert re.search(r'requested\s+version\s+"99.0"', done.stderr), done.stderr
    assert "linattn-config.cmake, version: " in done.stderr


def test_pkg_config(prefix: Path, tmp_path: Path) -> None:
    program = tmp_path / "prefill_decode"
    paths = BARE | {"PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "linattn", env=paths).split()
    run("cc", "-std=c11", ROOT / "examples/c/prefill_decode.c", "-o", program, *flags, "-lm")
    told = run(program, env=BARE | {"LD_LIBRARY_PATH": str(prefix / "lib")})
    assert "relative difference from one run" in told


def test_wheel_is_for_every_python_3(wheel: Path) -> None:
    assert re.fullmatch(r"linattn-\d+\.\d+\.\d+-py3-none-(linux|macosx)_\w+\.whl", wheel.name)


def test_wheel_holds_the_package_and_no_more(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        f"linattn/{path.relative_to(ROOT / 'python' / 'linattn')}"
        for path in (ROOT / "python" / "linattn").rglob("*")
        if path.suffix in (".py", ".typed", ".pyi")
    }
    assert sources <= names
    for needed in (
        "linattn/lib/liblinattn.so",
        "linattn/include/linattn/linattn.h",
        "linattn/include/linattn/linattn.hpp",
        "linattn/lib/cmake/linattn/linattn-config.cmake",
    ):
        assert needed in names
    extra = {n for n in names - sources if not re.match(r"linattn/(lib|include)/|linattn-", n)}
    assert extra == set()


def test_imports_with_numpy_alone(bare_python: Path, tmp_path: Path) -> None:
    code = """
import sys, linattn
lists = linattn.implementations()
assert lists["chunk_forward"]["cpu"][-1].name == "reference", lists
assert "torch" not in sys.modules
try:
    import linattn.ops
except ImportError as error:
    assert "torch" in str(error), error
else:
    raise SystemExit("linattn.ops came without torch")
print(linattn.__version__, linattn.__file__)
"""
    version, file = run(bare_python, "-c", code, cwd=tmp_path).split()
    assert "site-packages" in file
    numbers = re.findall(r"define LINATTN_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", HEADER.read_text())
    assert version == ".".join(numbers)


def test_command_line_works_in_the_bare_environment(bare_python: Path, tmp_path: Path) -> None:
    told = run(bare_python.parent / "linattn", "info", cwd=tmp_path)
    assert "reference" in told
