"""Jobs submitted to a running engine: results are those of `decode`, whichever jobs come, leave and share forward passes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import inf

import pytest

import bestfirst
from bestfirst.engine import Job, scorer_for
from bestfirst.engine.host import HostEngine
from bestfirst.scoring import GNMT, LengthNormalized, LengthReward, LogProbability
from bestfirst.settings import Budget, Decoding
from toys import KINDS, random_toy

SCORES = (LogProbability(), LengthNormalized(0.6), GNMT(1.0), LengthReward(0.4))


class Toys(bestfirst.Model):
    """All random toys as one model: an input is (kind, seed), and so is its state."""

    eos = frozenset({0})

    def start(self, source):
        return source

    def score(self, batch):
        return [bestfirst.Scored(random_toy(state[0], 6, state[1])(prefix), state) for state, prefix in batch]

    def source_length(self, source):
        return source[1] % 5

    def max_length(self, source):
        return 9


def counting_scorer():
    """A scorer that counts cached tokens as the tree of keys and values does: one for each hypothesis scored."""
    scorer = scorer_for(Toys(), LogProbability())
    held: dict[object, int] = {}

    def start(roots, start=scorer.start):
        start(roots)
        held.update({root: 0 for root, _ in roots})

    def expand(batch, width, expand=scorer.expand):
        for y in batch:
            root = y
            while root.parent is not None:
                root = root.parent
            held[root] += 1  # fails if the input was released
        return expand(batch, width)

    scorer.start, scorer.expand, scorer.release = start, expand, held.pop
    scorer.cache_tokens = lambda: sum(held.values())
    return scorer


@dataclass
class Request:
    """One input and its settings."""

    source: tuple[str, int]
    settings: dict[str, object]

    @classmethod
    def random(cls, rng: random.Random) -> Request:
        beam = rng.randint(1, 8)
        settings = {
            "strategy": rng.choice(("best-first", "best-first", "best-first", "beam")),
            "beam": beam,
            "score": rng.choice(SCORES),
            "nbest": rng.randint(1, beam),
            "finished": rng.choice(("leave", "leave", "keep")),
        }
        return cls((rng.choice(KINDS), rng.getrandbits(16)), settings)

    def job(self, index: int) -> Job:
        return Job(index, Toys().reader()(self.source), Decoding(**self.settings))

    def expected(self) -> object:
        return comparable(bestfirst.decode(Toys(), [self.source], **self.settings)[0])


def comparable(result: bestfirst.Result) -> object:
    """The part of a result that may depend on the input alone."""
    partial = result.partial and result.partial.tokens
    return [(y.tokens, y.score) for y in result.hypotheses], result.calls, result.exact, result.status, partial


def engine_of(rows: int, free: int = 1, max_cache_tokens: float = inf) -> HostEngine:
    return HostEngine(counting_scorer(), Decoding(row_budget=Budget(rows, free), max_cache_tokens=max_cache_tokens))


def test_results_equal_decode_for_any_order_of_arrival(cases, tally):
    """Jobs of different beams, scores and n-best in one batch; some arrive early, some late, some are cancelled."""
    wrong = searches = 0
    for case in cases(120, full=2400):
        rng = random.Random(f"arrival {case}")
        engine = engine_of(rng.choice((1, 3, 8, 40)), rng.choice((1, 2, 20)), rng.choice((inf, inf, 60)))
        requests = [Request.random(rng) for _ in range(rng.randint(1, 12))]
        jobs = [request.job(i) for i, request in enumerate(requests)]
        gone: set[int] = set()
        results: dict[int, object] = {}
        coming = list(jobs)
        while coming or engine:
            for job in [coming.pop() for _ in range(rng.randint(0, 3)) if coming]:
                engine.submit(job)
            if rng.random() < 0.03 and (here := list(engine._by_job)):
                job = rng.choice(here)
                engine.cancel(job)
                gone.add(job.index)
            for job, result in engine.step():
                results[job.index] = comparable(result)
        assert gone | set(results) == set(range(len(requests)))
        assert not gone & set(results)
        assert engine.scorer.cache_tokens() == 0
        searches += len(results)
        wrong += sum(results[i] != requests[i].expected() for i in results)
    tally("searches fed to a running engine", searches, wrong)
    assert wrong == 0


def test_a_cancelled_job_releases_its_cache():
    engine = engine_of(8)
    settings = {"strategy": "best-first", "beam": 5, "finished": "leave", "score": SCORES[0], "nbest": 5}
    jobs = [Request(("flat", seed), settings).job(seed) for seed in range(3)]
    for job in jobs[:2]:
        engine.submit(job)
    list(engine.step())
    engine.submit(jobs[2])
    before = engine.scorer.cache_tokens()
    engine.cancel(jobs[0])  # in flight
    engine.cancel(jobs[2])  # waiting
    assert engine.scorer.cache_tokens() < before
    assert [job.index for job, _ in run_to_the_end(engine)] == [1]
    with pytest.raises(ValueError, match="not in"):
        engine.cancel(jobs[1])


def run_to_the_end(engine: HostEngine) -> list[tuple[Job, bestfirst.Result]]:
    return [done for _ in iter(lambda: bool(engine), False) for done in engine.step()]


def test_finished_jobs_are_returned_before_the_others_are_scored():
    """A result does not wait for a forward pass that it does not need."""
    engine = engine_of(8)
    for seed, nbest in ((1, 1), (2, 8)):
        settings = {"strategy": "best-first", "beam": 8, "finished": "leave", "score": SCORES[0], "nbest": nbest}
        engine.submit(Request(("peaked", seed), settings).job(seed))
    while engine:
        steps = engine.stats.steps
        for _ in engine.step():
            assert engine.stats.steps == steps
