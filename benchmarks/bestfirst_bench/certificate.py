"""The certificate: the fewest calls with which any exact search can be certain of beam search's answers.

It is computed from the beams of a level-by-level beam search, without best-first search. A hypothesis must be scored if a
continuation of it that costs nothing would be among the answers (docs/algorithm.md, "What a call is"). So the ratio of `calls` to
this number checks best-first search. It holds for every score that is a function of a value and a length, and for both rules for
finished hypotheses. Under a stop that changes the answers it is a lower bound (`StoppedBeams`). `tests/bench/test_certificate.py`
compares it with the references of the search's own tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

from bestfirst.search import Hypothesis, LevelStop, Patience, Score, Strategy, TopFinished, Trace
from bestfirst.search.search_tree import SearchTree
from bestfirst.search.trace import Event
from bestfirst.strategies import BestIsWorse, FirstFinished

Place = tuple[float, float, tuple[int, ...]]  # (-score, length, tokens): the total order that all algorithms use
NOWHERE: Place = (inf, inf, ())


class BeamLimits(NamedTuple):
    """The places that a hypothesis of one length must precede: the k-th on the beam; the k-th unfinished one (`leave`); the k-th
    on this and every longer beam (`keep`). By value under `leave`, by score under `keep`."""

    kth: Place
    unfinished: Place = NOWHERE
    ever: Place = NOWHERE


class Member(NamedTuple):
    """What the certificate needs of a hypothesis on a beam, kept after the search's tree is dismantled."""

    rank: Place
    place: Place
    value: float
    finished: bool

    @classmethod
    def of(cls, y: Hypothesis) -> Member:
        return cls(y.rank, (-y.worth, y.length, y.tokens), y.value, y.finished)


class FullBeams(Trace):
    """A trace that collects the beams of a level-by-level beam search, which stops by bounds if at all."""

    proven = True  # whether `least` is the exact number, not a lower bound

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
        """Nothing to do: only the beams matter."""

    text = result  # type: ignore[assignment]

    def least(self) -> int:
        """The number of hypotheses that must be scored for the n best answers."""
        limits, answers = self._limits()
        nth = answers[self._n - 1] if len(answers) >= self._n else NOWHERE
        going = [y for members in self._members[:-1] for y in members if not y.finished]
        if self._score.bound(0.0, 0, self._context) == inf:
            return len(going)  # without a bound, a hypothesis that is not scored might have any score
        return sum(any((-score, *y.place[1:]) < nth for score in self._attainable(y, limits)) for y in going)

    def _limits(self) -> tuple[list[BeamLimits], list[Place]]:
        """The limits for each length; and the answers, best first."""
        out, k = [], self._k
        finished: list[Member] = []  # answers; under `keep`, those that hold a slot on the current beam
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
        """The scores with which continuations of `y` could become answers."""
        _, length_of_y, tokens = y.place
        for length in range(int(length_of_y) + 1, len(limits)):
            score, limit = self._score.final(y.value, length, self._context), limits[length]
            place = (-score, length_of_y, tokens)
            if not limit.ever < place if self._keep else -limit.kth[0] <= y.value:
                yield score
            if limit.kth < place if self._keep else -limit.unfinished[0] > y.value:
                return


# -- for stops that are not bounds -----------------------------------------------------------------------------------------

Level = list[Hypothesis]


