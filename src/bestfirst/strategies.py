"""Strategies and stopping rules by name, as `decode` and the command know them, and the stops and orders that imitate Hugging
Face or CTranslate2. The `search` package does not depend on these."""

from __future__ import annotations

from collections.abc import Callable
from math import floor, inf
from typing import Any

from .scoring import Score
from .search import AnyOrderSearch, Context, Hypothesis, StepSearch, stops, table_1
from .search.stops import Answered, Stop
from .search.table_1 import BestFirst, Finished, Heuristic, ShortestFirst, Strategy

# -- Hugging Face ----------------------------------------------------------------------------------------------------------


class ShortestFirstPruned(ShortestFirst):
    """Level by level, the better first, as `early_stopping=True` is searched. Once k children precede a parent, it is not scored.

    For scores whose bounds hold: the same result from fewer calls, under any stop.
    """

    relies_on_bound = True


class BestIsWorse(stops.LevelStop):
    """The best unfinished hypothesis, at its present length, does not beat the k-th answer: Hugging Face's
    `early_stopping=False`."""

    name = "hf-false"

    def at_level(self, search: AnyOrderSearch, length: int) -> bool:
        enough = int(max(search.n, search.strategy.k))  # n, where more than the k that Hugging Face collects are requested
        if len(search.answers) < enough:
            return False
        return search.best_unfinished(length).worth <= search.answers[enough - 1].worth


class NeverAsWritten(stops.LevelStop):
    """Hugging Face's `early_stopping="never"` to the letter, for scores that may rise above 0, where it is not a bound."""

    name = "hf-never"

    def __init__(self, length: int | None) -> None:
        self.length = length  # the length at which Hugging Face scores running hypotheses; None: their own

    def at_level(self, search: AnyOrderSearch, length: int) -> bool:
        k = int(search.strategy.k)
        if len(search.answers) < k:
            return False
        best = search.score.final(search.best_unfinished(length).value, self.length or length, search.context)
        return best <= search.answers[k - 1].worth


class HuggingFaceStep:
    """Hugging Face's `early_stopping=False`, its default, found best-first: the same answers, fewer calls.

    Its beam search ends with the first step t at which the best unfinished hypothesis of length t is worth no more than the k-th
    answer of at most t tokens. No open hypothesis has a greater value than `y`, so what precedes `y` determines t: the best of a
    length is known if its value is no less than that of `y`; otherwise it stays below, and `y` at that length is the most it
    could be worth. Answers that pass the test have a greater value than `y`, too, so they stay; open hypotheses can only finish
    below them. Only what precedes `y` is used, so it does not matter what was scored ahead; longer answers found that way do not
    count. Needs best-first order, `leave`, and a score that rises with length for a fixed value; a monotonic one stops exactly.
    """

    name = "hf-false"
    best_first = True
    exact = False
    depends_on_past = False
    own_search = StepSearch  # finds this step itself, and does not score what cannot matter

    def __call__(self, search: AnyOrderSearch, y: Hypothesis) -> bool:
        return _ANSWERED(search, y) or self._step(search, y.value, y.length) is not None or self._equal(search, y)

    def _equal(self, search: AnyOrderSearch, y: Hypothesis) -> bool:
        """For a monotonic score: whether the n-th answer is worth no less than any continuation of `y`, and is no longer."""
        if not search.score.monotonic or len(search.answers) < search.n:
            return False
        answer = search.answers[search.n - 1]
        return answer.worth >= y.bound and answer.length <= y.length

    def _step(self, search: AnyOrderSearch, value: float, length: int) -> int | None:
        """The step at which Hugging Face stops, or None if what precedes an open one of this value and length does not decide."""
        enough = int(max(search.n, search.strategy.k))
        if search.score.monotonic or len(search.answers) < enough:
            return None
        answers = search.answers
        first = sorted(z.length for z in answers)[enough - 1]  # shorter steps have fewer than `enough` answers
        if _best_value(search, first - 1) < value:
            return None  # the best of a shorter length is not known yet, so neither is that of any longer one
        for t in range(first, min(len(search.agenda.beams), search.context.n_max) + 1):
            best = _best_value(search, t)
            known = best >= value
            answer = [z for z in answers if z.length <= t][enough - 1].worth
            rival = search.score.final(best if known else value, t, search.context)
            # An open one of equal value that is shorter could still finish at this step, and precede the k-th answer.
            if answer > rival or (answer == rival and known and (value < best or length >= t)):
                return t
            if not known:
                return None
        return None

    def counted(self, search: AnyOrderSearch) -> list[Hypothesis]:
        """The answers that Hugging Face had found when it stopped."""
        y = search.first()
        step = self._step(search, -inf, 0) if y is None else self._step(search, y.value, y.length)
        return search.answers if step is None else [y for y in search.answers if y.length <= step]


_ANSWERED = Answered()


def _best_value(search: AnyOrderSearch, length: int) -> float:
    """The value of the best unfinished hypothesis of this length that is known, or -inf."""
    beams = search.agenda.beams
    return next((y.value for y in beams[length].members if not y.finished), -inf) if length < len(beams) else -inf


# -- CTranslate2 -----------------------------------------------------------------------------------------------------------


class FirstFinished(stops.Patience):
    """CTranslate2's rule (version 4): there are `factor` times k answers; for a plain log-probability, there are n and the first
    member of the beam was finished at some length. `tests/scoring/test_ctranslate2.py` compares with CTranslate2 itself.

    An output's length counts its EOS in both. An empty output is allowed here; CTranslate2 needs `min_decoding_length=0` for it.
    """

    name = "ctranslate2"

    def at_level(self, search: AnyOrderSearch, length: int) -> bool:
        if search.score.value_only:
            return len(search.answers) >= search.n and search.led_by_answer
        return super().at_level(search, length)

    def enough(self, strategy: Strategy, score: Score) -> float:
        return inf if score.value_only else max(1, floor(self.factor * strategy.k + 0.5))


