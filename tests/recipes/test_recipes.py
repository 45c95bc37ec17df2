"""The recipes for other kinds of models: each has under 60 lines and runs as its README says, on its own data or weights."""

from __future__ import annotations

import random
import runpy
import sys
from itertools import product
from pathlib import Path

import numpy
import pytest

import bestfirst
import chat_models
from bestfirst.testing import check_model

RECIPES = Path(__file__).parents[2] / "recipes"
SCRIPTS = sorted(path for path in RECIPES.glob("*/*.py") if path.parent.name != "tatoeba-de-en")


def definitions(name: str) -> dict:
    """The global names that a recipe's script defines."""
    return runpy.run_path(str(next(path for path in SCRIPTS if path.stem == name)))


def output(name: str, *arguments: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that a recipe prints."""
    path = next(path for path in SCRIPTS if path.stem == name)
    monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
    runpy.run_path(str(path), run_name="__main__")
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.parent.name)
def test_a_recipe_has_under_60_lines_and_its_readme_names_the_command(path):
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(lines) < 60
    assert f"python recipes/{path.parent.name}/{path.name}" in (path.parent / "README.md").read_text(encoding="utf-8")


def test_the_tagger_finds_the_best_tags_with_one_call_per_word(capsys, monkeypatch):
    lines = output("tagger", capsys=capsys, monkeypatch=monkeypatch)
    assert lines[0] == "the/D old/N man/V the/D boats/N   6 calls, exact: True"
    recipe = definitions("tagger")
    tagger, words = recipe["Tagger"](), ["the", "old", "man", "flies"]
    check_model(tagger, words, normalized=False)
    best = max(product(range(1, 6), repeat=4), key=lambda y: sum(tagger.row(*each)[tag] for each, tag in steps_of(words, y)))
    (result,) = bestfirst.decode(tagger, [words], strategy="a-star", heuristic=recipe["BestRest"](tagger))
    assert result.hypotheses[0].tokens == (*best, 0)


def steps_of(words: list[str], tags: tuple[int, ...]) -> list[tuple[tuple[str, int], int]]:
    return [((word, before), tag) for word, before, tag in zip(words, (0, *tags), tags, strict=False)]


def test_the_parser_finds_better_trees_with_wider_beams(capsys, monkeypatch):
    lines = output("parser", capsys=capsys, monkeypatch=monkeypatch)
    scores = [float(line.split(": ")[1].split(",")[0]) for line in lines]
    assert scores == sorted(scores)
    parser = definitions("parser")["Parser"]()
    words = [("a", "D"), ("dog", "N"), ("saw", "V")]
    check_model(parser, words)
    (wide,) = bestfirst.decode(parser, [words], beam=50)
    (unpruned,) = bestfirst.decode(parser, [words], strategy="best-first-unpruned")
    assert wide.hypotheses == unpruned.hypotheses


def test_the_speller_corrects_its_examples(capsys, monkeypatch):
    lines = output("speller", capsys=capsys, monkeypatch=monkeypatch)
    assert [line.split(": ")[1].split()[0] for line in lines] == ["search", "answer", "letter", "the", "spelling"]
    check_model(definitions("speller")["Speller"](), "lettr", normalized=False)


def test_grapheme_to_phoneme_trains_and_decodes_exactly(capsys, monkeypatch):
    (line,) = output("g2p", 3, capsys=capsys, monkeypatch=monkeypatch)
    assert "of 100 words right" in line
    recipe = definitions("g2p")
    model = recipe["G2P"](16)
    model.train_on(2, random.Random(1), batch=4)
    check_model(model, "chavo")
    results = bestfirst.decode(model, ["chavo", "llama", "queso"], beam=3)
    assert all(result.exact for result in results)


def test_the_ensemble_and_the_wrapper_translate(capsys, monkeypatch):
    lines = output("ensemble", capsys=capsys, monkeypatch=monkeypatch)
    assert len(lines) == 2
    assert lines[0].startswith("Good morning,")


@pytest.mark.parametrize("chat", [False, True])
def test_the_language_model_completes_a_prompt(chat, capsys, monkeypatch, tmp_path):
    folder = chat_models.save(tmp_path)
    lines = output("language_model", folder, "the cat", *["--chat"] * chat, capsys=capsys, monkeypatch=monkeypatch)
    assert len(lines) == 3


def test_the_speech_recipe_is_exact_through_onnx_runtime(capsys, monkeypatch):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    lines = output("speech", capsys=capsys, monkeypatch=monkeypatch)
    assert len(lines) == 3
    assert all(line.endswith("exact: True") for line in lines)


def test_the_onnx_speech_model_passes_check_model_and_equals_beam_search(tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    recipe = definitions("speech")
    recipe["export"](tmp_path)
    model = recipe["Speech"](tmp_path)
    sounds = [numpy.random.default_rng(i).normal(size=(9 + i, recipe["MELS"])).astype(numpy.float32) for i in range(3)]
    check_model(model, sounds[0])
    asked = {"beam": 3, "nbest": 3, "max_length": 6, "accept_truncated": True}
    for ours, theirs in zip(
        bestfirst.decode(model, sounds, **asked), bestfirst.decode(model, sounds, strategy="beam", **asked), strict=True
    ):
        assert [each.tokens for each in ours.hypotheses] == [each.tokens for each in theirs.hypotheses]


def test_a_distilled_drafter_drafts_and_changes_neither_output_nor_calls(tmp_path, capsys, monkeypatch):
    text, folder = tmp_path / "lines.de", tmp_path / "small"
    text.write_text("Guten Morgen!\nWie geht es dir?\n" * 10, encoding="utf-8")
    asked = (text, folder, "--layers", 2, "--minutes", 0)
    assert output("distil", *asked, capsys=capsys, monkeypatch=monkeypatch)[-1].startswith(
        "the best next token is the model's for"
    )
    drafts = (None, f"model:{folder}")
    plain, drafted = (bestfirst.decode(bestfirst.load(), ["Guten Morgen!"], draft=each, row_budget=32)[0] for each in drafts)
    assert (drafted.text, drafted.calls) == (plain.text, plain.calls)
    assert drafted.drafted > 0
