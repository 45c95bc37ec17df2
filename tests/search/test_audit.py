"""Every score, rule, stop, order, budget and n-best against `audit`, which shares no code with the package.

A million searches at full scale, a few thousand otherwise: no wrong answer, no false `exact`, and no more calls than the least
of any exact search.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from math import exp, inf, log

import numpy
import pytest

from bestfirst import FunctionModel
from bestfirst.scoring import GNMT, BoundedLengthReward, LengthNormalized, LengthReward, LogProbability, MutualInformation, Score
from bestfirst.search import Context, Hypothesis, Search, Strategy, Successors, beam, best_first_beam
from bestfirst.strategies import ShortestFirstPruned, as_ctranslate2, stopping
from search.audit import (
    KINDS,
    Answers,
    Full,
    Tokens,
    World,
    best,
    ctranslate2_search,
    full,
    hugging_face_search,
    least,
    least_by_trial,
    level_by_level,
    opennmt_search,
    patience_search,
    random_increments,
)

SOURCE = 3  # |x|, for `BoundedLengthReward`
Formula = Callable[[float, int], float]


def length(alpha: float) -> tuple[Score, Formula]:
    return LengthNormalized(alpha), lambda v, t: v / max(t, 1) ** alpha


def gnmt(alpha: float) -> tuple[Score, Formula]:
    return GNMT(alpha), lambda v, t: v / ((5 + t) / 6) ** alpha


def reward(beta: float) -> tuple[Score, Formula]:
    return LengthReward(beta), lambda v, t: v + beta * t


def bounded(beta: float, ratio: float) -> tuple[Score, Formula]:
    return BoundedLengthReward(beta, ratio), lambda v, t: v + beta * min(ratio * SOURCE, t)


def information(weight: float, clip: float) -> tuple[Score, Formula]:
    """Each token's gain is at most `weight * clip`; values are lower by that much per token, so that they only fall."""
    score = MutualInformation(FunctionModel(lambda prefix: [], 0), weight, exp(-clip))
    return score, lambda v, t: v + weight * -log(exp(-clip)) * t


SCORES: dict[str, Callable[[random.Random], tuple[Score, Formula]]] = {
    "log-probability": lambda rng: (LogProbability(), lambda v, t: v),
    "length penalty": lambda rng: length(rng.choice((-0.5, 0.6, 1.0, 1.0, 2.0))),
    "GNMT": lambda rng: gnmt(rng.choice((-0.5, 0.6, 1.0))),
    "length reward": lambda rng: reward(rng.choice((0.3, 0.5, 1.0, 2.0))),
    "bounded reward": lambda rng: bounded(rng.choice((0.5, 1.0)), rng.choice((0.4, 1.0, 2.0))),
    "mutual information": lambda rng: information(rng.choice((0.25, 0.5)), rng.choice((1.0, 2.0))),
}
STOPS = ("proven", "hf-never", "hf-false", "hf-true", "patience", "ctranslate2", "opennmt", "shrinking", "by level", "budget")


