"""bestfirst tune: settings share scored rows, gains are tested statistically, and recommended commands can be run."""

from __future__ import annotations

import json
import random
import shlex
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF

import bestfirst
from bench.conftest import ENGLISH, GERMAN, call
from bestfirst_bench.bootstrap import Bootstrap, LineMetric, line_metrics
from bestfirst_bench.race import parts
from bestfirst_bench.row import ParallelText
from bestfirst_bench.shared import SharedScorer, decode_shared
from bestfirst_bench.tune import CostLimit, defaults_of, grid, length_ratio
from cli.process import only_line

LINES = 20
GRID = ["--beam", "1,6", "--length-penalty", "0,1", "--stop", "exact,hf-true", "--length-reward", "0.5", "--repeat", "1"]


@pytest.fixture(scope="module")
def model():
    return bestfirst.load()


@pytest.fixture(scope="module")
def sources():
    return GERMAN.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def references():
    return ENGLISH.read_text(encoding="utf-8").splitlines()


# -- one tree for all settings -------------------------------------------------------------------------------------------


def test_settings_that_share_a_tree_equal_separate_searches(model, sources, monkeypatch):
    """Outputs, scores and calls; the model runs on fewer rows than in separate searches."""
    scorers: list[SharedScorer] = []
    begin = SharedScorer.__init__

    def recorded(self, *args):
        scorers.append(self)
        begin(self, *args)

    monkeypatch.setattr(SharedScorer, "__init__", recorded)
    settings = [each.decoding for each in grid([1, 2, 5], [0.0, 1.0], [0.5], ["hf-false", "hf-true"], 1.0)]
    assert len(settings) == 9
    together = {(i, j): result for i, j, result in decode_shared(model, sources[:12], settings)}
    assert len(together) == 12 * len(settings)
    rows = 0
    for j, decoding in enumerate(settings):
        for i, alone in enumerate(bestfirst.decode(model, sources[:12], decoding)):
            found = together[i, j]
            assert (found.text, found.calls, found.exact) == (alone.text, alone.calls, alone.exact), decoding.signature
            assert found.hypotheses[0].score == pytest.approx(alone.hypotheses[0].score, abs=1e-4)
            rows += alone.calls
    (scorer,) = scorers
    assert scorer.scored < 0.6 * rows
    assert not scorer._roots  # all trees were released
    assert not scorer._open_searches


def test_an_unreadable_line_is_an_error_and_affects_no_other(model):
    settings = [bestfirst.Decoding(beam=k) for k in (1, 2)]
    found = list(decode_shared(model, ["Ja.", "sehr " * 600, "Nein."], settings))
    assert sorted((i, j) for i, j, result in found if result.status == "complete") == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert [(i, result.status) for i, _, result in found if i == 1] == [(1, "error")]


def test_settings_can_share_a_tree_of_any_model():
    toy = bestfirst.FunctionModel(lambda prefix: [-1.0, -0.5, -2.0] if len(prefix) < 4 else [0.0, -9.0, -9.0], eos=0)
    settings = [bestfirst.Decoding(beam=k, max_length=8) for k in (1, 2, 3)]
    for _, j, result in decode_shared(toy, [None], settings):
        assert result.hypotheses[0].tokens == bestfirst.decode(toy, [None], settings[j])[0].hypotheses[0].tokens


# -- statistics ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outputs(model, sources):
    decoded = {k: bestfirst.decode(model, sources[:60], beam=k) for k in (1, 5)}
    return {k: [result.text or "" for result in results] for k, results in decoded.items()}


