"""Searches compiled with the forward pass: the same answers, calls, rows and steps as searches in Python."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import bestfirst
from bestfirst.engine import Job, engine_for, scorer_for, threads
from bestfirst.engine.compiled_engine import CompiledEngine, CompiledSearch
from bestfirst.engine.engine import Engine
from bestfirst.engine.host import HostEngine
from bestfirst.engine.model_record import SpeculationRates, record_of
from bestfirst.search import Trace
from bestfirst.settings import Budget, Decoding
from engine.builders import ARCHITECTURES, EOS

SCORES = [bestfirst.LogProbability(), *map(bestfirst.LengthNormalized, (-0.5, 0.3, 1.0, 2.0)), bestfirst.GNMT(0.8)]
LINES = Path(__file__).parents[1].joinpath("data", "tatoeba-200.de").read_text(encoding="utf-8").splitlines()


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setattr(threads, "_configured", 1)


@pytest.fixture(scope="module", params=["float32", "int8"])
def embedded(request):
    return bestfirst.load(dtype=request.param)


def job(model: Any, index: int, source: Any, decoding: Decoding) -> Job:
    return Job(index, model.reader(None)(source), decoding)


def run(engine: Engine, jobs: list[Job]) -> tuple[list[bestfirst.Result], tuple[int, ...]]:
    found = {}
    engine.submit(*jobs)
    while engine:
        found.update({each.index: result for each, result in engine.step()})
    stats = engine.stats
    cost = stats.steps, stats.rows, stats.calls, stats.in_flight, stats.cache_tokens
    return [found[each.index] for each in jobs], cost


def assert_equal_to_python(model: Any, sources: list[Any], each: list[Decoding], budget: Budget) -> None:
    shared = Decoding(row_budget=budget)
    scorers = [scorer_for(model, shared.objective) for _ in range(2)]
    for scorer in scorers:
        scorer.ahead = SpeculationRates()
    engines = HostEngine(scorers[0], shared), CompiledEngine(scorers[1], shared)
    expected, found = (
        run(engine, [job(model, i, source, decoding) for i, (source, decoding) in enumerate(zip(sources, each, strict=True))])
        for engine in engines
    )
    assert found == expected
    assert engines[1]._compiles
    assert vars(scorers[1].ahead._rates) == vars(scorers[0].ahead._rates)
    assert scorers[1].cache_tokens() == engines[1]._memory.spare


def random_trie(rng: random.Random, vocabulary: int) -> bestfirst.Trie:
    """A trie of items with common prefixes; some are prefixes of others, and some contain EOS tokens."""
    tokens = rng.sample(range(vocabulary), rng.randint(1, min(8, vocabulary)))
    return bestfirst.Trie([[rng.choice(tokens) for _ in range(rng.randint(0, 6))] for _ in range(rng.choice([1, 10, 200]))])


def random_settings(rng: random.Random, longest: int, ends: list[int], vocabulary: int) -> Decoding:
    beam = rng.choice([1, 2, 3, 5, 8, 20])
    shared = {
        "beam": beam, "nbest": rng.randint(1, beam), "max_length": rng.randint(1, longest),
        "accept_truncated": rng.random() < 0.3, "eos": rng.choice([None, ends]),
        "allowed": random_trie(rng, vocabulary) if rng.random() < 0.4 else None,
    }  # fmt: skip
    if rng.random() < 0.5:
        return Decoding(**shared, finished=rng.choice(["leave", "keep"]))
    stop, score = rng.choice(["hf-false", "hf-true", "patience", "ctranslate2"]), rng.choice(SCORES)
    if stop == "hf-false":
        return Decoding(**shared, stop=stop, score=bestfirst.LengthNormalized(1.0) if score.monotonic else score)
    return Decoding(
        **shared, stop=stop, score=score, stop_options={} if stop == "hf-true" else {"factor": rng.choice([0.5, 1, 2])}
    )


def random_budget(rng: random.Random) -> Budget:
    rows = rng.choice([1, 2, 7, 16, 96])
    return Budget(rows, free=rng.randint(1, rows), alone=rng.choice([None, 2, 4]))


@pytest.mark.parametrize("seed", range(6))
def test_the_embedded_model_equals_python(embedded, seed, tally):
    rng = random.Random(seed)
    sources = rng.sample(LINES, rng.choice([1, 2, 9]))
    each = [random_settings(rng, 30, [0, 2], 6001) for _ in sources]
    assert_equal_to_python(embedded, sources, each, random_budget(rng))
    tally("compiled searches = searches in Python", len(sources), 0)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", ["marian", "bart", "mbart", "pegasus", "m2m100"])
def test_small_models_of_each_architecture_equal_python(name, tied, tmp_path, tally, cases):
    """With `tied`, many tokens are equally likely."""
    model = ARCHITECTURES[name].build(seed=4)
    if tied:
        weight = model.get_output_embeddings().weight.data
        weight[:] = weight[:3].repeat(len(weight) // 3 + 1, 1)[: len(weight)]
    model.save_pretrained(tmp_path)
    compiled = bestfirst.load(tmp_path)
    rng = random.Random(name)
    for _ in cases(8, full=400):
        sources = [[*(rng.randint(4, 20) for _ in range(rng.randint(1, 9))), EOS] for _ in range(rng.choice([1, 4]))]
        each = [random_settings(rng, 9, [EOS, 7], 20) for _ in sources]
        assert_equal_to_python(compiled, sources, each, random_budget(rng))
        tally("compiled searches = searches in Python", len(sources), 0)


def test_the_compiled_engine_is_chosen_for_one_thread_or_a_single_input(monkeypatch):
    model = bestfirst.load()
    for taken in (Decoding(), Decoding(length_penalty=1, stop="ctranslate2"), Decoding(draft="source")):
        assert isinstance(engine_for(model, taken), CompiledEngine)
    for other in (Decoding(max_cache_tokens=500), Decoding(score=bestfirst.Coverage(0.3))):
        assert not isinstance(engine_for(model, other), CompiledEngine)
    monkeypatch.setattr(threads, "_configured", 2)
    assert not isinstance(engine_for(model, Decoding()), CompiledEngine)
    assert isinstance(engine_for(model, Decoding(), alone=True), CompiledEngine)


@pytest.mark.parametrize(
    "settings", [{"length_penalty": 1}, {"strategy": "beam"}, {"stop": "patience", "strategy": "beam"},
                 {"min_length": 3}, {"stop_strings": ["."]}, {"prefix": "I "},
                 {"max_calls": 9}, {"allowed": bestfirst.Trie([[5, 6], [5, 7]])}, {"beam": 600}],
)  # fmt: skip
def test_settings_that_are_not_compiled_are_searched_in_python(settings, embedded, monkeypatch):
    """A prefix is compiled, and gives the same."""
    found = bestfirst.decode(embedded, LINES[:3], **settings)
    monkeypatch.setattr(CompiledEngine, "takes", staticmethod(lambda *_: False))
    assert bestfirst.decode(embedded, LINES[:3], **settings) == found


@pytest.mark.parametrize("settings", [{}, {"early_stopping": True}, {"early_stopping": "never", "length_penalty": 0.0}])
def test_generate_runs_compiled_searches(settings, monkeypatch):
    model, begun = ARCHITECTURES["marian"].build(seed=4), []
    ids = torch.tensor([[5, 6, 7, EOS], [9, 8, EOS, 1], [4, EOS, 1, 1]])
    options = {"attention_mask": ids != 1, "num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 12, **settings}

    def found() -> tuple[Any, ...]:
        stats = bestfirst.Stats()
        output = model.generate(ids, **options, custom_generate=bestfirst.generate, stats=stats)
        return output.tolist(), stats.results, stats.calls, stats.rows, stats.steps

    found()  # the first call measures the row budget
    begin = CompiledSearch.__init__
    monkeypatch.setattr(CompiledSearch, "__init__", lambda self, *given: begun.append(self) or begin(self, *given))
    compiled = found()
    assert len(begun) == 3
    monkeypatch.setattr(CompiledEngine, "takes", staticmethod(lambda *_: False))
    assert found() == compiled


def test_tracing_some_jobs_changes_no_result(embedded):
    """Then waiting jobs run in Python too; compiled searches in flight run to their end."""
    plain = bestfirst.decode(embedded, LINES[:12], beam=3, row_budget=4)
    traced = bestfirst.decode(embedded, LINES[:12], beam=3, row_budget=4, trace=lambda i: Trace() if i == 5 else None)
    assert [result.hypotheses for result in traced] == [result.hypotheses for result in plain]
    assert [event["event"] for event in traced[5].trace.events].count("begin") == 1
    decoding = Decoding(beam=3, row_budget=2)
    engine = engine_for(embedded, decoding)
    engine.submit(*(job(embedded, i, line, decoding) for i, line in enumerate(LINES[:4])))
    found = dict(engine.step())
    engine.submit(Job(9, embedded.reader(None)(LINES[9]), decoding, trace=Trace()))
    while engine:
        found.update(engine.step())
    assert {each.index: result.hypotheses for each, result in found.items()} == {i: plain[i].hypotheses for i in (0, 1, 2, 3, 9)}


def test_cancelled_and_paused_jobs_do_not_affect_the_others(embedded):
    decoding = Decoding(beam=4, row_budget=12)
    engine = engine_for(embedded, decoding)
    assert isinstance(engine, CompiledEngine)
    jobs = [job(embedded, i, line, decoding) for i, line in enumerate(LINES[:6])]
    engine.submit(*jobs)
    jobs[1].paused = True
    found = dict(engine.step())
    assert isinstance(engine._by_job[jobs[1]].search, CompiledSearch)
    engine.cancel(jobs[0])
    engine.cancel(jobs[5])
    for _ in range(9):
        found.update(engine.step())
    assert jobs[1] not in found
    jobs[1].paused = False
    while engine:
        found.update(engine.step())
    alone = bestfirst.decode(embedded, LINES[:6], beam=4)
    assert {each.index: result.hypotheses for each, result in found.items()} == {i: alone[i].hypotheses for i in (1, 2, 3, 4)}
    assert engine.scorer.cache_tokens() == engine._memory.spare


def test_certified_answers_are_a_prefix_of_the_result(embedded):
    decoding = Decoding(beam=8, nbest=8, row_budget=1)
    engine, only = engine_for(embedded, decoding), job(embedded, 0, LINES[0], decoding)
    engine.submit(only)
    seen: list[list[Any]] = []
    while not (over := dict(engine.step())):
        seen.append(engine.certified(only))
    assert 0 < len(seen[-1]) < 8
    assert all(some == over[only].hypotheses[: len(some)] for some in seen)


def test_non_finite_weights_are_reported(tmp_path):
    model = ARCHITECTURES["bart"].build(seed=4)
    model.get_output_embeddings().weight.data[:, 0] = float("nan")
    model.save_pretrained(tmp_path)
    broken = bestfirst.load(tmp_path)
    assert isinstance(engine_for(broken, Decoding()), CompiledEngine)
    with pytest.raises(ValueError, match=r"the scores after \[\] are not finite: check the model's weights and dtype"):
        bestfirst.decode(broken, [[5, 6, EOS]])


def test_compiled_searches_update_the_rates_of_rows_scored_ahead(embedded):
    rates = record_of(embedded).ahead._rates._rates
    rates.clear()
    bestfirst.decode(embedded, LINES[:1], beam=5)
    assert rates


def test_no_inputs_give_no_results():
    model = bestfirst.load()
    assert bestfirst.decode(model, []) == []
    assert [*engine_for(model, Decoding()).step()] == []


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("stop", [None, "hf-true"])
def test_a_large_nbest_takes_no_memory_for_answers_there_cannot_be(embedded, length_penalty, stop):
    decoding = Decoding(beam=3, max_length=9, length_penalty=length_penalty, stop=stop)
    texts, counts = ["Guten Morgen!", "Ja."], (100, 10**15 - 1)
    all_answers, larger = (bestfirst.decode(embedded, texts, decoding.using(nbest=n)) for n in counts)
    assert [each.hypotheses for each in larger] == [each.hypotheses for each in all_answers]
    assert all(0 < len(each.hypotheses) < 100 for each in larger)