def as_ctranslate2(plan: Strategy, score: Score, n: int, factor: float = 1.0) -> Strategy:
    """This strategy with CTranslate2's stop. Best-first order becomes a pruned one: for one answer by log-probability plain
    best-first search, since of all that has finished when the beam's first member has, the best is beam search's answer."""
    if plan.finished != "leave":
        raise ValueError(f"stop={FirstFinished.name!r} is for finished='leave', CTranslate2's rule, not {plan.finished!r}")
    best_first = isinstance(plan.order, BestFirst) and plan.k < inf
    stop = FirstFinished(factor)
    if best_first and score.value_only and n == 1:
        return plan.using(stop=Answered())
    return plan.using(stop=stop, order=ShortestFirstPruned() if best_first else plan.order)


# -- by name ---------------------------------------------------------------------------------------------------------------

STRATEGIES = ("greedy", "beam", "best-first", "a-star-beam", "breadth-first", "best-first-unpruned", "a-star")
UNPRUNED = ("breadth-first", "best-first-unpruned", "a-star")
STOPS: dict[str, Callable[..., Stop]] = {
    "exhausted": stops.Exhausted,  # beam search without early stopping
    "opennmt": stops.TopFinished,
    "shrinking": lambda: stops.Patience(1.0, "shrinking"),
    "huang": stops.OptimalStop,
    "hf-true": lambda: stops.Patience(1.0, "hf-true"),
    "hf-false": BestIsWorse,
    "hf-never": stops.NeverStop,
    "patience": stops.Patience,  # takes `factor`
    FirstFinished.name: FirstFinished,  # takes `factor`, too
}

WITH_FACTOR = ("patience", FirstFinished.name)


def named_strategy(
    strategy: str | Strategy, *, beam: int = 5, finished: Finished = "leave", heuristic: Heuristic | None = None
) -> Strategy:
    """The strategy of this name. An object is returned as it is, if no other argument contradicts it."""
    if isinstance(strategy, Strategy):
        given: dict[str, tuple[Any, Any, Any]] = {
            "beam": (beam, 5, strategy.k),
            "finished": (finished, "leave", strategy.finished),
            "heuristic": (heuristic, None, strategy.heuristic),
        }
        for name, (asked, default, own) in given.items():
            if asked not in (default, own):
                raise ValueError(f"{name}={asked!r} is not the strategy's own, which is {own!r}; leave it out, or make another")
        return strategy
    if strategy not in STRATEGIES:
        raise ValueError(f"unknown strategy {strategy!r}; choose from {', '.join(STRATEGIES)}")
    if heuristic is not None and strategy not in ("a-star-beam", "a-star"):
        raise ValueError(f"strategy {strategy!r} takes no heuristic; use 'a-star-beam' or 'a-star'")
    makers: dict[str, Callable[[], Strategy]] = {
        "greedy": lambda: table_1.greedy(finished),
        "beam": lambda: table_1.beam(beam, finished),
        "best-first": lambda: table_1.best_first_beam(beam, finished),
        "a-star-beam": lambda: table_1.a_star_beam(beam, heuristic, finished),
        "breadth-first": table_1.breadth_first,
        "best-first-unpruned": table_1.best_first,
        "a-star": lambda: table_1.a_star(heuristic),
    }
    return makers[strategy]()


def _step_is_known(score: Score | None) -> bool:
    """Whether `HuggingFaceStep` finds Hugging Face's step with this score (None: one that rises with length)."""
    if score is None or score.monotonic:
        return True
    context = Context(n_max=2, source_length=1)
    try:
        return score.one_way and score.exact("leave") and score.final(-1.0, 1, context) <= score.final(-1.0, 2, context)
    except Exception:  # a score of the user that needs the input
        return False


def stopping(plan: Strategy, stop: str | Stop, score: Score | None = None, **options: Any) -> Strategy:
    """This strategy with another stopping rule, by name or as an object.

    "shrinking" also sets its rule for finished hypotheses. "hf-false", "hf-never", "hf-true" and "patience" work with best-first
    search, too, and return what beam search returns with them. The last two count answers, so levels are scored one after the
    other, without what cannot matter; "hf-false" too with a score that may fall with length. All others go level by level.
    """
    if not isinstance(stop, str):
        if not callable(stop) or isinstance(stop, type) or not hasattr(stop, "exact"):
            raise ValueError(f"stop must be an object of a stopping rule, or one of {', '.join(STOPS)}, got {stop!r}")
        return plan.using(stop=stop)
    if stop not in STOPS:
        raise ValueError(f"unknown stop {stop!r}; choose from {', '.join(STOPS)}")
    if unknown := sorted(set(options) - ({"factor"} if stop in WITH_FACTOR else set())):
        raise ValueError(f"stop {stop!r} has no option {unknown[0]!r}; only {' and '.join(WITH_FACTOR)} have one, factor")
    if stop.startswith("hf-") and plan.finished != "leave":
        raise ValueError(f"stop={stop!r} is for finished='leave', Hugging Face's rule, not {plan.finished!r}")
    if isinstance(plan.order, BestFirst) and plan.k < inf:
        if stop == "hf-never":
            return plan.using(stop=Answered())
        if stop == "hf-false" and _step_is_known(score):
            return plan.using(stop=HuggingFaceStep())
        if stop in ("hf-false", "hf-true", "patience") and plan.finished == "leave":
            return plan.using(stop=STOPS[stop](**options), order=ShortestFirstPruned())
    return plan.using(stop=STOPS[stop](**options), finished="shrink" if stop == "shrinking" else plan.finished)
