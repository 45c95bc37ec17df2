"""StoppedBeams: calls that no search can do without which returns beam search's answers under a stop that is not a bound.

Hugging Face's False and True, patience, CTranslate2's and OpenNMT's stops end beam search before its answers are certain, so what
has to be known is also when it ends. A member of a beam must be scored if its successors, which nobody knows before, could be
such that the answers are others. Three kinds of successors are tried here, each of which leaves what is known of all other
hypotheses as it is; so the members for which one of them works are a bound from below, and not always the least:

1. none at all, below a member from which an answer comes;
2. an end that costs nothing, next to the successors it has: where finished hypotheses leave the beam, no other beam changes, so
   the stop can be asked again, level by level; under the other rules it is known only whether the next level is the last;
3. a chain of tokens that cost nothing and an end (`leave`), if it is an answer before the n-th wherever the stop lets it end.

`docs/algorithm.md` has the argument for the third, `tests/bench/test_certificate.py` compares with trials on random models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from types import SimpleNamespace
from typing import Any

from bestfirst.search import LevelStop, Patience, Strategy
from bestfirst.search.hypothesis import Hypothesis
from bestfirst.search.objective import Objective
from bestfirst.search.stops import TopFinished
from bestfirst.search.trace import Event
from bestfirst.search.tree import SearchTree
from bestfirst.strategies import BestIsWorse, FirstFinished

from .certificate import FullBeams

Level = list[Hypothesis]


class StoppedBeams(FullBeams):
    """Follows a beam search that goes level by level until its stop says so; collects its beams."""

    proven = False

    def begin(self, search: SearchTree) -> None:
        super().begin(search)
        self._strategy, self._policy, self._eos = search.strategy, search.policy, min(search.eos, default=-1)
        self._levels: list[set[Hypothesis]] = [set() for _ in self._members]

    def note(self, event: Event, y: Hypothesis, **why: Any) -> None:
        if event == "push":
            self._levels[y.length].add(y)
        elif event == "prune" and (not y.finished or why["at"] == y.length):
            self._levels[y.length].discard(y)

    def least(self) -> int:
        """How many hypotheses are certain to be needed; there may be more."""
        return len(self.needed())

    def needed(self) -> list[Hypothesis]:
        """Those whose successors could be such that the answers are others."""
        self._beams: list[Level] = []
        for level in (level for level in self._levels if level):
            held = [y for y in self._beams[-1] if y.finished] if self._keep and self._beams else []
            self._beams.append(sorted({*level, *held}, key=by_rank)[: self._k if self._keep else None])
        self._ends = [[y for y in level if y.finished] for level in self._beams]
        known = self._pool(self._ends)[: self._n]
        self._expected = [y.tokens for y in known]
        self._nth = known[-1].key if len(known) == self._n else (inf, inf, ())
        return [y for level in self._beams[:-1] for y in level if not y.finished and self._is_needed(y)]

    def _pool(self, ends: Sequence[Level]) -> Level:
        """The answers, if these are the finished ones of the beams so far, best first."""
        return sorted(ends[-1] if self._keep else (y for level in ends for y in level), key=by_place)

    # -- who is needed -------------------------------------------------------------------------------------------------------

    def _is_needed(self, y: Hypothesis) -> bool:
        if any(tokens[: y.length] == y.tokens for tokens in self._expected):
            return True
        return self._an_end_changes(y) or (self._strategy.finished == "leave" and self._a_chain_changes(y))

    def _an_end_changes(self, y: Hypothesis) -> bool:
        """Whether an end of `y` that costs nothing gives other answers."""
        at, end = y.length + 1, self._end_of(y)
        width = self._k - (sum(map(len, self._ends[:at])) if self._strategy.finished == "shrink" else 0)
        level = sorted([end, *(z for z in self._beams[at] if z.tokens != end.tokens)], key=by_rank)
        ends = [*self._ends[:at], [z for z in level[:width] if z.finished]]
        for length in range(at, len(self._beams)):
            answers = self._pool(ends)
            over = length == self._context.n_max or all(z.finished for z in level)
            if over or self._strategy.stop.at_level(self._seen(length, level, answers), length):  # type: ignore[attr-defined]
                return [z.tokens for z in answers[: self._n]] != self._expected
            if self._strategy.finished != "leave" or length + 1 == len(self._beams):
                break  # what would come then was never scored
            level = self._beams[length + 1]
            ends.append(self._ends[length + 1])
        return False

    def _end_of(self, y: Hypothesis) -> Hypothesis:
        end = Hypothesis(y, self._eos, y.value, y.logprob, True)
        end.worth = end.bound = end.reach = self._score.final(end.value, end.length, self._context)
        end.rank = (-(end.worth if self._keep else end.value), end.length, end.tokens)
        end.key = (-end.worth, end.length, end.tokens)
        return end

    def _seen(self, length: int, level: Level, answers: Level) -> Any:
        """What a stop asks of a search, at this level."""
        beams = [SimpleNamespace(members=level if t == length else self._beams[t]) for t in range(length + 1)]
        return SimpleNamespace(
            answers=answers,
            n=self._n,
            strategy=self._strategy,
            policy=self._policy,
            score=self._score,
            context=self._context,
            agenda=SimpleNamespace(beams=beams),
            bound_holds=True,
            led_by_answer=any(beam.members and beam.members[0].finished for beam in beams),
            best_unfinished=lambda _: next((z for z in level if not z.finished), None),
        )

    def _a_chain_changes(self, y: Hypothesis) -> bool:
        """Whether `y` with an end that costs nothing further on, and the tokens up to there too, is an answer before the n-th."""
        for length in self._reached(y):
            if self._ahead(y, length) < self._k:
                tokens = (*y.tokens, *[self._eos] * (length - y.length))
                if (-self._score.final(y.value, length, self._context), length, tokens) < self._nth:
                    return True
        return False

    def _reached(self, y: Hypothesis) -> Iterator[int]:
        """The lengths that such a chain is certain to get to before the stop."""
        stop, found = self._strategy.stop, sum(map(len, self._ends[: y.length + 1]))
        enough = stop.enough(self._seen(0, [], [])) if isinstance(stop, Patience) else inf
        last = max((z.value for z in self._beams[-1] if not z.finished), default=-inf)
        for length in range(y.length + 1, self._context.n_max + 1):
            going = [z.value for z in self._beams[length] if not z.finished] if length < len(self._beams) else []
            if length >= len(self._beams) and last > y.value:
                return  # who is ahead there is not known
            yield length
            if sum(value > y.value for value in going) >= self._k:
                return
            found += self._most_ends(y, length)
            known = isinstance(stop, BestIsWorse) or enough < inf
            if not known or found >= enough or (enough == inf and self._as_good(max([y.value, *going]), length)):
                return

    def _as_good(self, value: float, length: int) -> bool:
        """Whether enough answers up to this length are worth no less than an unfinished one of this value."""
        rival = self._score.final(value, length, self._context)
        return sum(z.worth >= rival for level in self._ends[: length + 1] for z in level) >= max(self._n, self._k)

    def _most_ends(self, y: Hypothesis, length: int) -> int:
        """How many may finish at this length beside the chain: those better than it, and who gets what it leaves."""
        ahead = self._ahead(y, length)
        better = sum(z.value > y.value for z in self._ends[length]) if length < len(self._ends) else 0
        most = better + max(0, self._k - 1 - ahead)
        return min(most, len(self._ends[length])) if length == y.length + 1 else most

    def _ahead(self, y: Hypothesis, length: int) -> int:
        """How many of this length have a greater value."""
        return sum(z.value > y.value for z in self._beams[length]) if length < len(self._beams) else 0


def by_rank(y: Hypothesis) -> Any:
    return y.rank


def by_place(y: Hypothesis) -> Any:
    return y.key


def follow(strategy: Strategy, score: Objective, n: int) -> type[FullBeams] | None:
    """Who can count the least calls of a beam search; None if nobody can, or if it goes best-first."""
    stop = strategy.stop
    if not strategy.level_by_level or strategy.order.relies_on_bound or strategy.k == inf or not score.exact(strategy.finished):
        return None
    same = score.monotonic and isinstance(stop, (TopFinished, BestIsWorse))  # as far as the n best go, these are bounds, too
    if stop.exact or same or (score.value_only and n == 1 and isinstance(stop, FirstFinished)):
        return FullBeams
    return StoppedBeams if isinstance(stop, LevelStop) else None
