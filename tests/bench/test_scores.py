"""bench scores: the paper's tables on the embedded model and shipped sentences; a small language model is made on the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers

import bestfirst
from bestfirst.bench.paper import HYPERPARAMETERS, LENGTH, MUTUAL_INFORMATION
from bestfirst.bench.scores import Bench
from bestfirst.bench.scores_table import scores_table
from bestfirst.cli.app import run

DATA = Path(__file__).parents[1] / "data"
GERMAN, ENGLISH = DATA / "tatoeba-200.de", DATA / "tatoeba-200.en"


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
def measured(language_model) -> list:
    texts = [file.read_text(encoding="utf-8").splitlines()[:6] for file in (GERMAN, ENGLISH)]
    return list(Bench(bestfirst.load(), *texts).tables([5], bestfirst.load(language_model)))


def test_every_line_of_the_papers_tables_and_exact_search_beside(measured):
    found = [(name, line.score, line.method) for name, line in measured]
    assert found == [
        ("length normalization", "no reward", "beam"),
        *(("length normalization", "beta 0.8, b = |x|", method) for method in ("beam", "heuristic", "exact")),
        *(("length normalization", "beta 0.5, b = n_max", method) for method in ("beam", "stopping", "exact")),
        ("mutual information", "epsilon 0", "beam"),
        *(("mutual information", "epsilon 0.02", method) for method in ("beam", "heuristic", "exact")),
        *(("mutual information", "epsilon 0.0003", method) for method in ("beam", "stopping", "exact")),
    ]
    cited = [line.published for _, line in measured if line.published is not None]
    assert cited == [published for table in (LENGTH, MUTUAL_INFORMATION) for (k, _), published in table.items() if k == 5]


def test_exact_search_returns_beam_searchs_answers_with_fewer_calls(measured):
    exact = [line for _, line in measured if line.method == "exact"]
    assert len(exact) == 4
    for line in exact:
        assert (line.lower, line.higher, line.different) == (0, 0, 0)
        assert line.increase >= 0


def test_numbers_are_those_of_decode(measured):
    sources = GERMAN.read_text(encoding="utf-8").splitlines()[:6]
    score = bestfirst.scoring.LengthReward(0.5)
    n_max = {"max_length": lambda n: max(2 * n, 1), "finished": "keep"}
    beam, ours = (bestfirst.decode(bestfirst.load(), sources, score=score, **n_max, **how) for how in ({"strategy": "beam"}, {}))
    line = next(line for _, line in measured if (line.score, line.method) == ("beta 0.5, b = n_max", "exact"))
    old, new = (sum(result.calls for result in results) for results in (beam, ours))
    assert line.calls == pytest.approx(new / 6)
    assert line.increase == pytest.approx(100 * (old - new) / new)
    assert line.unfinished == sum(not result.hypotheses for result in ours)


def test_language_model_is_asked_for_mutual_information_only(measured):
    for name, line in measured:
        assert (line.lm_calls > 0) == (name == "mutual information")


def test_table_has_the_papers_numbers_beside(measured):
    table = scores_table("t", [line for name, line in measured if name == "mutual information"])
    columns = {column.header: list(column.cells) for column in table.columns[-4:]}
    assert columns["paper: calls"] == ["115", "", "129", "", "", "114", ""]
    assert columns["error"] == ["-", "", "42.7 %", "", "", "29.2 %", ""]


def test_command_without_language_model_prints_the_length_table(capsys):
    assert run(["bench", "scores", str(GERMAN), str(ENGLISH), "--limit", "2", "--beam", "5"]) == 0
    printed = capsys.readouterr().out
    assert "length normalization: tatoeba-de-en, 2 lines of tatoeba-200.de" in printed
    assert "mutual information:" not in printed
    assert "tok:none" in printed.splitlines()[-1]


def test_command_prints_json_a_search(capsys, language_model):
    assert (
        run(["bench", "scores", str(GERMAN), str(ENGLISH), "--limit", "1", "--beam", "5", "--lm", str(language_model), "--json"])
        == 0
    )
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 14
    assert lines[-1]["table"] == "mutual information"
    assert lines[0]["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:none")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([GERMAN, ENGLISH, "--model", "../no/such/folder"], "no model folder at '../no/such/folder'"),
        ([GERMAN, ENGLISH, "--lm", "../no/such/folder"], "no model folder at '../no/such/folder'"),
        (["no-such-file", ENGLISH], "cannot read 'no-such-file': No such file or directory"),
        ([GERMAN, Path(__file__)], "each needs its translation"),
        ([GERMAN, ENGLISH, "--beam", "5,7"], "the paper has hyperparameters for --beam 5 and 10, not for 7"),
    ],
)
def test_what_is_missing_is_said_in_one_line(arguments, said, capsys):
    assert run(["bench", "scores", *map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_hyperparameters_are_there_for_every_cited_line():
    assert set(HYPERPARAMETERS) == {k for k, _ in [*LENGTH, *MUTUAL_INFORMATION]}
