"""Scores: log-probability (the paper's), corrections for the length of an output, mutual information, and scores that wrap
another one (coverage, diversity). `named_score` makes them by name, as `decode(score=...)` and the command do.

`search.Score` is the base class and states the laws of scores; `docs/scores.md` compares all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from inspect import Parameter, signature
from math import inf, log
from numbers import Real
from types import MappingProxyType
from typing import Any

from .models import Model
from .search import AnyOrderSearch, Context, Finished, Groups, Score, Strategy, check_settings
from .search.table_1 import check_count

__all__ = [
    "GNMT", "SCORES", "BoundedLengthReward", "Coverage", "Diverse", "LengthNormalized", "LengthReward", "LogProbability",
    "MutualInformation", "Score", "by_length_penalty", "log_softmax", "named_score", "score_parameters",
]  # fmt: skip


LARGEST = 1e9  # of a score's parameters: in a sum with a larger one no digits of a log-probability are left
LARGEST_ALPHA = 1000  # no length but 1 can be raised to a larger power


class LogProbability(Score):
    """The sum of log-probabilities (the paper's Eq. 5): monotonic, for no log-probability is positive.

    A temperature other than 1 divides them before they are normalised again; `Answer.logprob` stays the model's own.
    """

    name = "logprob"
    monotonic = True
    value_only = True

    def __init_subclass__(cls) -> None:
        cls.value_only = cls.final is Score.final and cls.bound is LogProbability.bound  # unless a subclass overrides one

    def __init__(self, temperature: float = 1.0) -> None:
        if not (is_number(temperature) and temperature > 0):
            raise ValueError(f"temperature must be a number above 0, got {temperature!r}")
        if not 1 / LARGEST <= temperature <= LARGEST:
            raise ValueError(f"temperature must be from {1 / LARGEST:g} to {LARGEST:g}, got {temperature!r:.40}")
        self.temperature = float(temperature)

    @property
    def plain(self) -> bool:
        return self.temperature == 1 and type(self).increment is LogProbability.increment

    def increment(self, logprobs: Any, aux: Any = None) -> Any:
        return logprobs if self.temperature == 1 else log_softmax(logprobs / self.temperature)

    def bound(self, value: float, length: int, context: Context) -> float:
        return value


class LengthNormalized(Score):
    """log p(y|x) / N^alpha (Hugging Face's `length_penalty`, fairseq's `lenpen`): monotonic for alpha <= 0.

    A fixed value, at most 0, scores better at a greater length if alpha > 0 and worse if alpha < 0. So the bound is the score at
    n_max for alpha > 0, and at the next length otherwise.
    """

    name = "length-normalized"
    one_way = True

    def __init__(self, alpha: float) -> None:
        if not is_number(alpha):
            raise ValueError(f"alpha must be a number, got {alpha!r}")
        if abs(alpha) > LARGEST_ALPHA:
            raise ValueError(f"a length penalty must be from -{LARGEST_ALPHA} to {LARGEST_ALPHA}, got {alpha!r:.40}")
        self.alpha = float(alpha)
        self.monotonic = alpha <= 0

    def norm(self, length: int) -> float:
        """The divisor of the value. The empty hypothesis has value 0, so any divisor does: it counts as one token."""
        return self._power(max(length, 1), length)

    def _power(self, base: float, length: int) -> float:
        try:
            power = float(base**self.alpha)
        except OverflowError:
            power = inf
        if not 1e-200 < power < 1e200:  # beyond it quotients of log-probabilities lose digits, or become 0
            raise ValueError(
                f"a length penalty of {self.alpha:.15g} at {length} tokens is beyond what numbers hold: give one nearer 0"
            )
        return power

    def final(self, value: float, length: int, context: Context) -> float:
        return value / self.norm(length)

    def bound(self, value: float, length: int, context: Context) -> float:
        return value / self.norm(length + 1 if self.monotonic else context.n_max)


class GNMT(LengthNormalized):
    """log p(y|x) / ((5 + N) / 6)^alpha (Wu et al. 2016, Eq. 14): grows more gently with the length than N^alpha."""

    name = "gnmt"

    def norm(self, length: int) -> float:
        return self._power((5 + length) / 6, length)


class LengthReward(Score):
    """log p(y|x) + beta * N (He et al. 2016; the paper's Eq. 8). The bound: all tokens up to n_max at no cost."""

    name = "length-reward"
    one_way = True

    def __init__(self, beta: float) -> None:
        self.beta = nonnegative("beta", beta)
        self.monotonic = beta == 0

    def final(self, value: float, length: int, context: Context) -> float:
        return value + self.beta * length

    def bound(self, value: float, length: int, context: Context) -> float:
        return self.final(value, context.n_max, context)


class BoundedLengthReward(LengthReward):
    """log p(y|x) + beta * min(r|x|, N) (Huang et al. 2017; the paper's Eq. 7): a reward only up to the expected length r|x|.

    The paper requires r|x| < n_max; otherwise no output reaches r|x| and n_max takes its place.
    """

    name = "bounded-length-reward"
    needs = frozenset({"source_length"})

    def __init__(self, beta: float, ratio: float) -> None:
        super().__init__(beta)
        self.ratio = nonnegative("ratio", ratio)

    def final(self, value: float, length: int, context: Context) -> float:
        return value + self.beta * min(self.ratio * context.source_length, length)


def by_length_penalty(alpha: float) -> Score:
    """log p / N^alpha, the usual meaning of `length_penalty`; 0 is the plain log-probability, whose search is the cheapest."""
    return LogProbability() if alpha == 0 else LengthNormalized(alpha)


class MutualInformation(Score):
    """log p(y|x) - weight * log max(p(y), epsilon), clipped at every step (Li et al. 2016; the paper's Eq. 12).

    A token can add at most u = weight * log(1/epsilon). The value is kept without that: increments are lower by u, so that none
    is positive, and `final` adds u per token. This is a length reward with beta = u, and exact like one.

    With `whole_sequence` the probability of all of y is clipped once, as the paper's equation reads. What a hypothesis can still
    gain then depends on more than its value and length, so best-first search gives no guarantee. With epsilon = 0 nothing is
    clipped and nothing is bounded: beam search only (the paper's baseline).
    """

    name = "mutual-information"
    one_way = True

    def __init__(self, language_model: Model, weight: float, epsilon: float, whole_sequence: bool = False) -> None:
        if not (is_number(epsilon) and 0 <= epsilon <= 1):
            raise ValueError(f"epsilon must be above 0 and at most 1 (or 0, for beam search), got {epsilon!r}")
        self.language_model = language_model
        self.weight = nonnegative("weight", weight)
        self.epsilon = float(epsilon)
        self.whole_sequence = whole_sequence
        self.needs = frozenset({"language_model", "language_model_past"} if whole_sequence else {"language_model"})
        self._floor = log(epsilon) if epsilon > 0 else 0.0
        self._unit = -weight * self._floor  # u
        self.monotonic = epsilon > 0 and self._unit == 0

    def _clip(self, logprobs: Any) -> Any:
        return logprobs.clip(min=self._floor) if self.epsilon > 0 else logprobs

    def increment(self, logprobs: Any, aux: Any = None, past: Any = None) -> Any:
        before = self._clip(past) if self.whole_sequence else self._floor
        after = self._clip(past + aux) if self.whole_sequence else self._clip(aux)
        return logprobs - self.weight * (after - before)

    def final(self, value: float, length: int, context: Context) -> float:
        return value if self.whole_sequence else value + self._unit * length

    def bound(self, value: float, length: int, context: Context) -> float:
        if self.epsilon == 0:
            return inf
        return value + self._unit * (1 if self.whole_sequence else context.n_max)

    def exact(self, finished: Finished) -> bool:
        return not self.whole_sequence

    def check(self, strategy: Strategy) -> None:
        if self.epsilon == 0 and not strategy.level_by_level:
            raise ValueError("epsilon = 0 leaves mutual information without a bound; use strategy='beam', or an epsilon above 0")


MIN_ATTENTION = 1e-10  # replaces no attention at all, so that scores stay finite


class WrappedScore(Score):
    """Delegates everything to another score (log-probability by default); subclasses override what differs."""

    def __init__(self, score: Score | None = None) -> None:
        self.score = score or LogProbability()
        self.monotonic = self.score.monotonic
        self.one_way = self.score.one_way
        self.needs = self.score.needs
        self.language_model = self.score.language_model

    @property
    def plain(self) -> bool:
        return self.score.plain and type(self).increment is WrappedScore.increment

    def increment(self, logprobs: Any, aux: Any = None, **past: Any) -> Any:
        return self.score.increment(logprobs, aux, **past)

    def final(self, value: float, length: int, context: Context) -> float:
        return self.score.final(value, length, context)

    def bound(self, value: float, length: int, context: Context) -> float:
        return self.score.bound(value, length, context)

    def ending(self, coverage: Any) -> Any:
        return self.score.ending(coverage)

    def exact(self, finished: Finished) -> bool:
        return self.score.exact(finished)

    def check(self, strategy: Strategy) -> None:
        self.score.check(strategy)


class Coverage(WrappedScore):
    """A score plus beta * sum_i log min(sum_j p_ij, 1) (Wu et al. 2016, Eq. 14): an output must attend to all of its input.

    p_ij is the attention to source token i when token j was chosen. GNMT's own score is `Coverage(beta, GNMT(alpha))`. The
    penalty is added when a hypothesis finishes; beams rank without it. It is never positive, so the bound of the wrapped score
    still holds, and best-first search is exact under `leave`.
    """

    name = "coverage"

    def __init__(self, beta: float, score: Score | None = None) -> None:
        super().__init__(score)
        self.beta = nonnegative("beta", beta)
        self.needs |= {"attention"}

    def ending(self, coverage: Any) -> Any:
        seen = coverage.clip(MIN_ATTENTION, 1.0)
        if hasattr(seen, "log"):  # a tensor
            return super().ending(coverage) + self.beta * seen.log().sum(-1)
        import numpy

        return super().ending(coverage) + self.beta * numpy.log(seen).sum(-1)

    def check(self, strategy: Strategy) -> None:
        super().check(strategy)
        if strategy.finished == "keep":
            raise ValueError("a coverage penalty comes in when a hypothesis finishes, too late for finished='keep'; use 'leave'")


class Diverse(WrappedScore):
    """Diverse beam search with the Hamming penalty (Vijayakumar et al. 2018): the beam is divided into groups.

    A token costs `penalty` for every hypothesis of an earlier group that chose it at the same length. Groups take turns, level by
    level: no best-first search, and no claim to be exact.
    """

    name = "diverse"

    def __init__(self, groups: int, penalty: float, score: Score | None = None) -> None:
        super().__init__(score)
        check_count("groups", groups)
        self.groups = int(groups)
        self.penalty = nonnegative("penalty", penalty)

    def exact(self, finished: Finished) -> bool:
        return False

    def check(self, strategy: Strategy) -> None:
        super().check(strategy)
        if not strategy.level_by_level or not strategy.any_order:
            raise ValueError(f"diverse groups go level by level, strategy {strategy.name!r} does not; use strategy='beam'")
        if strategy.k % self.groups:
            raise ValueError(f"{self.groups} groups do not divide a beam of {strategy.k}; use a multiple of {self.groups}")

    def search(self, strategy: Strategy, *, n: int = 1, max_calls: int | None = None, **settings: Any) -> Groups:
        check_settings(strategy, self, settings["context"], n, max_calls)
        group = strategy.using(k=strategy.k // self.groups)
        settings |= {"score": self.score, "n": min(n, int(group.k))}
        return Groups([AnyOrderSearch(group, **settings) for _ in range(self.groups)], self.penalty, n, max_calls)


PLAIN = (Real, str, Score)
DERIVED = frozenset({*Score.__annotations__, "_floor", "_unit"})
"""Attributes that follow from a score's class and its parameters."""
SCORES: dict[str, type[Score]] = {
    score.name: score for score in (LogProbability, LengthReward, BoundedLengthReward, LengthNormalized, GNMT, MutualInformation)
}


def score_parameters(name: str) -> dict[str, bool]:
    """The parameters of the score of this name, and whether each is required."""
    if name not in SCORES:
        raise ValueError(f"unknown score {name!r}; choose from {', '.join(SCORES)}")
    return {p.name: p.default is Parameter.empty for p in signature(SCORES[name]).parameters.values()}


def options_of(score: Score) -> dict[str, Any] | None:
    """The parameters with which `named_score` makes an equal score from its name, without defaults; None if it cannot."""
    if SCORES.get(score.name) is not type(score):
        return None
    made = {name: p.default for name, p in signature(type(score)).parameters.items()}
    options = {name: getattr(score, name) for name, default in made.items() if getattr(score, name) != default}
    return options if all(isinstance(value, (bool, int, float, str)) for value in options.values()) else None


def score_signature(score: Score) -> str:
    """A score's name, and what it was made with other than defaults: `length-normalized(alpha=0.6)`, the same for all ways to
    ask for it. Of a score of the user's, all numbers, texts and scores that it holds."""
    model = score.language_model
    return written(score, score.name, DERIVED, {} if model is None else {"language_model": str(getattr(model, "name", model))})


def written(given: Any, name: str, hidden: Collection[str] = (), more: Mapping[str, Any] = MappingProxyType({})) -> str:
    """An object as `name(part=value,...)`: the numbers, texts and scores that it holds and its class does not have by default,
    and `more`; without what is `hidden`."""
    try:
        made = {each.name: each.default for each in signature(type(given)).parameters.values()}
    except ValueError:  # of a builtin
        made = {}
    held = getattr(given, "__dict__", {}).items()
    parts = {part: x for part, x in held if part not in hidden and isinstance(x, PLAIN) and x != made.get(part)}
    shown = [f"{part}={score_signature(x) if isinstance(x, Score) else x}" for part, x in {**parts, **more}.items()]
    return name + (f"({','.join(shown)})" if shown else "")


def named_score(score: str | Score, **parameters: Any) -> Score:
    """The score of this name, with its parameters; an object is returned as it is."""
    if isinstance(score, Score):
        if parameters:
            raise ValueError(f"score {score.name!r} is an object already: give it {', '.join(parameters)} where it is made")
        return score
    if isinstance(score, type) and issubclass(score, Score):
        raise TypeError(f"the score is the class {score.__name__}; make one of it: {score.__name__}(...)")
    if not isinstance(score, str):
        raise TypeError(f"a score is a name or an object of a subclass of bestfirst.scoring.Score, got {type(score).__name__}")
    known = score_parameters(score)
    if unknown := [name for name in parameters if name not in known]:
        raise ValueError(f"score {score!r} has no parameter {unknown[0]!r}; it has {', '.join(known)}")
    if missing := [name for name, required in known.items() if required and name not in parameters]:
        raise ValueError(f"score {score!r} needs {' and '.join(missing)}")
    return SCORES[score](**parameters)


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and bool(-inf < value < inf)  # type: ignore[operator]


def nonnegative(name: str, value: float) -> float:
    """Return `value`, or raise ValueError if it is not a number of at least 0."""
    if not (is_number(value) and value >= 0):
        raise ValueError(f"{name} must be a number of at least 0, got {value!r}")
    if value > LARGEST:
        raise ValueError(f"{name} must be at most {LARGEST:g}, got {value!r:.40}")
    return float(value)


def log_softmax(x: Any) -> Any:
    """Log-softmax over the last axis of an array or a tensor; -inf stays -inf. Imports numpy only if needed."""
    if hasattr(x, "log_softmax"):
        return x.log_softmax(-1)
    import numpy

    x = x - x.max(-1, keepdims=True)
    return x - numpy.log(numpy.exp(x).sum(-1, keepdims=True))
