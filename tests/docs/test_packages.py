"""Wheel and sdist are each built, installed away from this repository, run with the demo's commands, and uninstalled.

Dependencies are borrowed from the environment of this test; with BESTFIRST_TEST_SCALE=full they are installed as by a user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from scale import FULL

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", "src", "benchmarks")
CLEAN = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, env=CLEAN, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> dict[str, Path]:
    pytest.importorskip("build", reason="packages are built by build: pip install 'bestfirst[dev]'")
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", source / "dist", cwd=source)
    (wheel,), (sdist,) = (source / "dist").glob("*.whl"), (source / "dist").glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


@pytest.mark.xdist_group("packages")
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_package_installs_works_and_uninstalls_completely(kind: str, packages: dict[str, Path], tmp_path: Path):
    home = tmp_path / "venv"
    venv.create(home, with_pip=FULL, symlinks=os.name != "nt")
    python = home / "bin" / "python"
    pip = [python, "-m", "pip"] if FULL else [sys.executable, "-m", "pip", "--python", python]
    borrowed = [] if FULL else ["--no-deps", "--no-build-isolation"]
    if not FULL:  # .pth files in that folder are not processed, so this repository's own have no effect
        site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
        (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    constraints = ["-c", ROOT / "constraints.txt"] if FULL else []
    run(*pip, "install", "-q", *borrowed, *constraints, packages[kind], cwd=tmp_path)
    command = home / "bin" / "bestfirst"
    where = run(python, "-c", "import bestfirst, bestfirst_bench; print(bestfirst.__file__)", cwd=tmp_path).stdout
    assert str(home) in where
    assert run(command, "--version", cwd=tmp_path).stdout.startswith("bestfirst ")
    if kind == "wheel" or FULL:  # the wheel was built from the sdist, and kernels are compiled anew for every installation
        said = run(command, "translate", cwd=tmp_path, input="Guten Morgen!\nWo ist der Bahnhof?\n").stdout
        assert said == "Good morning.\nWhere is the station?\n"
        assert "How do you milk a cow?" in run(command, "compare", "--beam", 10, "Wie melkt man eine Kuh?", cwd=tmp_path).stdout
    if FULL:
        demo = run("make", "demo", f"VENV={home}", "-o", home / ".base", "-o", python, cwd=ROOT).stdout
        assert "of 200 translations are the same" in demo
    run(*pip, "uninstall", "-q", "-y", "bestfirst", cwd=tmp_path)
    assert not command.exists()
    assert not list(home.rglob("bestfirst*/*.py"))