@pytest.mark.parametrize(("name", "theirs"), [("bleu", BLEU(force=True)), ("chrf", CHRF())])
def test_the_metric_from_sums_over_lines_equals_sacrebleus(name, theirs, outputs, sources, references):
    (metric,), missing = line_metrics([name], "13a")
    found = Bootstrap(metric, sources[:60], references[:60])
    assert missing == []
    assert found.value(outputs[5]) == pytest.approx(theirs.corpus_score(outputs[5], [references[:60]]).score)
    assert metric.signature == str(theirs.get_signature())
    whole, gain = found.interval(outputs[5]), found.interval(outputs[5], outputs[1])
    assert whole.low < whole.value < whole.high
    assert gain.value == pytest.approx(found.value(outputs[5]) - found.value(outputs[1]))
    assert gain.high - gain.low < whole.high - whole.low  # what the lines have in common cancels out
    same = found.interval(outputs[5], outputs[5])
    assert (same.value, same.low, same.high, same.noise) == (0, 0, 0, True)


def bootstrap_of_means(lines: int) -> Bootstrap:
    """A bootstrap of outputs that are numbers, with their mean as metric."""
    metric = LineMetric("bleu", "", lambda _, outputs, __: [[float(o), 1.0] for o in outputs], lambda sums: sums[0] / sums[1])
    return Bootstrap(metric, [""] * lines, [""] * lines, samples=400)


def test_confidence_intervals_have_about_their_nominal_coverage():
    rng, held = random.Random(0), 0
    for _ in range(100):
        numbers = [str(rng.gauss(1, 2)) for _ in range(50)]
        found = bootstrap_of_means(50).interval(numbers)
        held += found.low <= 1 <= found.high
    assert 88 <= held <= 99


def test_the_best_of_many_equal_systems_has_no_gain_on_other_lines():
    """The best of 20 random systems looks good on the lines it was picked on, and not on others."""
    rng = random.Random(1)
    baseline = [str(rng.gauss(0, 1)) for _ in range(60)]
    candidates = [[str(rng.gauss(0, 1)) for _ in range(60)] for _ in range(20)]
    found = bootstrap_of_means(60)
    best = max(candidates, key=found.value)
    shown, elsewhere = found.interval(best, baseline), found.picked([*candidates, baseline], baseline)
    assert elsewhere.value < shown.value
    assert elsewhere.noise


def test_a_clear_gain_is_found_in_one_direction_and_noise_in_none():
    rng = random.Random(2)
    plain = [rng.gauss(0, 1) for _ in range(50)]
    systems = [[str(x) for x in plain], [str(x + 1) for x in plain], [str(x + rng.gauss(0, 1)) for x in plain]]
    clear = bootstrap_of_means(50).clear_gains(systems)
    assert clear[1, 0]
    assert not clear[0, 1]
    assert not clear[0, 2]
    assert not clear[2, 0]
    assert not np.diag(clear).any()


def test_comet_is_called_with_sources(monkeypatch):
    """A stand-in for unbabel-comet, which needs a model of 2 GB, checks that calls follow its documentation."""
    comet = ModuleType("comet")
    comet.__spec__ = SimpleNamespace(name="comet")
    comet.download_model = lambda name: f"/models/{name}"

    def predict(lines, batch_size, gpus, progress_bar):
        return SimpleNamespace(scores=[float(line["mt"] == line["ref"]) * len(line["src"]) / 4 for line in lines])

    comet.load_from_checkpoint = lambda path: SimpleNamespace(predict=predict)
    monkeypatch.setitem(sys.modules, "comet", comet)
    (metric,), missing = line_metrics(["comet"], "13a")
    assert missing == []
    assert Bootstrap(metric, ["abcd"] * 4, ["x"] * 4).value(["x", "y", "x", "y"]) == 50


def test_a_metric_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("bestfirst_bench.bootstrap.find_spec", lambda name: None)
    found, missing = line_metrics(["comet", "chrf"], "13a")
    assert found == []
    assert missing[0] == "COMET is left out: it needs comet; pip install unbabel-comet"


# -- what is compared ----------------------------------------------------------------------------------------------------


