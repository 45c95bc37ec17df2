"""Groups: several beam searches of one input that take turns, each penalised for tokens that earlier groups chose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .any_order import AnyOrderSearch
from .hypothesis import Hypothesis, Successors
from .result import Answer, Result
from .search import WholeLevels


class Groups(WholeLevels):
    """Diverse beam search (Vijayakumar et al. 2018) with the Hamming penalty, level by level.

    A token costs `penalty` for each unfinished hypothesis of an earlier group that ends in it at this length, as in Hugging
    Face's group beam search. A level of all groups may be scored in one forward pass: the penalty matters only when children are
    pushed, and groups push in turn. Any token may become costly, so as many successors matter as all groups together are wide.
    """

    def __init__(self, searches: Sequence[AnyOrderSearch], penalty: float, n: int, max_calls: int | None = None) -> None:
        super().__init__(searches)
        self.penalty = penalty
        self.n = n
        self.max_calls = max_calls
        self.width = sum(search.width for search in searches)
        self.out_of_budget = False
        self._groups = [[root] for root in self.roots]  # the current level; the first root is scored for all

    def frontier(self, m: int) -> list[Hypothesis]:
        """Up to `m` hypotheses of the current level that are not scored yet; empty when every group is done."""
        unscored = super().frontier(m)
        if self.max_calls is not None:
            self.out_of_budget = self.rows >= self.max_calls and bool(unscored)
            unscored = unscored[: self.max_calls - self.rows]
        return unscored

    def _next_level(self, scored: dict[Hypothesis, Successors]) -> list[Hypothesis]:
        """Let all groups push their children, one after the other."""
        chosen: Counter[int] = Counter()
        length = self._level[0].length + 1
        for search, group in zip(self.searches, self._groups, strict=True):
            for y in group:
                known = y if y.parent is not None else self.root
                y.state = known.state
                search.commit(y, self._penalised(chosen, scored[known]))
            if len(search.agenda.beams) > length:
                chosen.update(z.token for z in search.agenda.beams[length].members if not z.finished)
        self._groups = [search.frontier(int(search.strategy.k)) for search in self.searches]
        return [y for group in self._groups for y in group]

    def _penalised(self, chosen: Counter[int], successors: Successors) -> Successors:
        """The successors with the penalty for the tokens that earlier groups have `chosen`, and how often."""
        values, tokens, logprobs, ending = successors
        if not chosen or not tokens:
            return successors
        ranked = sorted(
            (-(value - self.penalty * chosen[token]), token, logprob)
            for value, token, logprob in zip(values, tokens, logprobs or values, strict=True)
        )
        costs, tokens, logprobs = zip(*ranked, strict=True)
        return Successors([-cost for cost in costs], tokens, logprobs, ending)

    def result(self) -> Result:
        """The n best answers of all groups; an answer of several groups counts once, at its best score."""
        parts = [search.result() for search in self.searches]
        best: dict[tuple[int, ...], Answer] = {}
        for answer in (answer for part in parts for answer in part.hypotheses):
            if answer.tokens not in best or best[answer.tokens].score < answer.score:
                best[answer.tokens] = answer
        answers = sorted(best.values(), key=lambda answer: (-answer.score, len(answer.tokens), answer.tokens))
        return Result(
            hypotheses=answers[: self.n],
            calls=self.rows,
            rows=self.rows,
            lm_calls=self.rows if any(part.lm_calls for part in parts) else 0,
            status="budget" if self.out_of_budget else "complete" if answers else "incomplete",
            partial=None if answers else parts[0].partial,
        )
