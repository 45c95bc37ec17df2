"""Rows of a few sentences, made once by the real command, and models to make more rows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import transformers

import bestfirst
from bestfirst.cli import run
from bestfirst.models.folder import embedded_folder

DATA = Path(__file__).parents[1] / "data"
GERMAN, ENGLISH = DATA / "tatoeba-200.de", DATA / "tatoeba-200.en"
LINES = 6


@pytest.fixture(scope="session")
def rows_file(tmp_path_factory) -> Path:
    """Beam search, early stopping, best-first and memory-reduced search with two beams; two temperatures; lines decoded alone."""
    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    paper = ["bench", "paper", GERMAN, ENGLISH, "--limit", LINES, "--rows", file]
    assert call(*paper, "--table", "results,stopping,memory", "--beam", "5,10") == 0
    assert call(*paper[:-2], "--limit", 2, "--rows", file, "--table", "figure", "--beam", "3") == 0
    tempered = ["--score", "logprob:temperature=0.7", "--finished", "keep", "--length-ratio", 2, "--beam", 5, "--limit", LINES]
    assert call("bench", "run", GERMAN, ENGLISH, *tempered, "--rows", file) == 0
    return file


def call(*arguments: object) -> int:
    """Run the command in this process."""
    return run([*map(str, arguments)])


@pytest.fixture(scope="session")
def language_model(tmp_path_factory) -> Path:
    """A folder with a random language model of the embedded model's vocabulary."""
    translator = bestfirst.load()
    (eos,) = translator.eos
    transformers.set_seed(0)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 256}
    config = transformers.GPT2Config(vocab_size=translator.model.config.vocab_size, eos_token_id=eos, bos_token_id=eos, **sizes)
    folder = tmp_path_factory.mktemp("lm")
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def other_model(tmp_path_factory) -> Path:
    """The embedded model with other weights, in a folder of the same name."""
    folder = tmp_path_factory.mktemp("other") / Path(embedded_folder()).name
    shutil.copytree(embedded_folder(), folder)
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    loaded.model.shared.weight.data *= 1.01
    loaded.save_pretrained(folder)
    return folder
