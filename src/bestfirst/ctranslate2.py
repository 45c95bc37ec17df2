"""CTranslate2's own rule (version 4) for when to stop, as a choice on the one search.

An output's length counts its EOS there as here. An empty output is one, which there needs `min_decoding_length=0`.
`tests/scoring/test_ctranslate2.py` holds it against CTranslate2 itself.
"""

from __future__ import annotations

from math import floor, inf

from .hugging_face import ShortestFirstPruned
from .scoring import Score
from .search import Answered, AnyOrderSearch, BestFirst, LevelSearch, Patience, Strategy


class FirstFinished(Patience):
    """There are `factor` times k answers; of a plain log-probability, n, and the beam's best has finished at some length."""

    name = "ctranslate2"

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__(factor, self.name)

    def at_level(self, search: AnyOrderSearch, length: int) -> bool:
        if search.score.value_only:
            return len(search.answers) >= search.n and search.led_by_answer
        return super().at_level(search, length)

    def enough(self, search: AnyOrderSearch | LevelSearch) -> float:
        return inf if search.score.value_only else max(1, floor(self.factor * search.strategy.k + 0.5))


def as_ctranslate2(plan: Strategy, score: Score, n: int, factor: float = 1.0) -> Strategy:
    """This strategy with CTranslate2's stop. Best-first, it leaves out what cannot matter.

    The best of all that has finished when the beam's best has is beam search's answer, which best-first search finds soonest.
    """
    if plan.finished != "leave":
        raise ValueError(f"stop={FirstFinished.name!r} is for finished='leave', CTranslate2's rule, not {plan.finished!r}")
    best_first = isinstance(plan.order, BestFirst) and plan.k < inf
    stop = FirstFinished(factor)
    if best_first and score.value_only and n == 1:
        return plan.using(stop=Answered())
    return plan.using(stop=stop, order=ShortestFirstPruned() if best_first else plan.order)
