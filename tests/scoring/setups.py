"""Random scores with toy models: the inputs that a score needs (language model, attention), and a driver for any order."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy

from bestfirst import FunctionModel
from bestfirst.scoring import (
    GNMT,
    BoundedLengthReward,
    Coverage,
    LengthNormalized,
    LengthReward,
    LogProbability,
    MutualInformation,
    Score,
)
from bestfirst.search import AnyOrderSearch, Context, Strategy
from reference import EOS, Toy
from toys import Case, random_toy, successors

SCORES: dict[str, Callable[[random.Random], Score]] = {
    "logprob": lambda rng: LogProbability(),
    "temperature": lambda rng: LogProbability(rng.choice((0.5, 2.0))),
    "length-reward": lambda rng: LengthReward(rng.choice((0.0, 0.3, 0.5, 1.0, 2.0))),
    "bounded-length-reward": lambda rng: BoundedLengthReward(rng.choice((0.5, 1.0, 2.0)), rng.choice((0.4, 1.0, 2.0))),
    "length-normalized": lambda rng: LengthNormalized(rng.choice((-0.5, 0.0, 0.6, 1.0, 2.0))),
    "gnmt": lambda rng: GNMT(rng.choice((-0.5, 0.6, 1.0, 2.0))),
    "mutual-information": lambda rng: MutualInformation(
        FunctionModel(lambda prefix: [], EOS), rng.choice((0.05, 0.5, 1.0)), rng.choice((float(numpy.exp(-2)), 0.02, 5e-4, 1.0))
    ),
    "coverage": lambda rng: Coverage(rng.choice((0.2, 1.0)), rng.choice((LogProbability(), GNMT(0.6), LengthReward(0.5)))),
}


@dataclass
class Setup:
    """One random case with a score: `toy` gives the increments of the search, `ending` what finishing adds."""

    case: Case
    score: Score
    context: Context
    toy: Toy
    ending: Callable[[tuple[int, ...]], float]

    def search(
        self, strategy: Strategy, n: int, *, rng: random.Random | None = None, ahead: int = 1, **settings: object
    ) -> AnyOrderSearch:
        """Run a search: `ahead` at a time (1: strict order), or (with `rng`) a random part of the frontier in random order."""
        search = AnyOrderSearch(strategy, score=self.score, eos={EOS}, context=self.context, n=n, **settings)
        while batch := search.frontier(ahead):
            if rng is not None:
                batch = search.frontier(100)
                batch = rng.sample(batch, rng.randint(1, min(len(batch), 3)))
            for y in batch:
                search.commit(y, successors(self.toy, y)._replace(ending=self.ending(y.tokens)))
        return search


def setup(case: Case, make: Callable[[random.Random], Score]) -> Setup:
    rng = random.Random(f"{case.seed} score")
    score, plain = make(rng), case.toy
    lm = random_toy("ties" if case.kind == "ties" else "peaked", case.vocabulary, f"{case.seed} language model")

    @cache
    def past(prefix: tuple[int, ...]) -> float:
        return past(prefix[:-1]) + lm(prefix[:-1])[prefix[-1]] if prefix else 0.0

    @cache
    def toy(prefix: tuple[int, ...]) -> list[float]:
        extra = {"past": numpy.array([past(prefix)])} if "language_model_past" in score.needs else {}
        with numpy.errstate(invalid="ignore"):  # where nothing may follow
            return score.increment(numpy.array(plain(prefix)), numpy.array(lm(prefix)), **extra).tolist()

    @cache
    def attention(prefix: tuple[int, ...]) -> numpy.ndarray:
        rng = random.Random(f"{case.seed} attention {prefix}")
        weights = numpy.array([rng.random() ** 3 for _ in range(3)])
        return weights / weights.sum()

    def ending(prefix: tuple[int, ...]) -> float:
        if "attention" not in score.needs:
            return 0.0
        return float(score.ending(sum(attention(prefix[:i]) for i in range(len(prefix) + 1))))

    context = Context(n_max=case.n_max, source_length=rng.randint(0, 6))
    return Setup(case, score, context, plain if score.plain else toy, ending)


def outcome(search: AnyOrderSearch) -> list[tuple[tuple[int, ...], float]]:
    return [(answer.tokens, answer.score) for answer in search.result().hypotheses]
