"""Answers certified before the end of a search are the first answers of its result."""

from __future__ import annotations

import random
from collections.abc import Iterator

from bestfirst.scoring import GNMT, LengthNormalized, LengthReward, LogProbability
from bestfirst.search import AnyOrderSearch, Context, Strategy, beam, best_first_beam
from reference import EOS
from toys import random_cases, successors

SCORES = (LogProbability(), LengthNormalized(1.0), LengthReward(0.3), GNMT(0.6))


def test_certified_answers_only_grow_and_begin_the_result(cases, tally):
    """In strict order and scored ahead, under both rules; calling `certified` changes neither the result nor its calls."""
    wrong = early = searches = 0
    for case in random_cases(cases(320, full=6400), title="certified"):
        rng = random.Random(case.seed)
        score = SCORES[case.seed % len(SCORES)]
        settings = {"score": score, "eos": {EOS}, "context": Context(n_max=case.n_max, source_length=3), "n": case.n}
        plain, asked = (AnyOrderSearch(best_first_beam(case.k, case.finished), **settings) for _ in range(2))
        while (y := plain.needed()) is not None:
            plain.commit(y, successors(case.toy, y))
        expected = plain.result()
        known: list[object] = []
        while batch := asked.frontier(rng.randint(1, 4)):
            for y in batch[: rng.randint(1, len(batch))]:
                asked.commit(y, successors(case.toy, y))
            now = asked.certified()
            wrong += now[: len(known)] != known or now != expected.hypotheses[: len(now)]
            known = now
            early += bool(known) and asked.needed() is not None
        result = asked.result()
        searches += 1
        wrong += asked.certified() != result.hypotheses or (result.hypotheses, result.calls) != (
            expected.hypotheses,
            expected.calls,
        )
    tally("searches with certified answers", searches, wrong)
    assert wrong == 0
    assert early > searches / 10


def run(strategy: Strategy, max_calls: int | None = None) -> Iterator[AnyOrderSearch]:
    """Yields the search after each step."""
    settings = {"score": LogProbability(), "eos": {EOS}, "context": Context(n_max=6), "n": 3, "max_calls": max_calls}
    search = AnyOrderSearch(strategy, **settings)
    while (y := search.needed()) is not None:
        search.commit(y, successors(lambda prefix: [-1.0, -0.5, -2.0], y))
        yield search


def test_no_answer_is_certified_level_by_level():
    assert all(search.certified() == [] for search in run(beam(3)))


def test_no_answer_is_certified_out_of_budget():
    *_, last = run(best_first_beam(3), max_calls=3)
    assert (last.result().status, last.certified()) == ("budget", [])
