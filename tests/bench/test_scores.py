"""The paper's tables of length normalization and mutual information, on the embedded model and a small language model."""

from __future__ import annotations

import json

import pytest

import bestfirst
from bench.conftest import ENGLISH, GERMAN, call
from cli.process import only_line


@pytest.fixture(scope="module")
def measured(language_model, tmp_path_factory) -> list[dict]:
    """Every line of both tables, at k = 5, as the command prints them."""
    import contextlib
    import io

    rows = tmp_path_factory.mktemp("scores") / "rows.jsonl"
    command = ["bench", "scores", GERMAN, ENGLISH, "--limit", 6, "--beam", 5, "--lm", language_model, "--rows", rows, "--json"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert call(*command) == 0
    lines = [json.loads(line) for line in printed.getvalue().splitlines()]
    return [line for line in lines if line.get("beam") == 5]


def test_the_tables_have_every_line_of_the_papers_and_exact_search(measured):
    assert [(line["table"], line["score"], line["search"]) for line in measured] == [
        ("length", "no reward", "beam"),
        *(("length", "beta 0.8, b = |x|", search) for search in ("beam", "heuristic", "best-first")),
        *(("length", "beta 0.5, b = n_max", search) for search in ("beam", "stopping", "best-first")),
        ("mutual-information", "epsilon 0", "beam"),
        *(("mutual-information", "epsilon 0.02", search) for search in ("beam", "heuristic", "best-first")),
        *(("mutual-information", "epsilon 0.0003", search) for search in ("beam", "stopping", "best-first")),
    ]
    assert [line["published"]["calls"] for line in measured if line["published"]] == [115, 73, 115, 129, 114]


def test_exact_search_returns_beam_searchs_answers_with_no_more_calls(measured):
    exact = [line for line in measured if line["search"] == "best-first"]
    assert len(exact) == 4
    for line in exact:
        against = line["against"]
        assert (against["lower"], against["higher"], against["different"]) == (0, 0, 0)
        assert against["increase"] >= 0


def test_beam_search_and_exact_search_have_a_certificate_that_exact_search_attains(measured):
    """At epsilon 0 nothing is bounded, so every member of a beam has to be scored."""
    assert all((line["over_least"] is not None) == (line["search"] in ("beam", "best-first")) for line in measured)
    assert all(line["over_least"] == 1 for line in measured if line["search"] == "best-first" or line["score"] == "epsilon 0")


def test_numbers_equal_those_of_decode(measured):
    sources = GERMAN.read_text(encoding="utf-8").splitlines()[:6]
    score = bestfirst.scoring.LengthReward(0.5)
    n_max = {"max_length": lambda n: max(2 * n, 1), "finished": "keep"}
    beam, ours = (bestfirst.decode(bestfirst.load(), sources, score=score, **n_max, **how) for how in ({"strategy": "beam"}, {}))
    line = next(line for line in measured if (line["score"], line["search"]) == ("beta 0.5, b = n_max", "best-first"))
    old, new = (sum(result.calls for result in results) for results in (beam, ours))
    assert line["calls"] == pytest.approx(new / 6)
    assert line["against"]["increase"] == pytest.approx(100 * (old - new) / new)
    assert line["unfinished"] == sum(not result.hypotheses for result in ours)


def test_the_language_model_is_called_for_mutual_information_only(measured):
    for line in measured:
        assert (line["lm_calls"] > 0) == (line["table"] == "mutual-information")


def test_the_papers_search_error_is_relative_to_epsilon_0(measured):
    clipped = [line for line in measured if line["table"] == "mutual-information" and line["score"] != "epsilon 0"]
    assert len(clipped) == 6
    assert all(line["unlike_zero"] is not None for line in clipped)


def test_command_without_language_model_prints_the_length_table(capsys, tmp_path):
    rows = tmp_path / "rows.jsonl"
    assert call("bench", "scores", GERMAN, ENGLISH, "--limit", 2, "--beam", 5, "--rows", rows) == 0
    printed = capsys.readouterr().out
    assert "Length normalization: tatoeba-de-en@" in printed
    assert "Mutual information" not in printed
    assert "tok:none" in printed


def test_beam_sizes_without_the_papers_hyperparameters_are_rejected(capsys):
    assert call("bench", "scores", GERMAN, ENGLISH, "--beam", "5,7") == 2
    assert "has parameters for k = 5, 10, not for 7" in only_line(capsys.readouterr().err)