def test_every_combination_is_compared_once():
    settings = grid([1, 4], [0.0, 1.0], [0.5], ["exact", "hf-false", "hf-true"], 1.1, max_length=20)
    assert len(settings) == len(set(settings)) == 6  # k 1; k 4 with penalty 0, with 1 and three stops, with a reward
    assert {setting.decoding.max_length for setting in settings} == {20}


@pytest.mark.parametrize(
    ("files", "signature"),
    [
        ({}, "best-first|k:5|score:length-normalized(alpha=1.0)|finished:leave|stop:hf-false"),
        (
            {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True},
            "best-first|k:4|score:length-normalized(alpha=2.0)|finished:leave|stop:hf-true",
        ),
        ({"num_beams": 6, "length_penalty": 0.0}, "best-first|k:6|score:logprob|finished:leave"),
        ({"num_beams": 1}, "best-first|k:5|score:length-normalized(alpha=1.0)|finished:leave|stop:hf-false"),
    ],
)
def test_the_defaults_are_those_of_the_models_files(files, signature):
    assert defaults_of(SimpleNamespace(setting=files.get)).decoding.signature.startswith(signature)


def test_the_length_ratio_is_that_of_the_references(model):
    text = ParallelText.of("t", ["Ja.", "Guten Morgen!"], ["Yes.", "Good morning!"])
    tokens = [(model.source_length(pair.source), len(model.target(pair.reference))) for pair in text.pairs]
    assert length_ratio(model, text) == round(sum(b for _, b in tokens) / sum(a for a, _ in tokens), 2)
    assert length_ratio(model, ParallelText.of("t", ["Ja."])) == 1


def test_parts_double_and_end_with_all_lines():
    assert list(parts(200)) == [10, 20, 40, 80, 200]
    assert list(parts(7)) == [7]
    assert list(parts(20)) == [10, 20]


# -- the command ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    file = tmp_path_factory.mktemp("tune") / "rows.jsonl"
    assert call("tune", GERMAN, ENGLISH, "--limit", LINES, *GRID, "--rows", file) == 0
    return file


def test_tune_reports_the_pareto_front_and_three_commands_and_a_rerun_makes_nothing(tuned, capsys, tmp_path):
    saved = tuned.read_bytes()
    command = ["tune", GERMAN, ENGLISH, "--limit", LINES, *GRID, "--rows", tuned]
    assert call(*command, "--json", "--plot", tmp_path / "front.svg") == 0
    out = capsys.readouterr()
    assert "0 results made" in out.err
    assert tuned.read_bytes() == saved
    assert b"<svg" in (tmp_path / "front.svg").read_bytes()
    found = json.loads(out.out)
    points = {point["flags"]: point for point in found["points"]}
    default = found["points"][0]
    assert default["flags"] == "--beam 5 --length-penalty 1 --stop hf-false"
    assert default["lines"] == LINES
    assert (default["same"], default["gain"]["chrf"]) == (100, {"value": 0, "low": 0, "high": 0})
    assert points["--beam 1"]["calls"] < points["--beam 6"]["calls"] < default["calls"]
    front = [point for point in found["points"] if point["front"]]
    assert front
    for one in front:
        assert not any(p["milliseconds"] and p["milliseconds"] < one["milliseconds"] and
                       p["quality"]["chrf"]["value"] >= one["quality"]["chrf"]["value"] for p in found["points"])  # fmt: skip
    assert [advice["question"].split(" within")[0] for advice in found["advice"]] == [
        "cheapest at no loss",
        "best quality",
        "best",
    ]
    assert found["metrics"][0].startswith("chrF: ")


