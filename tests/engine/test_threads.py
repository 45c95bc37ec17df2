"""Threads share pieces of work; results are bit-identical for any number of threads."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

import bestfirst
from bestfirst.corpus.formats import Target
from bestfirst.corpus.records import Record, Shard
from bestfirst.corpus.worker import Worker, fixed_budget
from bestfirst.engine import host, threads, two_engines
from bestfirst.engine.choice import engine_for, engine_for_many
from bestfirst.engine.host import HostEngine
from bestfirst.engine.model_record import record_of
from bestfirst.models import Query
from bestfirst.models.folder import embedded_folder
from bestfirst.models.transformers import load_transformers
from bestfirst.settings import Budget, Decoding

LINES = ["Guten Morgen!", "Wie melkt man eine Kuh?", "Ich habe keine Zeit, aber du hast ein Auto."] * 8


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setattr(threads, "_configured", None)
    monkeypatch.setattr(threads, "_pool", None)


def test_parallel_for_runs_every_piece_once():
    for n in (1, 2, 5):
        threads.use_threads(n)
        for pieces in (0, 1, 3, 40):
            done: list[int] = []
            lock = threading.Lock()

            def work(piece, done=done, lock=lock):
                with lock:
                    done.append(piece)

            threads.parallel_for(work, pieces)
            assert sorted(done) == list(range(pieces))


def test_an_exception_in_a_thread_is_raised():
    threads.use_threads(3)

    def work(piece):
        if piece == 7:
            raise KeyError(piece)

    with pytest.raises(KeyError):
        threads.parallel_for(work, 20)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_threads_of_its_own():
    """The pool's threads exist in the parent only."""
    threads.use_threads(2)
    threads.parallel_for(lambda piece: None, 2)
    both = threading.Barrier(2, timeout=10)
    child = os.fork()
    if not child:
        try:
            threads.parallel_for(lambda piece: both.wait(), 2)  # one thread alone would wait for ever
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_split_range_covers_the_range_in_pieces_of_a_minimum_size():
    threads.use_threads(2)
    assert threads.split_range(100, 6) == [(0, 25), (25, 50), (50, 75), (75, 100)]
    assert threads.split_range(13, 6) == [(0, 6), (6, 13)]
    assert threads.split_range(5, 6) == [(0, 5)]
    threads.use_threads(1)
    assert threads.split_range(100, 6) == [(0, 100)]


def test_the_environment_sets_the_number_of_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads.threads() == 3
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        threads.use_threads(0)


@pytest.mark.parametrize("settings", [{"beam": 5, "nbest": 2}, {"beam": 4, "prefix": "I think that"}])
def test_results_are_bit_identical_for_any_number_of_threads(settings):
    found = []
    for n in (1, 2, 3):
        threads.use_threads(n)
        found.append(bestfirst.decode(bestfirst.load(), LINES, row_budget=64, **settings))
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert [(y.tokens, y.score) for y in one.hypotheses] == [(y.tokens, y.score) for y in other.hypotheses]


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_encoder_outputs_are_bit_identical_for_any_number_of_threads(dtype):
    """Threads share the inputs, and no input reads another's tokens."""
    model = bestfirst.load(dtype=dtype)
    inputs = [list(model.read(line).payload.source) for line in LINES]
    found = []
    for n in (1, 2, 3):
        threads.use_threads(n)
        found.append(model.decoder.encoder(inputs).tobytes())
    assert found == found[:1] * 3


def test_two_engines_give_the_results_of_one(monkeypatch):
    """Each search is in the memory of its own engine; inputs come from a list, or from an iterator, window by window."""
    monkeypatch.setattr(two_engines, "MIN_INPUTS", 4)
    monkeypatch.setattr(host, "WINDOW", 1)
    lines = [line[: 8 + 7 * i % 40] for i, line in enumerate(LINES * 5)]
    model = bestfirst.load()
    monkeypatch.setattr(record_of(model), "budget", Budget(96, free=96, alone=4))  # a typical measurement, on any machine
    found, costs = [], []
    for n in (1, 2, 3):
        threads.use_threads(n)
        for inputs in (lines, iter(lines)):
            costs.append(bestfirst.Stats())
            found.append(bestfirst.decode(model, inputs, nbest=2, stats=costs[-1]))
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert [(y.tokens, y.score, y.text) for y in one.hypotheses] == [
                (y.tokens, y.score, y.text) for y in other.hypotheses
            ]
            assert one.calls == other.calls
    assert {cost.calls for cost in costs} == {costs[0].calls}
    assert all(cost.in_flight > costs[0].in_flight for cost in costs[2:])  # both engines were at work


def test_one_engine_runs_jobs_with_a_row_budget_a_cache_bound_or_drafts():
    threads.use_threads(2)
    model = bestfirst.load()
    assert isinstance(engine_for_many(model, Decoding()), two_engines.TwoEngines)
    assert isinstance(engine_for(model, Decoding()), HostEngine)
    for given in ({"row_budget": 64}, {"max_cache_tokens": 5000}, {"draft": "source"}):
        assert isinstance(engine_for_many(model, Decoding(**given)), HostEngine), given
    threads.use_threads(1)
    assert isinstance(engine_for_many(model, Decoding()), HostEngine)


