"""The recipe of the embedded model, at a size that takes seconds: it runs reproducibly, and its model can be loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import bestfirst

pytestmark = pytest.mark.xdist_group("recipe")  # one worker, so that the models are trained once

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "tatoeba-de-en"
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
TINY = "--width 32 --inner 64 --layers 1 --heads 2 --updates 30 --warmup 5 --batch-tokens 600 --average-every 2 --report-every 10"


def recipe(script: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(RECIPE / script), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ONE_THREAD)


def output_of(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return out


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `data`, and `first` and `second`: two models from the same command."""
    folder = tmp_path_factory.mktemp("recipe")
    german = (ROOT / "tests/data/tatoeba-200.de").read_text(encoding="utf-8").splitlines()
    english = (ROOT / "tests/data/tatoeba-200.en").read_text(encoding="utf-8").splitlines()
    pairs = [f"{e}\t{g}\n" for g, e in zip(german, english, strict=True)]
    (folder / "deu.txt").write_text("".join([*pairs, pairs[0]]), encoding="utf-8")
    report = output_of(recipe("prepare.py", folder / "deu.txt", "--out", folder / "data", "--vocabulary", 200, "--held-out", 20))
    assert "train: 160 of 160 pairs" in report
    running = [recipe("train.py", folder / "data", "--out", folder / name, *TINY.split()) for name in ("first", "second")]
    for process in running:
        assert "valid: last" in output_of(process)
    return folder


def test_valid_and_test_sets_are_disjoint(made):
    valid, test = ((made / "data" / f"{part}.en").read_text(encoding="utf-8").splitlines() for part in ("valid", "test"))
    assert len({*valid, *test}) == 40


def test_the_same_command_gives_byte_identical_weights(made):
    first, second = ((made / name / "model.safetensors").read_bytes() for name in ("first", "second"))
    assert first == second


def test_the_trained_model_can_be_loaded_and_decoded(made):
    model = bestfirst.load(made / "first")
    result = bestfirst.decode(model, ["Guten Morgen!"], beam=2, max_length=20)[0]
    assert result.status in ("complete", "incomplete")
    assert result.calls > 0
