"""The certificate: the fewest calls with which any exact search can know beam search's answers, from beam search's own beams.

A beam search level by level says what it kept at each length. From that, without best-first search, follows which hypotheses had
to be scored: those of which a continuation that costs nothing would be among the answers (docs/algorithm.md, "What a call is").
So `calls` over this number is a check of best-first search. For every score of a value and a length, and both rules for finished
hypotheses. Under a stop that makes another answer of it the number is a bound from below (`StoppedBeams`).
`tests/bench/test_certificate.py` compares with the references of the search's own tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from types import SimpleNamespace
from typing import Any, NamedTuple

from bestfirst.search import Hypothesis, LevelStop, Patience, Score, Strategy, TopFinished, Trace
from bestfirst.search.search_tree import SearchTree
from bestfirst.search.trace import Event
from bestfirst.strategies import BestIsWorse, FirstFinished

Place = tuple[float, float, tuple[int, ...]]  # minus the score, length, tokens: the order of all algorithms
NOWHERE: Place = (inf, inf, ())


class BeamLimits(NamedTuple):
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

    def result(self, *_: Any) -> None:
        """What came of it is of no concern."""

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

    def _limits(self) -> tuple[list[BeamLimits], list[Place]]:
        """By length, what has to be preceded; and the answers, best first."""
        out, k = [], self._k
        finished: list[Member] = []  # that hold a slot: under `keep`, of every beam up to here
        for members in self._members:
            beam = sorted({*members, *finished}) if self._keep else sorted(members)
            beam = beam[:k] if self._keep else beam
            going = [y.rank for y in beam if not y.finished]
            kth = beam[k - 1].rank if len(beam) >= k else NOWHERE
            out.append(BeamLimits(kth, going[k - 1] if len(going) >= k else NOWHERE))
            finished = [y for y in beam if y.finished] + ([] if self._keep else finished)
        ever = NOWHERE
        for length in reversed(range(len(out))):
            ever = min(ever, out[length].kth)
            out[length] = out[length]._replace(ever=ever)
        return out, sorted(y.place for y in finished)

    def _attainable(self, y: Member, limits: list[BeamLimits]) -> Iterator[float]:
        """The scores with which continuations of `y` could be accepted."""
        _, own, tokens = y.place
        for length in range(int(own) + 1, len(limits)):
            score, limit = self._score.final(y.value, length, self._context), limits[length]
            place = (-score, own, tokens)
            if not limit.ever < place if self._keep else -limit.kth[0] <= y.value:
                yield score
            if limit.kth < place if self._keep else -limit.unfinished[0] > y.value:
                return


# -- under a stop that is not a bound --------------------------------------------------------------------------------------

Level = list[Hypothesis]


class StoppedBeams(FullBeams):
    """Follows a beam search that goes level by level until its stop says so; collects its beams.

    Hugging Face's False and True, patience, CTranslate2's and OpenNMT's stops end beam search before its answers are certain,
    so what has to be known is also when it ends. A member of a beam must be scored if its successors, which nobody knows
    before, could be such that the answers are others. Three kinds of successors are tried here, each of which leaves what is
    known of all other hypotheses as it is; so the members for which one of them works are a bound from below, and not always
    the least:

    1. none at all, below a member from which an answer comes;
    2. an end that costs nothing, next to the successors it has: where finished hypotheses leave the beam, no other beam changes,
       so the stop can be asked again, level by level; under the other rules it is known only whether the next level is the last;
    3. a chain of tokens that cost nothing and an end (`leave`), if it is an answer before the n-th wherever the stop lets it end.

    `docs/algorithm.md` has the argument for the third, `tests/bench/test_certificate.py` compares with trials on random models.
    """

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


def follow(strategy: Strategy, score: Score, n: int) -> type[FullBeams] | None:
    """Who can count the least calls of a beam search; None if nobody can, or if it goes best-first."""
    stop = strategy.stop
    if not strategy.level_by_level or strategy.order.relies_on_bound or strategy.k == inf or not score.exact(strategy.finished):
        return None
    same = score.monotonic and isinstance(stop, (TopFinished, BestIsWorse))  # as far as the n best go, these are bounds, too
    if stop.exact or same or (score.value_only and n == 1 and isinstance(stop, FirstFinished)):
        return FullBeams
    return StoppedBeams if isinstance(stop, LevelStop) else None