class StoppedBeams(FullBeams):
    """A trace that collects the beams of a level-by-level beam search which ends when its stop says so.

    Hugging Face's False and True, patience, CTranslate2's and OpenNMT's stops end beam search before its answers are certain, so
    a search must also know when it ends. A member of a beam must be scored if some successors of it, unknown before, would change
    the answers. Three kinds of successors are tried, each of which leaves everything known about other hypotheses as it is. The
    number of members for which one of them changes the answers is a lower bound, and not always the least number:

    1. no successors, for a member that is a prefix of an answer;
    2. an additional end that costs nothing. Where finished hypotheses leave the beam, no other beam changes, so the stop can be
       evaluated again level by level; under the other rules only whether the next level is the last is known;
    3. a chain of tokens that cost nothing, and an end (`leave`), if it is an answer before the n-th wherever the stop lets it
       end.

    `docs/algorithm.md` has the argument for the third; `tests/bench/test_certificate.py` compares with trials on random models.
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
        """A lower bound on the number of hypotheses that must be scored."""
        return len(self.needed())

    def needed(self) -> list[Hypothesis]:
        """The members of beams for which some successors would change the answers."""
        self._beams: list[Level] = []
        for level in (level for level in self._levels if level):
            held = [y for y in self._beams[-1] if y.finished] if self._keep and self._beams else []
            self._beams.append(sorted({*level, *held}, key=by_rank)[: self._k if self._keep else None])
        self._ends = [[y for y in level if y.finished] for level in self._beams]
        known = self._answers_of(self._ends)[: self._n]
        self._expected = [y.tokens for y in known]
        self._nth = known[-1].key if len(known) == self._n else (inf, inf, ())
        return [y for level in self._beams[:-1] for y in level if not y.finished and self._is_needed(y)]

    def _answers_of(self, ends: Sequence[Level]) -> Level:
        """The answers, best first, if `ends` are the finished members of the beams so far."""
        return sorted(ends[-1] if self._keep else (y for level in ends for y in level), key=by_place)

    # -- which members are needed ----------------------------------------------------------------------------------------------

    def _is_needed(self, y: Hypothesis) -> bool:
        if any(tokens[: y.length] == y.tokens for tokens in self._expected):
            return True
        return self._end_changes_answers(y) or (self._strategy.finished == "leave" and self._chain_changes_answers(y))

    def _end_changes_answers(self, y: Hypothesis) -> bool:
        """Whether an end of `y` that costs nothing changes the answers (the second kind)."""
        at, end = y.length + 1, self._end_of(y)
        width = self._k - (sum(map(len, self._ends[:at])) if self._strategy.finished == "shrink" else 0)
        level = sorted([end, *(z for z in self._beams[at] if z.tokens != end.tokens)], key=by_rank)
        ends = [*self._ends[:at], [z for z in level[:width] if z.finished]]
        for length in range(at, len(self._beams)):
            answers = self._answers_of(ends)
            over = length == self._context.n_max or all(z.finished for z in level)
            if over or self._strategy.stop.at_level(self._stop_view(length, level, answers), length):  # type: ignore[attr-defined]
                return [z.tokens for z in answers[: self._n]] != self._expected
            if self._strategy.finished != "leave" or length + 1 == len(self._beams):
                break  # the successors at later levels were never scored
            level = self._beams[length + 1]
            ends.append(self._ends[length + 1])
        return False

    def _end_of(self, y: Hypothesis) -> Hypothesis:
        end = Hypothesis(y, self._eos, y.value, y.logprob, True)
        end.worth = end.bound = end.reach = self._score.final(end.value, end.length, self._context)
        end.rank = (-(end.worth if self._keep else end.value), end.length, end.tokens)
        end.key = (-end.worth, end.length, end.tokens)
        return end

    def _stop_view(self, length: int, level: Level, answers: Level) -> Any:
        """A stand-in for the search with what stops read of it at this level."""
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

    def _chain_changes_answers(self, y: Hypothesis) -> bool:
        """Whether `y`, extended by tokens and an end that cost nothing, is an answer before the n-th (the third kind)."""
        for length in self._lengths_reached(y):
            if self._count_ahead(y, length) < self._k:
                tokens = (*y.tokens, *[self._eos] * (length - y.length))
                if (-self._score.final(y.value, length, self._context), length, tokens) < self._nth:
                    return True
        return False

    def _lengths_reached(self, y: Hypothesis) -> Iterator[int]:
        """The lengths that such a chain certainly reaches before the stop."""
        stop, finished = self._strategy.stop, sum(map(len, self._ends[: y.length + 1]))
        enough = stop.enough(self._strategy, self._score) if isinstance(stop, Patience) else inf
        last = max((z.value for z in self._beams[-1] if not z.finished), default=-inf)
        for length in range(y.length + 1, self._context.n_max + 1):
            going = [z.value for z in self._beams[length] if not z.finished] if length < len(self._beams) else []
            if length >= len(self._beams) and last > y.value:
                return  # unknown how many are ahead of it there
            yield length
            if sum(value > y.value for value in going) >= self._k:
                return
            finished += self._most_ends(y, length)
            known = isinstance(stop, BestIsWorse) or enough < inf
            if not known or finished >= enough or (enough == inf and self._enough_as_good(max([y.value, *going]), length)):
                return

    def _enough_as_good(self, value: float, length: int) -> bool:
        """Whether enough answers up to this length score no less than an unfinished hypothesis of this value."""
        rival = self._score.final(value, length, self._context)
        return sum(z.worth >= rival for level in self._ends[: length + 1] for z in level) >= max(self._n, self._k)

    def _most_ends(self, y: Hypothesis, length: int) -> int:
        """The most hypotheses that can finish at this length beside the chain: better ones, and some in the remaining slots."""
        ahead = self._count_ahead(y, length)
        better = sum(z.value > y.value for z in self._ends[length]) if length < len(self._ends) else 0
        most = better + max(0, self._k - 1 - ahead)
        return min(most, len(self._ends[length])) if length == y.length + 1 else most

    def _count_ahead(self, y: Hypothesis, length: int) -> int:
        """The number of hypotheses of this length with a greater value."""
        return sum(z.value > y.value for z in self._beams[length]) if length < len(self._beams) else 0


by_rank, by_place = attrgetter("rank"), attrgetter("key")


def certificate_for(strategy: Strategy, score: Score, n: int) -> type[FullBeams] | None:
    """The trace that counts the least calls of this search; None if there is none, or if the search goes best-first."""
    stop = strategy.stop
    if not strategy.level_by_level or strategy.order.relies_on_bound or strategy.k == inf or not score.exact(strategy.finished):
        return None
    bound = score.monotonic and isinstance(stop, (TopFinished, BestIsWorse))  # for the n best answers these are bounds too
    if stop.exact or bound or (score.value_only and n == 1 and isinstance(stop, FirstFinished)):
        return FullBeams
    return StoppedBeams if isinstance(stop, LevelStop) else None
