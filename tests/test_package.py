"""The installed package: a complete wheel that works without the sources, and a fast import."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import bestfirst

pytestmark = pytest.mark.xdist_group("package")  # one worker, so that the wheel is built once

ROOT = Path(__file__).parents[1]
MODEL = "bestfirst/data/tatoeba-de-en/"
HUB = "bestfirst/integrations/hub/"
SHIPPED = [
    *("bestfirst/py.typed", "bestfirst_bench/paper.csv", "bestfirst_bench/cli/__init__.py"),
    *("bestfirst/page/assets/" + name for name in ("page.html", "theme.css", "show.js")),
    *(HUB + name for name in ("README.md", "custom_generate/generate.py", "custom_generate/requirements.txt")),
    *(MODEL + name for name in ("config.json", "generation_config.json", "model.safetensors")),
    *(MODEL + name for name in ("source.spm", "target.spm", "vocab.json", "tokenizer_config.json")),
    *(MODEL + name for name in ("README.md", "LICENCE.txt", "training.json")),
]


def python(*args: object, **settings: object) -> str:
    done = subprocess.run([sys.executable, *map(str, args)], capture_output=True, text=True, check=False, **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources with the installed setuptools."""
    copy, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("src", "benchmarks"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    python("-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", out, copy)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_wheel_ships_the_model_its_card_and_the_types(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        weights = archive.getinfo(MODEL + "model.safetensors").file_size
    assert [name for name in SHIPPED if name not in names] == []
    assert weights == (ROOT / "src" / MODEL / "model.safetensors").stat().st_size
    assert not [
        name for name in names if name.startswith(("tests/", "recipes/", "docs/", "benchmarks/")) or "__pycache__" in name
    ]


def test_wheel_metadata_has_version_licence_pythons_and_extras(metadata):
    assert metadata["Version"] == bestfirst.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE", "src/bestfirst/data/tatoeba-de-en/LICENCE.txt"]
    assert set(metadata["Requires-Python"].split(",")) == {">=3.10", "<3.14"}
    extras = {"bench", "view", "cluster", "parquet", "serve", "dev", "transformers", "zstd", "grammar", "docs"}
    assert set(metadata.get_all("Provides-Extra")) == extras
    base = {name for name in map(str, metadata.get_all("Requires-Dist")) if "extra ==" not in name}
    assert not any(name.startswith(("torch", "transformers")) for name in base)


def test_installed_wheel_translates_without_the_sources(wheel, tmp_path):
    python("-m", "pip", "install", "-qq", "--no-deps", "--no-index", "--target", tmp_path / "site", wheel)
    code = "import bestfirst; print(bestfirst.__file__); print(bestfirst.decode(bestfirst.load(), ['Guten Morgen!'])[0].text)"
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}
    where, text = python("-c", code, cwd=tmp_path, env=env).splitlines()
    assert where.startswith(str(tmp_path))
    assert text == "Good morning."
    assert "IWSLT'14" in python("-m", "bestfirst", "bench", "paper", "--table", "results", cwd=tmp_path, env=env)


def test_licence_is_the_apache_licence_in_full():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Version 2.0, January 2004" in text
    assert "9. Accepting Warranty or Additional Liability." in text
    assert len(text) == 11358


def test_import_loads_neither_torch_nor_numpy():
    heavy = "import sys, bestfirst; print(sorted({'torch', 'numpy', 'transformers'} & sys.modules.keys()))"
    assert python("-c", heavy) == "[]"


def test_import_takes_less_than_a_fifth_of_a_second():
    """If Python itself starts in a twentieth of a second; the best of five runs, in CPU seconds (ignores other processes)."""
    timed = "import time; t = time.process_time(); import bestfirst; print(t, time.process_time() - t)"
    runs = [[*map(float, python("-c", timed).split())] for _ in range(5)]
    assert min(ours for _, ours in runs) < 4 * max(0.05, min(start for start, _ in runs))
