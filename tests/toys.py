"""Toy models, and a driver that runs a `Search` on them. No torch, no numpy.

A toy is a function from a prefix to a list of increments, one for each token (`reference.Toy`); token 0 is EOS.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from math import exp, inf, log
from typing import NamedTuple

from bestfirst.scoring import LogProbability
from bestfirst.search import AnyOrderSearch, Context, Finished, Hypothesis, Result, Search, Strategy, Successors
from reference import EOS, Toy

KINDS = ("ties", "peaked", "flat", "dead-ends")
RULES: tuple[Finished, ...] = ("keep", "leave")


def random_toy(kind: str, vocabulary: int, seed: object) -> Toy:
    """A random model of a kind, the same for the same seed on every machine.

    ties: small-integer increments, 0 (p = 1) included; peaked, flat: normal logits; dead-ends: peaked, some tokens impossible.
    """

    @cache
    def increments(prefix: tuple[int, ...]) -> tuple[float, ...]:
        rng = random.Random(f"{kind} {vocabulary} {seed} {prefix}")  # a string seeds alike on every platform
        if kind == "ties":
            return tuple(-float(rng.choice((0, 0, 1, 1, 2, 3))) for _ in range(vocabulary))
        logits = [rng.gauss(0, 0.5 if kind == "flat" else 2.0) for _ in range(vocabulary)]
        if kind == "dead-ends":
            logits = [logit if rng.random() < 0.6 else -inf for logit in logits]
        total = sum(exp(logit) for logit in logits)
        return tuple(min(0.0, logit - log(total)) if logit > -inf else -inf for logit in logits)

    return increments


class Case(NamedTuple):
    """All parameters of one random search."""

    kind: str
    vocabulary: int
    seed: int
    k: int
    n_max: int
    n: int
    finished: Finished

    @property
    def toy(self) -> Toy:
        return random_toy(self.kind, self.vocabulary, self.seed)


def random_cases(seeds: range, *, title: str, kinds: tuple[str, ...] = KINDS, small: bool = False) -> Iterator[Case]:
    """Cases of all kinds, k from 1 to 8, both rules, n up to k (`leave`: k + 2); `small` ones allow exhaustive search."""
    for seed in seeds:
        rng = random.Random(f"{title} {seed}")
        k, finished = 1 + seed % 8, RULES[seed // 8 % 2]
        yield Case(
            kind=kinds[seed // 16 % len(kinds)],
            vocabulary=rng.randint(2, 4 if small else 7),
            seed=rng.getrandbits(32),
            k=k,
            n_max=rng.randint(1, 5 if small else 9),
            n=rng.choice((1, 1, k, rng.randint(1, k), k if finished == "keep" else k + 2)),
            finished=finished,
        )


def successors(toy: Toy, y: Hypothesis) -> Successors:
    """The successors of `y` for `Search.commit`: all possible tokens, best first, ties by token."""
    increments = toy(y.tokens)
    tokens = sorted((t for t, value in enumerate(increments) if value > -inf), key=lambda t: (-increments[t], t))
    return Successors([increments[t] for t in tokens], tokens)


@dataclass
class Run:
    """A finished search: its result, and every hypothesis in the order in which it was scored."""

    search: AnyOrderSearch
    result: Result
    scored: list[Hypothesis]
    steps: int

    @property
    def answers(self) -> list[tuple[tuple[int, ...], float]]:
        return [(answer.tokens, answer.score) for answer in self.result.hypotheses]

    @property
    def prefixes(self) -> list[tuple[int, ...]]:
        return [y.tokens for y in self.scored]


Chooser = Callable[[AnyOrderSearch], list[Hypothesis]]


def one_at_a_time(search: AnyOrderSearch) -> list[Hypothesis]:
    """Strict order: only the needed hypothesis."""
    return search.frontier(1)


def random_subsets(rng: random.Random) -> Chooser:
    """Scores a random part of the frontier in random order."""

    def choose(search: AnyOrderSearch) -> list[Hypothesis]:
        ready = search.frontier(rng.choice((1, 3, 10, 100)))
        return rng.sample(ready, rng.randint(1, len(ready))) if ready else []

    return choose


def late_answers(rng: random.Random) -> Chooser:
    """Commits hypotheses of earlier frontiers late, including some that have since fallen off their beam or been set aside."""
    waiting: dict[tuple[int, ...], Hypothesis] = {}
    asked: set[tuple[int, ...]] = set()

    def choose(search: AnyOrderSearch) -> list[Hypothesis]:
        ready = search.frontier(100)
        waiting.update({y.tokens: y for y in ready if y.tokens not in asked})
        asked.update(waiting)
        batch = rng.sample(list(waiting.values()), min(len(waiting), rng.choice((1, 1, 2)))) if ready else []
        for y in batch:
            del waiting[y.tokens]
        return batch

    return choose


def run(
    toy: Toy,
    strategy: Strategy,
    n_max: int,
    *,
    choose: Chooser = one_at_a_time,
    kind: type[Search] = AnyOrderSearch,
    **settings: object,
) -> Run:
    """Decode a toy: `choose` returns the hypotheses to score in each step; an empty list ends the search."""
    search = kind(strategy, score=LogProbability(), eos={EOS}, context=Context(n_max=n_max), **settings)
    scored, steps = [], 0
    while batch := choose(search):
        steps += 1
        for y in batch:
            scored.append(y)
            search.commit(y, successors(toy, y))
    return Run(search, search.result(), scored, steps)
