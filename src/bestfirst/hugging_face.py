"""Hugging Face's own stops and order: what its `generate` does that neither the paper nor another toolkit has.

Searches know nothing of it: these are choices on them, which `strategies` names and the drop-in makes.
"""

from __future__ import annotations

from math import inf

from .search import Answered, AnyOrderSearch, Hypothesis, LevelStop, ShortestFirst, StepSearch


class ShortestFirstPruned(ShortestFirst):
    """Level by level, the better first, but for what cannot matter: once k children precede a parent, none of its own can enter.

    For scores whose bounds hold, the same result from fewer calls, whatever the stop. What `early_stopping=True` is searched by.
    """

    relies_on_bound = True


class BestIsWorse(LevelStop):
    """The best unfinished hypothesis, as long as it is, does not beat the k-th answer: Hugging Face's `early_stopping=False`."""

    name = "hf-false"

    def at_level(self, search: AnyOrderSearch, length: int) -> bool:
        enough = int(max(search.n, search.strategy.k))  # of n, where more are asked for than Hugging Face collects
        if len(search.answers) < enough:
            return False
        return search.best_unfinished(length).worth <= search.answers[enough - 1].worth


class HuggingFaceStep:
    """Hugging Face's `early_stopping=False`, its default, found best-first: the same answers, fewer calls.

    Its beam search ends with the first step t at which the best unfinished hypothesis of length t is worth no more than the k-th
    answer of at most t tokens. Nothing open has a greater value than `y`, so what precedes `y` settles t: the best of a length is
    known if its value is no less than that of `y`; where it is less, it stays so, and `y` at that length is the most it could be
    worth. Answers that pass the test have a greater value than `y`, too, so they stay; what is still open can only finish below
    them. All this looks at what precedes `y` alone, so it does not matter what was scored ahead; longer answers that were found
    that way do not count. Needs best-first order, `leave`, and a score that rises with length for a fixed value; a monotonic one
    stops exactly.
    """

    name = "hf-false"
    exact = False
    depends_on_past = False
    strict = StepSearch  # which finds this step by itself, and leaves out what cannot matter

    def __call__(self, search: AnyOrderSearch, y: Hypothesis) -> bool:
        return _ANSWERED(search, y) or self._step(search, y.value, y.length) is not None

    def _step(self, search: AnyOrderSearch, value: float, length: int) -> int | None:
        """The step at which Hugging Face stops, if what precedes an open hypothesis of this value and length settles it."""
        enough = int(max(search.n, search.strategy.k))
        if search.score.monotonic or len(search.answers) < enough:
            return None
        answers = search.answers
        first = sorted(z.length for z in answers)[enough - 1]  # no shorter step has so many answers
        if _best_value(search, first - 1) < value:
            return None  # the best of a length is no better than that of a shorter one: all of those are known, or none here
        for t in range(first, min(len(search.agenda.beams), search.context.n_max) + 1):
            best = _best_value(search, t)
            known = best >= value
            answer = [z for z in answers if z.length <= t][enough - 1].worth
            rival = search.score.final(best if known else value, t, search.context)
            # An equal one that is open and shorter could still finish at this step, and precede the k-th answer in the order.
            if answer > rival or (answer == rival and known and (value < best or length >= t)):
                return t
            if not known:
                return None
        return None

    def counted(self, search: AnyOrderSearch) -> list[Hypothesis]:
        """The answers that Hugging Face had found by then."""
        y = search.first()
        step = self._step(search, -inf, 0) if y is None else self._step(search, y.value, y.length)
        return search.answers if step is None else [y for y in search.answers if y.length <= step]


_ANSWERED = Answered()


def _best_value(search: AnyOrderSearch, length: int) -> float:
    """The value of the best unfinished hypothesis of this length that is known."""
    beams = search.agenda.beams
    return next((y.value for y in beams[length].members if not y.finished), -inf) if length < len(beams) else -inf
