"""Algorithm 2 with any order of scoring and every feature of a strategy, as an object that any engine can drive.

    search = AnyOrderSearch(best_first_beam(k), score=LogProbability(), eos={0}, context=Context(n_max=50))
    while (y := search.needed()) is not None:
        search.commit(y, successors_of(y))      # ask the model
    search.result()

In this strict order it is Algorithm 2 of the paper, corrected (`algorithm_2`): `needed` pops, `commit` pushes. An engine may also
score ahead: `frontier(m)` names the m hypotheses that will most likely be needed, and `commit` takes them in any order. Neither
the result nor `calls` changes, because a beam keeps the best k of everything known, and the descendants of a hypothesis that
falls off are discarded. `docs/algorithm.md` has the proof; `tests/search/` has the properties.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from math import inf

from .agenda import Beam, by_key
from .hypothesis import Hypothesis, Key, Successors
from .policy import TOLERANCE, BrokenLaw, clamp_rounding
from .result import Answer, Result
from .search_tree import SearchTree
from .stops import Answered

NOWHERE: Key = (inf, inf, ())  # after every other key


class AnyOrderSearch(SearchTree):
    """The search of one input: what is known of the tree (`SearchTree`), what to score next, and the result."""

    # -- what to score -----------------------------------------------------------------------------------------------

    def needed(self) -> Hypothesis | None:
        """The hypothesis that must be scored next, or None when the search is over."""
        frontier = self.frontier(1)
        return frontier[0] if frontier else None

    def frontier(self, m: int) -> list[Hypothesis]:
        """Up to `m` hypotheses to score now, the needed one first, then likely ones. Empty when the search is over."""
        if self.out_of_budget:
            return []
        self._requeue()
        chosen: list[Hypothesis] = []
        while len(chosen) < (1 if self.policy.one_by_one else m):
            y = self.first()
            if y is None or self.strategy.stop(self, y) or (chosen and not self.strategy.order.together(chosen[0], y)):
                break
            self.agenda.dequeue(y)
            if (beam := self._hopeless(y)) is not None:
                self._pruned.append(y)
                self._note_out(y, "hopeless", beam)
            elif y not in chosen:  # a rebuilt beam queues it again
                chosen.append(y)
        if chosen and self.max_calls is not None and self.rows >= self.max_calls:
            self.out_of_budget = True
            self._insert_finished()
            return []
        self._frontier = chosen
        return chosen

    def first(self) -> Hypothesis | None:
        """The open hypothesis that comes first in the order. Creates the children that could precede it."""
        while True:
            head = self.agenda.head()
            if isinstance(head, Beam):
                self._make_child(head)
            elif head is None or not self._demote(head):
                return head

    def _demote(self, y: Hypothesis) -> bool:
        """Queue `y` by what it can attain, if that is now less than its key says. Returns whether it was moved."""
        if not self.policy.by_attainable:
            return False
        best, _ = self._attainable(y)
        if best == -inf or -best <= y.key[0]:
            return False
        self.agenda.dequeue(y)
        y.key = (-best, y.length, y.tokens)
        self.agenda.enqueue(y)
        self._demoted.append(y)
        return True

    def _requeue(self) -> None:
        """Queue again the hypotheses of the last frontier that were not scored."""
        for y in self._frontier:
            if y.on_beam and y.successors is None:
                self.agenda.enqueue(y)
        self._frontier = []

    def _attainable(self, y: Hypothesis) -> tuple[float, Beam | None]:
        """The best score with which a continuation of `y` can be accepted, and the beam at which the last one falls off.

        At most `bound`: only lengths that a continuation can get to count. -inf: `y` is hopeless (Theorem 4.4). At any length a
        continuation is worth no more than the value of `y` would be there, and it is off the beam where k members are better.
        Proof: docs/algorithm.md; that no search can do with less: tests/search/test_audit.py.
        """
        beams = self.agenda.beams
        if self.strategy.level_by_level:
            beams = beams[: y.length + 2]  # longer beams do not exist yet when it is the turn of `y`
        return self._attainable_kept(y, beams) if self.policy.keep else self._attainable_left(y, beams)

    def _attainable_left(self, y: Hypothesis, beams: list[Beam]) -> tuple[float, Beam | None]:
        """`_attainable` under `leave`: continuations go on until k unfinished members of a beam have a greater value."""
        value, k = y.value, self.strategy.k
        longer = range(y.length + 1, len(beams))
        end = next((t for t in longer if beams[t].unfinished >= k and beams[t].members[-1].value > value), None)
        if end is None:
            beyond = self._bound_beyond(y, len(beams) - 1)
            if beyond >= y.bound:  # a score that rises with length: shorter lengths allow less
                return beyond, None
        else:
            beyond, longer = -inf, range(y.length + 1, end)
        free = (t for t in longer if (kth := beams[t].kth()) is None or kth.value <= value)
        best = max((self.score.final(value, t, self.context) for t in free), default=-inf)
        return max(best, beyond), beams[-1 if end is None else end]

    def _attainable_kept(self, y: Hypothesis, beams: list[Beam]) -> tuple[float, Beam | None]:
        """`_attainable` under `keep`: a finished continuation must hold a slot at its own and at every later length."""
        best = -inf
        slots: list[Key] = []  # from the longest beam down: the rank that a finished hypothesis needs to hold its slot to the end
        for beam in reversed(beams[y.length + 1 :]):
            kth = beam.kth()
            slots.append(min(NOWHERE if kth is None else kth.rank, slots[-1] if slots else NOWHERE))
        for length in range(y.length + 1, len(beams)):
            place = (-self.score.final(y.value, length, self.context), y.length, y.tokens)
            if place <= slots[len(beams) - 1 - length]:
                best = max(best, -place[0])
            kth = beams[length].kth()
            if kth is not None and kth.rank < place:
                return best, beams[length]
        return max(best, self._bound_beyond(y, len(beams) - 1)), beams[-1]

    def _bound_beyond(self, y: Hypothesis, last: int) -> float:
        """The best score that a continuation of `y` can reach beyond length `last`, the longest with a beam."""
        if last == y.length:
            return y.bound
        return self.score.bound(y.value, last, self.context) if last < self.context.n_max else -inf

    def _hopeless(self, y: Hypothesis) -> Beam | None:
        """The beam at which all continuations of `y` are certain to fall off, or None (the paper's Theorem 4.4)."""
        if not self.policy.prunes:
            return None
        if not self.strategy.order.relies_on_bound:  # plain Algorithm 2 in another order: popped hypotheses hold their slots
            for beam in self.agenda.beams[y.length + 1 :]:
                if beam.full and all(z.key < y.key if z.finished else z.successors is not None for z in beam.members):
                    return beam
            return None
        best, last = self._attainable(y)
        return last if best == -inf else None

    # -- what was scored ---------------------------------------------------------------------------------------------

    def commit(self, y: Hypothesis, successors: Successors) -> None:
        """Close `y` with its successors: push its children (Alg. 2, lines 11 to 15)."""
        if self.policy.relies_on_bound:
            successors = clamp_rounding(successors)
        if self.policy.strict_values:
            self._check_strict(y, successors)
        if self.policy.by_score:
            ranked = self._by_score(y, successors)
            if ranked is None:
                return  # it stays open: `frontier` returns it again
            successors = ranked
        y.successors = successors
        y.children = {}
        self.rows += 1
        if not y.on_beam:
            self._note("pop", y, ahead=True)
            return  # it fell off while it was being scored; its successors are kept, for it may come back
        self.agenda.dequeue(y)
        self._note("pop", y)
        if self.strategy.order.depends_on_past:
            self.agenda.beams[y.length].lock(y)
        self._push_children(y)
        if self.strategy.queue_capacity is not None:
            self._evict(self.strategy.queue_capacity)

    def ask_again(self) -> None:
        """Ask for few successors, although of equal scores tokens choose; for all once those leave open which are the k best.

        For a driver that scores a hypothesis a second time when `frontier` returns it again. `width` may change with each commit.
        """
        self._asks_again = self.strategy.queue_capacity is None and self.few < inf

    def _by_score(self, y: Hypothesis, successors: Successors) -> Successors | None:
        """The successors in the order in which beams rank them; None if some that were not asked for may be among the k best."""
        values, tokens, logprobs, ending = successors
        k, end = self.strategy.k, len(values)

        def cost(j: int) -> float:
            return -self.score.final(y.value + values[j], y.length + 1, self.context)

        if self._asks_again:
            if y is self.root:
                self.width = self.few  # of the root all were asked for: a scorer reads its state, and overwrites it
            if end > k:
                end = bisect_right(range(end), cost(int(k) - 1), lo=int(k), key=cost)  # those after it rank after k others
                if end == len(values) and y is not self.root and y not in self._asked_again:
                    self.width = inf
                    self._asked_again.add(y)
                    return None
        costs = [cost(j) for j in range(end)]
        order = sorted(range(end), key=lambda j: (costs[j], tokens[j]))
        logprobs = None if logprobs is None else [logprobs[j] for j in order]
        return Successors([values[j] for j in order], [tokens[j] for j in order], logprobs, ending)

    def _check_strict(self, y: Hypothesis, successors: Successors) -> None:
        """Raise BrokenLaw for two values with one score: under `keep` the lower may win the slot (docs/scores.md)."""
        if not successors.values:
            return
        best, worst = y.value + successors.values[0], y.value + successors.values[-1]
        score = self.score.final(best, y.length + 1, self.context)
        if best - worst > TOLERANCE * (1 + abs(best)) and score == self.score.final(worst, y.length + 1, self.context):
            raise BrokenLaw(
                f"values {worst:.6g} and {best:.6g} of children of {list(y.tokens)} have the same score, {score:.6g}: under "
                "finished='keep' a score that rises with length must rise strictly with the value; use finished='leave' or "
                "strategy='beam', or mend the score"
            )

    def _evict(self, capacity: int) -> None:
        """Memory-reduced search (section 3.3): while more than `capacity` are queued, drop the worst of the shortest length."""
        self._requeue()
        if self.agenda.queued() > capacity:
            for y, beam in [(y, at) for y in self.agenda.in_order() if (at := self._hopeless(y)) is not None]:
                self.agenda.dequeue(y)
                self._pruned.append(y)
                self._note_out(y, "hopeless", beam)
        for _ in range(self.agenda.queued() - capacity):
            beam = next(beam for beam in self.agenda.beams if beam.open)
            worst = beam.open[-1]
            worst.evicted = True
            beam.discard(worst)
            self._fall_off(worst, "evict", beam)
            self.evicted += 1

    # -- the result --------------------------------------------------------------------------------------------------

    @property
    def calls(self) -> int:  # type: ignore[override]
        """Hypotheses that had to be scored: the paper's metric. In strict order this is `rows`.

        If more were scored ahead of their turn, only those count that strict order would score: on a beam, not hopeless, and
        before the point where it stops (`test_calls_equal_the_certificate`).
        """
        return self.rows if self._scored_in_order else sum(1 for _ in self._certificate())

    @property
    def _scored_in_order(self) -> bool:
        """Whether all that was scored counts as a call."""
        return not (self.policy.relies_on_bound and self.strategy.any_order) or self.out_of_budget

    def _certificate(self) -> Iterator[Hypothesis]:
        """The closed hypotheses that any exact search has to score (docs/algorithm.md, "What a call is")."""
        closed = (y for beam in self.agenda.beams for y in beam.members if y.successors is not None)
        for y in closed:
            if self._hopeless(y) is None:
                if self.policy.by_attainable:
                    y.key = (-self._attainable(y)[0], y.length, y.tokens)
                if not self.strategy.stop(self, y):
                    yield y

    def best_unfinished(self, length: int) -> Hypothesis:
        """The first unfinished member of this length: level by level, no other has or can reach a better score."""
        return next(y for y in self.agenda.beams[length].members if not y.finished)

    @property
    def led_by_answer(self) -> bool:
        """Whether the first member of some beam is finished (for `strategies.FirstFinished`)."""
        return any(beam.members and beam.members[0].finished for beam in self.agenda.beams)

    def certified(self) -> list[Answer]:
        if not (self.strategy.any_order and self.policy.guaranteed and isinstance(self.strategy.stop, Answered)):
            return []
        y = self.needed()
        if self.out_of_budget:
            return []
        last = self.n if y is None else min(self.n, bisect_left(self.answers, y.key, key=by_key))
        return [Answer.of(answer) for answer in self.answers[:last]]

    def result(self) -> Result:
        counted = getattr(self.strategy.stop, "counted", None)  # answers that the stopping rule counts, if not all
        answers = self.answers[: self.n] if counted is None else list(counted(self))[: self.n]
        broken = bool(self.evicted) or self.out_of_budget or self.short_of_children
        result = self.make_result([Answer.of(y) for y in answers], self.root if answers else self._best_partial(), broken)
        if self.trace is not None:
            self.trace.result(result, answers, None if self._scored_in_order else [*self._certificate()])
        return result

    def dismantle(self) -> None:
        stack = [self.root]
        while stack:
            y = stack.pop()
            if y.successors is not None:
                stack += y.children.values()
                y.children = {}
        self.agenda.beams.clear()
        self.answers, self._frontier, self._pruned = [], [], []

    def _best_partial(self) -> Hypothesis:
        """The best unfinished hypothesis of the longest beam: what Algorithm 1 returns when nothing completes."""
        for beam in reversed(self.agenda.beams):
            while beam.cursors and not beam.members:
                self._make_child(beam)
            if beam.members:
                return beam.members[0]
        return self.root