class Case:
    """One random world, and the settings of all its searches."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(f"audit {seed}")
        self.name = rng.choice(list(SCORES))
        self.score, formula = SCORES[self.name](rng)
        self.kind, vocabulary = rng.choice(KINDS), rng.randint(2, 5)
        keep, k, n_max = rng.random() < 0.4, rng.randint(1, 5), rng.randint(1, 7)
        n = rng.choice((1, 1, rng.randint(1, k), k if keep else k + 2))
        increments = random_increments(self.kind, vocabulary, seed)
        if self.name == "mutual information":
            increments = self.with_lm(increments, random_increments(self.kind, vocabulary, f"{seed} beside"))
        self.world = World(increments, formula, keep, k, n, n_max, rng.random() < 0.3, rng.choice((0, vocabulary - 1)))
        self.whole: Full = full(self.world)

    def with_lm(self, increments: Callable, lm: Callable) -> Callable[[Tokens], tuple[float, ...]]:
        @cache
        def both(prefix: Tokens) -> tuple[float, ...]:
            with numpy.errstate(invalid="ignore"):
                found = self.score.increment(numpy.array(increments(prefix)), numpy.array(lm(prefix)))
            return tuple(found.tolist())

        return both

    def search(self, strategy: Strategy, rows: int | None, **settings: object) -> Search:
        """Run a search: `rows` hypotheses at a time, or (None) a random part of the frontier in random order."""
        world = self.world
        context = Context(world.n_max, SOURCE)
        search = self.score.search(
            strategy, eos={world.eos}, context=context, n=world.n, accept_truncated=world.truncated, **settings
        )
        while ready := search.frontier(rows or self.rng.choice((1, 3, 100))):
            for y in ready if rows else self.rng.sample(ready, self.rng.randint(1, len(ready))):
                search.commit(y, self.successors(y))
        return search

    def successors(self, y: Hypothesis) -> Successors:
        found = self.world.increments(y.tokens)
        tokens = sorted((t for t, value in enumerate(found) if value > -inf), key=lambda t: (-found[t], t))
        return Successors([found[t] for t in tokens], tokens)

    @property
    def orders(self) -> tuple[int | None, ...]:
        return 1, self.world.k, None


def compare_with_audit(case: Case, stop: str) -> tuple[int, list[str]]:
    """The number of searches run with this stop, and a description of each fault."""
    world, found, searches = case.world, [], 0
    rule = "keep" if world.keep else "leave"
    first = best_first_beam(world.k, rule)
    expected, fewest, most = best(case.whole.answers, world.n), 0, inf
    plans: list[tuple[Strategy, dict[str, object]]] = [(first, {})]
    if world.keep and stop not in ("proven", "opennmt", "by level", "budget"):
        return 0, []
    if stop in ("proven", "hf-never"):
        plans = [(first if stop == "proven" else stopping(first, stop), {})]
        fewest = most = len(least(world, case.whole))
    elif stop == "hf-false":
        theirs = hugging_face_search(world, False)
        expected, most = best(theirs.answers, world.n), theirs.calls
        plans = [(stopping(first, stop), {})]
    elif stop == "hf-true":
        theirs = hugging_face_search(world._replace(n=1), True)
        expected, most = best(theirs.answers, world.n), theirs.calls
        plans = [(stopping(beam(world.k), stop).using(order=order), {}) for order in (ShortestFirstPruned(),)]
    elif stop == "patience":
        factor = case.rng.choice((0.5, 1.0, 1.6))
        theirs = patience_search(world, factor)
        expected, most = best(theirs.answers, world.n), theirs.calls
        patience = stopping(beam(world.k), stop, factor=factor)
        plans = [(patience, {}), (patience.using(order=ShortestFirstPruned()), {})]
    elif stop == "ctranslate2":
        factor = case.rng.choice((0.5, 1.0, 1.6))
        theirs = ctranslate2_search(world, factor, case.score.value_only)
        expected, most = best(theirs.answers, world.n), theirs.calls
        plans = [(as_ctranslate2(plan, case.score, world.n, factor), {}) for plan in (first, beam(world.k))]
    elif stop in ("opennmt", "shrinking"):
        theirs = opennmt_search(world) if stop == "opennmt" else patience_search(world, 1.0, shrinks=True)
        expected, most = best(theirs.answers, world.n), theirs.calls
        plans = [(stopping(beam(world.k, rule), stop), {})]
    elif stop == "by level":
        plans = [(stopping(beam(world.k, rule), name), {}) for name in ("exhausted", "huang")]
        most = level_by_level(world, lambda level, going, answers: False).calls
    elif stop == "budget":
        plans = [(first, {"max_calls": case.rng.randint(1, 8)})]
    for plan, settings in plans:
        calls = set()
        for rows in case.orders:
            search = case.search(plan, rows, **settings)
            result, searches = search.result(), searches + 1
            answers: Answers = [(each.tokens, each.score) for each in result.hypotheses]
            calls.add(result.calls)
            if stop == "budget":
                if result.exact and answers != expected:
                    found.append(f"false exact {plan.name}")
                if result.status == "budget" and (result.exact or result.calls > settings["max_calls"]):
                    found.append(f"budget {result.calls}")
                continue
            if answers != expected:
                found.append(f"answers of {stop}, {rows} rows: {answers}, not {expected}")
            if result.exact and answers != best(case.whole.answers, world.n):
                found.append(f"false exact {stop}")
            if not fewest <= result.calls <= most or (rows == 1 and result.rows != result.calls):
                found.append(f"{result.calls} calls of {stop}, {rows} rows: not from {fewest} to {most}")
        if len(calls) > 1:
            found.append(f"calls of {stop} depend on the order: {calls}")
    return searches, found


SHARDS = 20
PER_CASE = 28  # searches per case, at least


@pytest.mark.parametrize("shard", range(SHARDS))
def test_searches_agree_with_the_audit(shard, cases, tally):
    searches, faults = 0, []
    for seed in cases(10, full=1_000_000 // PER_CASE // SHARDS):
        case = Case(seed * SHARDS + shard)
        for stop in STOPS:
            many, found = compare_with_audit(case, stop)
            searches += many
            faults += [f"case {seed * SHARDS + shard} ({case.name}, {case.kind}): {each}" for each in found]
    tally("audited searches", searches, len(faults))
    assert not faults, "\n".join(faults[:10])


def test_least_calls_are_the_prefixes_that_could_change_the_answers(cases, tally):
    """By trial: a continuation can change the answers below each prefix that must be scored, and below no other."""
    tried = faults = 0
    for seed in cases(60, full=3000):
        case = Case(seed)
        if case.kind in ("peaked", "flat") and not case.world.truncated and case.world.n_max <= 5:
            tried += 1
            faults += least_by_trial(case.world, case.whole) != least(case.world, case.whole)
    tally("least calls by trial", tried, faults)
    assert faults == 0