def test_the_recommended_command_gives_the_outputs_that_were_measured(tuned, capsys, tmp_path):
    assert call("tune", GERMAN, ENGLISH, "--limit", LINES, *GRID, "--rows", tuned, "--json") == 0
    advice = json.loads(capsys.readouterr().out)["advice"]
    saved = [json.loads(line) for line in tuned.read_text(encoding="utf-8").splitlines()]
    program, *typed = shlex.split(advice[1]["command"])
    assert program == "bestfirst"
    assert call(*typed, "-o", tmp_path / "out") == 0
    lines = (tmp_path / "out").read_text(encoding="utf-8").splitlines()
    beam = int(typed[typed.index("--beam") + 1])
    alike = [
        row for row in saved if row["kind"] == "bestfirst bench tuned line" and row["setting"]["decoding"].get("beam", 5) == beam
    ]
    by_signature = {row["signature"]: 0 for row in alike}
    for row in alike:
        by_signature[row["signature"]] += row["output"] == lines[row["line"] - 1]
    assert max(by_signature.values()) == LINES


def test_tables_list_the_settings_that_were_stopped_and_why(tuned, capsys):
    assert call("tune", GERMAN, ENGLISH, "--limit", LINES, *GRID, "--rows", tuned, "--all", "--budget", "0.0001ms") == 0
    out = capsys.readouterr().out
    assert "k 5, α 1, hf-false (defaults)" in out
    assert "Stopped on the way" in out
    assert "more than 5 times the calls of the defaults, after 10 lines" in out
    assert "best within 0.0001 ms a line (none; the cheapest takes" in out
    assert "chrF: nrefs:1" in out


def test_a_longer_text_reuses_the_results_of_a_shorter_one_without_references(tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    command = ["tune", GERMAN, "--beam", "1,2", "--length-penalty", "0", "--length-reward", "", "--repeat", "1", "--rows", file]
    assert call(*command, "--limit", 3) == 0
    out = capsys.readouterr()
    assert "12 results made" in out.err  # three settings: three lines and a time each
    assert "the same output on every line" in out.out
    assert "best quality" not in out.out
    assert "In brackets" not in out.out  # there are none
    assert call(*command, "--limit", 4, "--dtypes", "bf16") == 0
    out = capsys.readouterr()
    assert "21 results made" in out.err  # one line and a time for each in fp32, four lines and a time in bf16
    assert "bf16" in out.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([GERMAN, "missing.en"], "cannot read 'missing.en'"),
        ([GERMAN, ENGLISH, "--budget", "fast"], "--budget is what a line may cost, such as 5ms or 30calls, got 'fast'"),
        ([GERMAN, ENGLISH, "--beam", "0"], "--beam must be at least 1, got 0"),
        ([GERMAN, ENGLISH, "--length-penalty", "x"], "--length-penalty takes numbers separated by commas, got 'x'"),
        ([GERMAN, ENGLISH, "--length-penalty", "0,nan"], "--length-penalty takes numbers separated by commas, got '0,nan'"),
        ([GERMAN, ENGLISH, "--margin", "-1"], "--margin must be at least 0, got -1"),
        ([GERMAN, "--metrics", "bleu"], "--metrics compares with references: give REFERENCE, or leave out 'bleu'"),
        ([GERMAN, ENGLISH, "--plot", "new/front.png"], "cannot write to 'new/front.png': No such file or directory"),
        ([GERMAN, ENGLISH, "--stop", "soon"], "unknown stop 'soon'"),
        ([GERMAN, ENGLISH, "--dtypes", "fp8"], "--dtypes: 'fp8' is not one of fp32"),
        ([GERMAN, ENGLISH, "--metrics", "meteor"], "unknown metric 'meteor'; choose from bleu, chrf, rouge-l, comet"),
        ([GERMAN, ENGLISH, "--plot", "front.txt"], "a plot is written to a file that ends in .png, .svg, .pdf, not 'front.txt'"),
    ],
)
def test_usage_errors_are_reported_in_one_line(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("tune", *arguments) == 2
    assert said in only_line(capsys.readouterr().err)


def test_a_budget_limits_time_or_calls():
    point = SimpleNamespace(cost=3.0, calls=20.0)
    assert CostLimit(5, "ms").cost(point) == 3
    assert CostLimit(5, "calls").cost(point) == 20
