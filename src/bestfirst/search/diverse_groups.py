"""Groups: several beam searches of one input that take turns, each penalised for tokens that earlier groups chose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .any_order import AnyOrderSearch
from .hypothesis import Hypothesis, Successors
from .result import Answer, Result


class Groups:
    """Diverse beam search (Vijayakumar et al. 2018) with the Hamming penalty, level by level.

    A token costs `penalty` for each unfinished hypothesis of an earlier group that ends in it at this length, as in Hugging
    Face's group beam search. A level of all groups may be scored in one forward pass: the penalty matters only when children are
    pushed, and groups push in turn. Any token may become costly, so as many successors matter as all groups together are wide.
    """

    def __init__(self, searches: Sequence[AnyOrderSearch], penalty: float, n: int, max_calls: int | None = None) -> None:
        self.searches = searches
        self.penalty = penalty
        self.n = n
        self.max_calls = max_calls
        self.root = searches[0].root  # scored once, for all groups
        self.rows = 0
        self.whole_levels = True
        self.level_rows = sum(search.level_rows for search in searches)
        self.width = sum(search.width for search in searches)
        self.out_of_budget = False
        self._level: list[list[Hypothesis]] = [[self.root]]  # by group, the hypotheses of the current level
        self._scored: dict[Hypothesis, Successors] = {}

    def frontier(self, m: int) -> list[Hypothesis]:
        """Up to `m` hypotheses of the current level that are not scored yet; empty when every group is done."""
        unscored = [y for group in self._level for y in group if y not in self._scored]
        if self.max_calls is not None:
            self.out_of_budget = self.rows >= self.max_calls and bool(unscored)
            m = min(m, self.max_calls - self.rows)
        return unscored[:m]

    def commit(self, y: Hypothesis, successors: Successors) -> None:
        """Keep the successors of `y`; after the last of a level, let all groups push their children, one after the other."""
        self._scored[y] = successors
        self.rows += 1
        if len(self._scored) < sum(len(group) for group in self._level):
            return
        chosen: Counter[int] = Counter()
        for i, search in enumerate(self.searches):
            if y is self.root:
                search.root.state = y.state
                search.commit(search.root, self._penalised(chosen, successors))
            else:
                for z in self._level[i]:
                    search.commit(z, self._penalised(chosen, self._scored[z]))
            beams = search.agenda.beams
            if len(beams) > y.length + 1:
                chosen.update(z.token for z in beams[y.length + 1].members if not z.finished)
        self._level = [search.frontier(int(search.strategy.k)) for search in self.searches]
        self._scored = {}

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

    def dismantle(self) -> None:
        for search in self.searches:
            search.dismantle()