def test_a_failure_in_one_engine_is_raised(monkeypatch):
    monkeypatch.setattr(two_engines, "MIN_INPUTS", 4)
    threads.use_threads(2)
    model = bestfirst.load()
    before = bestfirst.decode(model, LINES[:1])
    reported = []

    def broken(*_):
        raise RuntimeError("the second breaks")

    monkeypatch.setattr(model.second.decoder, "step", broken)
    with pytest.raises(RuntimeError, match="the second breaks"):
        bestfirst.decode(model, LINES, progress=lambda index, result: reported.append(index))
    assert len(reported) < len(LINES)
    (after,) = bestfirst.decode(model, LINES[:1])  # the number of rows that pay may have changed
    assert (after.hypotheses, after.calls) == (before[0].hypotheses, before[0].calls)
    assert threads.threads() == 2


@pytest.mark.parametrize("form", ["text", "json"])
def test_shards_decoded_two_at_a_time_give_the_same_bytes(form):
    """Including the rows and steps in JSON lines."""
    shards = [Shard(i, [Record(5 * i + j + 1, line) for j, line in enumerate(LINES[i : i + 5])]) for i in range(5)]
    model, found, lines = bestfirst.load(), [], []
    for n in (1, 2, 3):
        threads.use_threads(n)
        worker = Worker(model, Decoding(row_budget=fixed_budget(None)), Target(form))
        done = worker.work(lines.append, iter(shards))
        found.append(sorted((result.index, result.data, result.tally.rows) for result in done))
    assert found == found[:1] * 3
    assert len(lines) == 3 * 25


def test_work_on_two_shards_ends_soon_after_close():
    threads.use_threads(2)
    shards = (Shard(i, [Record(20 * i + j + 1, line) for j, line in enumerate(LINES[:20])]) for i in count())
    reported = []
    work = Worker(bestfirst.load(), Decoding(row_budget=fixed_budget(None)), Target()).work(reported.append, shards)
    next(work)
    work.close()
    assert threads.threads() == 2
    assert len(reported) < 80


LOADS = [bestfirst.load, lambda: bestfirst.load(dtype="int8"), lambda: load_transformers(embedded_folder())]


@pytest.mark.parametrize("load", LOADS, ids=["float32", "int8", "torch"])
@pytest.mark.parametrize("settings", [{}, {"length_penalty": 1}, {"length_penalty": 1, "stop": "hf-true"}])
def test_many_threads_may_decode_with_one_model_at_once(load, settings):
    """As in a user's own server. A step has memory for one pass: other threads wait for it."""
    lines, model, found = LINES[:12], load(), []
    expected = [result.hypotheses for result in bestfirst.decode(load(), lines, beam=4, **settings)]

    def decode_lines():
        found.append([result.hypotheses for result in bestfirst.decode(model, lines, beam=4, **settings)])

    callers = [threading.Thread(target=decode_lines) for _ in range(4)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert found == [expected] * 4


def test_many_threads_may_decode_with_ensembles_and_their_models_at_once():
    """Each engine scores with the models through trees of its own, and a model's step has memory for one pass."""
    first, second = bestfirst.load(), bestfirst.load(dtype="int8")
    asked = [bestfirst.Ensemble([first, second]), first, bestfirst.Ensemble([second, first]), second]
    expected = [[result.hypotheses for result in bestfirst.decode(model, LINES[:12], beam=4)] for model in asked]
    with ThreadPoolExecutor(4) as pool:
        found = [
            *pool.map(lambda model: [result.hypotheses for result in bestfirst.decode(model, LINES[:12], beam=4)], asked * 3)
        ]
    assert found == expected * 3


class OnThreads(bestfirst.Model):
    """Scores with its models at the same time, each on a thread of its own."""

    def __init__(self, models, pool):
        self.models, self.pool, self.eos = models, pool, models[0].eos

    def start(self, source):
        return [model.start(source) for model in self.models]

    def score(self, batch):
        asked = [[Query(query.state[i], query.prefix) for query in batch] for i in range(len(self.models))]
        waiting = [self.pool.submit(model.score, each) for model, each in zip(self.models, asked, strict=True)]
        first, second = [each.result(timeout=20) for each in waiting]
        return [bestfirst.Scored((a.logprobs + b.logprobs) / 2, [a.state, b.state]) for a, b in zip(first, second, strict=True)]

    def max_length(self, source):
        return 12


def test_a_users_model_may_score_its_models_on_threads_of_its_own():
    models = [bestfirst.load(), bestfirst.load(dtype="int8")]
    with ThreadPoolExecutor(2) as pool:
        model = OnThreads(models, pool)
        found = bestfirst.decode(model, LINES[:3], beam=2)
        assert [result.status for result in found] == ["complete"] * 3
        with ThreadPoolExecutor(2) as callers:  # two calls at once: one waits for the other
            again = [*callers.map(lambda _: bestfirst.decode(model, LINES[:3], beam=2), range(4))]
    assert [[result.hypotheses for result in each] for each in again] == [[result.hypotheses for result in found]] * 4
