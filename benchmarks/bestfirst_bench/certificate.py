"""The certificate: the fewest calls with which any exact search can know beam search's answers, from beam search's own beams.

A beam search level by level says what it kept at each length. From that, without best-first search, follows which hypotheses had
to be scored: those of which a continuation that costs nothing would be among the answers (docs/algorithm.md, "What a call is").
So `calls` over this number is a check of best-first search. For every score of a value and a length, and both rules for finished
hypotheses. Under a stop that makes another answer of it the number is a bound from below (`stopped_beams`).
`tests/bench/test_certificate.py` compares with the references of the search's own tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any, NamedTuple

from bestfirst.search import Trace
from bestfirst.search.hypothesis import Hypothesis
from bestfirst.search.trace import Event
from bestfirst.search.tree import SearchTree

Place = tuple[float, float, tuple[int, ...]]  # minus the score, length, tokens: the order of all algorithms
NOWHERE: Place = (inf, inf, ())


class Limits(NamedTuple):
    """What a hypothesis of one length must come before: the k-th on the beam, the k-th unfinished one (`leave`), the k-th on this
    and on every longer beam (`keep`). By value under `leave`, by score under `keep`."""

    kth: Place
    unfinished: Place = NOWHERE
    ever: Place = NOWHERE


class Member(NamedTuple):
    """A hypothesis that is on a beam: what of it is needed once the search has been taken apart."""

    rank: Place
    place: Place
    value: float
    finished: bool

    @classmethod
    def of(cls, y: Hypothesis) -> Member:
        return cls(y.rank, (-y.worth, y.length, y.tokens), y.value, y.finished)


class FullBeams(Trace):
    """Follows a beam search that goes level by level and stops, if at all, by bounds; collects its beams."""

    proven = True  # whether `least` is the number itself, as against a bound from below

    def begin(self, search: SearchTree) -> None:
        self._k, self._n, self._keep = int(search.strategy.k), search.n, search.policy.keep
        self._score, self._context = search.score, search.context
        self._members: list[set[Member]] = [set() for _ in range(search.context.n_max + 1)]

    def note(self, event: Event, y: Hypothesis, **why: Any) -> None:
        if event == "push":
            self._members[y.length].add(Member.of(y))
        elif event == "prune" and (not y.finished or why["at"] == y.length):
            self._members[y.length].discard(Member.of(y))

    def refuse(self, *_: Any, **__: Any) -> None:
        """What never was on a beam is of no concern."""

    def result(self, *_: Any) -> None:
        """Nor what came of it."""

    def text(self, *_: Any) -> None:
        """Nor how it reads."""

    def least(self) -> int:
        """How many hypotheses must be scored for the n best answers."""
        limits, answers = self._limits()
        nth = answers[self._n - 1] if len(answers) >= self._n else NOWHERE
        going = [y for members in self._members[:-1] for y in members if not y.finished]
        if self._score.bound(0.0, 0, self._context) == inf:
            return len(going)  # whatever is not scored might be worth anything
        return sum(any((-score, *y.place[1:]) < nth for score in self._attainable(y, limits)) for y in going)

    def _limits(self) -> tuple[list[Limits], list[Place]]:
        """By length, what has to be preceded; and the answers, best first."""
        out, k = [], self._k
        finished: list[Member] = []  # that hold a slot: under `keep`, of every beam up to here
        for members in self._members:
            beam = sorted({*members, *finished}) if self._keep else sorted(members)
            beam = beam[:k] if self._keep else beam
            going = [y.rank for y in beam if not y.finished]
            kth = beam[k - 1].rank if len(beam) >= k else NOWHERE
            out.append(Limits(kth, going[k - 1] if len(going) >= k else NOWHERE))
            finished = [y for y in beam if y.finished] + ([] if self._keep else finished)
        ever = NOWHERE
        for length in reversed(range(len(out))):
            ever = min(ever, out[length].kth)
            out[length] = out[length]._replace(ever=ever)
        return out, sorted(y.place for y in finished)

    def _attainable(self, y: Member, limits: list[Limits]) -> Iterator[float]:
        """The scores with which continuations of `y` could be accepted."""
        _, own, tokens = y.place
        for length in range(int(own) + 1, len(limits)):
            score, limit = self._score.final(y.value, length, self._context), limits[length]
            place = (-score, own, tokens)
            if not limit.ever < place if self._keep else -limit.kth[0] <= y.value:
                yield score
            if limit.kth < place if self._keep else -limit.unfinished[0] > y.value:
                return
