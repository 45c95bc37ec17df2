"""Compiled kernels where their files cannot be kept, or are damaged: they work, and one line says what is not as usual."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bestfirst

pytest.importorskip("numba", reason="the compiled kernels need numba")

COMPILED = Path(bestfirst.__file__).parent / "engine" / "steps" / "native" / "compiled.py"
KERNELS = """
from .compiled import compiled

@compiled()
def relu(x):
    for i in range(len(x)):
        x[i] = 0 if x[i] < 0 else x[i]
"""
RUN = """
import numpy as np
from native import kernels
x = np.array([-1.0, 2.0], np.float32)
kernels.relu(x)
print(x.tolist(), kernels.relu.stats.cache_path)
print("found", sum(kernels.relu.stats.cache_hits.values()))
"""


@pytest.fixture
def package(tmp_path):
    """A directory with a package of one kernel, compiled as all are."""
    native = tmp_path / "site" / "native"
    native.mkdir(parents=True)
    shutil.copy(COMPILED, native)
    (native / "__init__.py").write_text("")
    (native / "kernels.py").write_text(KERNELS)
    return tmp_path / "site"


@pytest.fixture
def nowhere(package, tmp_path):
    """A package and a home that nobody can write to, whoever runs this: files stand where directories are wanted."""
    (package / "native" / "__pycache__").write_text("")
    (tmp_path / "home").write_text("")
    return package


def run(package: Path, before: str = "", **changes: str | None) -> tuple[list[str], list[str]]:
    """Lines of output, and of what is said about kernels."""
    env = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    env.pop("NUMBA_CACHE_DIR", None)
    for name, value in changes.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    done = subprocess.run([sys.executable, "-c", before + RUN], capture_output=True, text=True, check=False, env=env, cwd=package)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), [line for line in done.stderr.splitlines() if "compiled kernels are" in line]


def test_usually_kernels_lie_beside_their_sources_and_are_found_again(package):
    here = str(package / "native" / "__pycache__")
    assert run(package) == ([f"[0.0, 2.0] {here}", "found 0"], [])
    assert run(package) == ([f"[0.0, 2.0] {here}", "found 1"], [])


@pytest.mark.parametrize("home", ["a file", None])
def test_without_a_place_of_numbas_they_are_kept_among_temporary_files(nowhere, tmp_path, home):
    """Without a home in the environment, the system's word for it counts: a user whom it does not know has none either."""
    (tmp_path / "tmp").mkdir()
    settings = {"HOME": None if home is None else str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")}
    homeless = f"import os.path; os.path.expanduser = lambda path: path.replace('~', {str(tmp_path / 'home')!r})"
    for found in (0, 1):
        (printed, count), (told,) = run(nowhere, homeless, **settings)
        assert printed.startswith(f"[0.0, 2.0] {tmp_path / 'tmp' / 'bestfirst-kernels-'}")
        assert count == f"found {found}"
        assert "are kept in" in told
        assert "NUMBA_CACHE_DIR" in told


def test_with_no_place_at_all_they_are_compiled_in_memory(nowhere, tmp_path):
    before = f"import tempfile; tempfile.tempdir = {str(tmp_path / 'home')!r}"
    for _ in range(2):
        printed, (told,) = run(nowhere, before, HOME=str(tmp_path / "home"))
        assert printed == ["[0.0, 2.0] None", "found 0"]
        assert "compiled anew in every process" in told


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs owners of files")
def test_a_temporary_place_that_others_can_write_to_is_not_used(nowhere, tmp_path):
    """What lies there is run."""
    (tmp_path / "tmp").mkdir()
    open_to_all = tmp_path / "tmp" / f"bestfirst-kernels-{os.getuid()}"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    printed, (told,) = run(nowhere, HOME=str(tmp_path / "home"), TMPDIR=str(tmp_path / "tmp"))
    assert printed == ["[0.0, 2.0] None", "found 0"]
    assert "compiled anew in every process" in told


@pytest.mark.parametrize("size", [0, 40])
@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_a_damaged_file_is_written_anew(package, kind, size):
    run(package)
    damaged = list((package / "native" / "__pycache__").glob(f"*relu*.{kind}"))
    assert damaged
    for path in damaged:
        path.write_bytes(path.read_bytes()[:size])
    printed, (told,) = run(package)
    assert printed[0].startswith("[0.0, 2.0]")
    assert "is damaged" in told
    printed, told = run(package)
    assert (printed[1], told) == ("found 1", [])


def test_a_disk_that_is_full_is_told(package):
    before = "import os; os.replace = lambda *_: (_ for _ in ()).throw(OSError(28, 'No space left on device'))"
    printed, (told,) = run(package, before)
    assert printed[0].startswith("[0.0, 2.0]")
    assert "No space left on device" in told
