"""The base install: everything here works without torch and transformers (`make test-base` runs it without them)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import bestfirst

LINES = Path(__file__).parents[1].joinpath("data", "tatoeba-200.de")
BASE_INSTALL = find_spec("torch") is None and find_spec("transformers") is None
needs_base_install = pytest.mark.skipif(not BASE_INSTALL, reason="torch and transformers are installed here")
INSTALL = "pip install 'bestfirst[transformers]'"


def run(*arguments: object, stdin: str = "", code: int = 0) -> str:
    """The command's output, or its error message if it is to fail."""
    command = [sys.executable, "-m", "bestfirst", *map(str, arguments)]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_translate_with_every_kind_of_search_and_score():
    line = "Wie melkt man eine Kuh?"
    for settings in (["--beam", 3], ["--strategy", "beam"], ["--length-penalty", 0.6], ["--score", "gnmt", "--alpha", 0.6]):
        assert run("translate", *settings, stdin=line) == "How do you milk a cow?\n"
    (found,) = map(json.loads, run("translate", "--json", "--nbest", 3, "--beam", 3, stdin=line).splitlines())
    assert len(found["hypotheses"]) == 3
    assert found["exact"]


def test_compare_view_and_explain(tmp_path):
    assert "best-first" in run("compare", "Guten Morgen!")
    run("view", "Guten Morgen!", "-o", tmp_path / "page.html")
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Good morning" in run("explain", "Guten Morgen!", "--want", "Good morning!")


def test_a_corpus_job_translates_every_line(tmp_path):
    (tmp_path / "in").write_text("\n".join(LINES.read_text(encoding="utf-8").splitlines()[:20]) + "\n", encoding="utf-8")
    run("translate", tmp_path / "in", "-o", tmp_path / "out", "--stats")
    assert len((tmp_path / "out").read_text(encoding="utf-8").splitlines()) == 20


def test_load_decode_and_ensembles_in_this_process():
    model = bestfirst.load()
    (result,) = bestfirst.decode(model, ["Guten Morgen!"], beam=5, score=bestfirst.Coverage(0.2), nbest=2)
    assert result.text == "Good morning."
    both = bestfirst.Ensemble([model, model])
    assert bestfirst.decode(both, ["Guten Morgen!"], beam=2)[0].hypotheses[0].tokens == result.hypotheses[0].tokens
    if BASE_INSTALL:
        assert not {"torch", "transformers"} & set(sys.modules)


def test_stop_strings_do_not_need_transformers():
    """A special token among them becomes an EOS token. Neither imports transformers, which takes seconds."""
    code = """
import sys, bestfirst
model = bestfirst.load()
settings = bestfirst.Decoding(beam=2, stop_strings=("ing", "</s>")).read(model)
print(bestfirst.decode(model, ["Guten Morgen!"], settings)[0].text, settings.eos, settings.stop_strings, "torch" in sys.modules)
"""
    message = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert message.stdout == "Good morn (0,) ('ing',) False\n", message.stdout + message.stderr


@needs_base_install
def test_features_that_need_transformers_say_how_to_install_it(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    (tmp_path / "model.safetensors").write_bytes(bytes(8))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    message = run("translate", "--model", tmp_path, stdin="a", code=2)
    assert message.count("\n") == 1
    assert "models of type 't5' are not compiled here" in message
    assert INSTALL in message
    for arguments in (["--device", "cuda"], ["--dtype", "fp16"]):
        assert INSTALL in run("translate", *arguments, stdin="a", code=2)
    with pytest.raises(ImportError, match=r"needs torch and transformers; pip install 'bestfirst\[transformers\]'"):
        bestfirst.wrap  # noqa: B018
    with pytest.raises(ImportError, match=r"bestfirst\[transformers\]"):
        bestfirst.generate  # noqa: B018


@needs_base_install
def test_a_damaged_folder_is_reported_in_one_line(tmp_path):
    embedded = Path(bestfirst.__file__).parent / "data" / "tatoeba-de-en"
    for path in embedded.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes()[:1000] if path.name == "model.safetensors" else path.read_bytes())
    message = run("translate", "--model", tmp_path, stdin="a", code=2)
    assert message.count("\n") == 1
    assert "model.safetensors is damaged" in message
