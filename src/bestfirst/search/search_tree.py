"""SearchTree: what is known of the tree of hypotheses, and how it grows: children are pushed, beams are capped."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import Any

from .agenda import Agenda, Beam, by_key
from .hypothesis import Hypothesis, logprob_of
from .policy import TOLERANCE, AskedSearch, BrokenLaw
from .table_1 import Strategy
from .trace import Event, Trace


class SearchTree(AskedSearch):
    """An agenda, the answers so far, and how they change: the part of `AnyOrderSearch` that does not choose what to score."""

    def __init__(
        self,
        strategy: Strategy,
        *,
        ends: Callable[[tuple[int, ...]], bool] | None = None,
        merge: Callable[[tuple[int, ...]], Hashable] | None = None,
        max_calls: int | None = None,
        trace: Trace | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(strategy, max_calls=max_calls, traced=trace is not None, **settings)
        self.ends = ends  # whether tokens are complete that do not end in EOS
        self.merge = merge  # of what is equal, tokens of one length have the same continuations
        self.max_calls = max_calls
        self.trace = trace
        self.agenda = Agenda()
        self.answers: list[Hypothesis] = []  # accepted so far, best first
        self.bound_holds = True  # as far as was seen: no hypothesis could reach more than its prefix's bound
        self.evicted = 0
        self.short_of_children = False  # more than were asked for would have been needed, for so many of them were complete
        if ends is not None:
            self.width *= 8  # nobody knows how many tokens may be an end
        # A heuristic may rank children otherwise than their values do, so none can be left out before it was asked.
        by_value = strategy.heuristic is None or getattr(strategy.heuristic, "by_value", False)
        if not by_value or merge is not None:  # or any number may be refused for others of their state
            self.width = inf
        self._ready: list[Hypothesis] = []  # named by the last frontier
        self._pruned: list[Hypothesis] = []  # open, but no continuation can enter a beam
        self._moved: list[Hypothesis] = []  # those whose place is that of what they can attain, as against their bound
        if trace is not None:
            trace.begin(self)
        self._beam(0).insert(self._place(self.root))
        self._enter(self.root)

    # -- children --------------------------------------------------------------------------------------------------------

    def _push_children(self, y: Hypothesis) -> None:
        """Let the children of `y`, which is closed, onto the next beam: one by one as they come to the front, or all at once."""
        beam = self._beam(y.length + 1)
        self._queue_child(y, 0, beam)
        while beam.rest and not self.policy.lazy:
            self._make_child(beam)

    def _queue_child(self, y: Hypothesis, j: int, beam: Beam) -> None:
        values: Sequence[float] = y.successors.values  # type: ignore[union-attr]
        if j == len(values):
            if self.ends is not None and j >= self.width - len(self.eos) and beam.length < self.context.n_max:
                self.short_of_children |= sum(not child.finished for child in y.children.values()) < self.strategy.k
            return
        value = y.value + values[j]
        if self.policy.rank_by_value and beam.full and -value > beam.members[-1].rank[0]:
            self._note_refused(y, j, beam)
            return  # nor would its siblings enter, which are no better
        reach = value
        if self.policy.lazy and not self.score.value_only:  # else it is made at once, wherever its cursor stands
            reach = self.score.final(value, beam.length, self.context)
            if beam.length < self.context.n_max:
                reach = max(reach, self.score.bound(value, beam.length, self.context))
        self.agenda.defer(y, j, self.strategy.order.cursor(beam.length, value, reach))

    def _make_child(self, beam: Beam) -> None:
        """Make the child behind the beam's first cursor, put it on the beam if it is good enough, and move the cursor on."""
        y, j = self.agenda.pop_cursor(beam)
        if not y.on_beam:
            return
        child = self._child(y, j)
        fallen = (child,) if child.evicted else beam.insert(child)
        enters = child not in fallen
        # Siblings come best first: if an unfinished one is refused, so are all after it. A heuristic may rank them otherwise.
        alone = self.strategy.heuristic is None and self.merge is None
        if enters or child.evicted or not alone or (child.finished and not self.policy.keep):
            self._queue_child(y, j + 1, beam)
        if not enters and not child.evicted:
            self._note_refused(y, j, beam)
        if enters:
            self._enter(child)
            for z in fallen:
                self._fall_off(z, "full", beam)
            # Later beams had something from what fell, or lack a finished one that holds a slot there too.
            changed = any(z.successors is not None or (z.finished and self.policy.keep) for z in fallen)
            if (changed or (child.finished and self.policy.keep)) and len(self.agenda.beams) > beam.length + 1:
                self._rebuild(beam.length + 1)

    def _insert_finished(self) -> None:
        """Out of budget: show the complete hypotheses that wait behind cursors, for they are found."""
        for beam in self.agenda.beams:
            for _, _, _, _, y, j in beam.rest:
                tokens: Sequence[int] = y.successors.tokens  # type: ignore[union-attr]
                for child in (self._child(y, i) for i in range(j, len(tokens)) if tokens[i] in self.eos):
                    if child not in beam.insert(child):
                        self._enter(child)

    def _child(self, y: Hypothesis, j: int) -> Hypothesis:
        """The j-th child, made once: whatever was scored below it is found again when its beam is built anew."""
        child = y.children.get(j)
        if child is None:
            values, tokens, _, _ = y.successors  # type: ignore[misc]
            token, logprob = tokens[j], logprob_of(y, j)
            finished = token in self.eos or y.length + 1 == self.complete
            finished = finished or (self.ends is not None and self.ends((*y.tokens, token)))
            child = y.children[j] = self._place(Hypothesis(y, token, y.value + values[j], logprob, finished))
            if self.merge is not None and not finished:
                child.state_key = self.merge(child.tokens)
            if child.reach > y.bound + TOLERANCE * (1 + abs(y.bound)):
                self.bound_holds = False  # beam search goes on, but does not stop by bounds any more
                if self.policy.relies_on_bound:
                    raise BrokenLaw.above_bound(y, token, child.reach, logprob - y.logprob)
        return child

    def _place(self, y: Hypothesis) -> Hypothesis:
        """Work out what `y` is worth and where it stands in its beam and on the agenda."""
        self.valued(y)
        y.reach = y.worth if y.finished and self.policy.keep else max(y.worth, y.bound)
        if y.finished:  # its place among its length is its value's, whatever finishing adds
            y.worth += y.parent.successors.ending  # type: ignore[union-attr]
        h = self.strategy.heuristic(y, self.context) if self.strategy.heuristic is not None and not y.finished else 0.0
        y.rank = (-(y.value if self.policy.rank_by_value else y.worth + h), y.length, y.tokens)
        y.key = (-y.worth, y.length, y.tokens) if y.finished else self.strategy.order.key(y, h)
        return y

    # -- beams -----------------------------------------------------------------------------------------------------------

    def _beam(self, length: int) -> Beam:
        """The beam of this length; a new one starts, under `keep`, with the finished hypotheses of the beam before.

        Under `shrink` it is narrower by as many as there are. The beam before is complete by then: only level by level.
        """
        if length == len(self.agenda.beams):
            slots = self.strategy.k - (len(self.answers) if self.strategy.finished == "shrink" else 0)
            beam = Beam(length, slots, keep=self.strategy.finished != "leave")
            self.agenda.beams.append(beam)
            if self.policy.keep and length > 0:
                for y in self.agenda.beams[length - 1].members:
                    if y.finished:
                        beam.insert(y)
        return self.agenda.beams[length]

    def _enter(self, y: Hypothesis) -> None:
        y.on_beam = True
        self._note("push", y)
        if y.finished:
            insort(self.answers, y, key=by_key)
            self._note("finish", y)
        elif y.successors is not None:
            self._push_children(y)
        elif y.length < self.context.n_max:
            self.agenda.enqueue(y)

    def _fall_off(self, y: Hypothesis, why: str, beam: Beam) -> None:
        if not y.on_beam:
            return  # a finished one that had fallen off a longer beam before
        y.on_beam = False
        self._note_out(y, why, beam)
        if y.finished:
            del self.answers[bisect_left(self.answers, y.key, key=by_key)]
        elif y.successors is None:
            self.agenda.dequeue(y)

    def _rebuild(self, length: int) -> None:
        """Forget the beams from this length on, and let the beam before them push its children again.

        For when something that they were built on fell off. What was scored is not lost: a child that comes again is the same.
        Never happens in strict order, except under `keep` when a finished hypothesis takes a slot of beams that exist already.
        """
        for y in self._moved:
            waits = self.agenda.dequeue(y)
            y.key = (-y.bound, y.length, y.tokens)
            if waits:
                self.agenda.enqueue(y)
        self._moved.clear()
        for y in self._pruned:
            if y.on_beam and y.successors is None:
                self.agenda.enqueue(y)  # what made it hopeless may be gone
                self._note("push", y)
        self._pruned.clear()
        for beam in self.agenda.beams[length:]:
            for y in beam.members:
                if y.length >= length:
                    self._fall_off(y, "ancestor", beam)
        del self.agenda.beams[length:]
        before = self.agenda.beams[length - 1].members[:]
        for y in before:
            if y.finished and self.policy.keep and not y.on_beam:
                self._enter(y)  # it had fallen off a beam that is gone now
        for y in before:
            if y.successors is not None:
                self._push_children(y)

    # -- the trace -------------------------------------------------------------------------------------------------------

    def _note(self, event: Event, y: Hypothesis, **why: Any) -> None:
        if self.trace is not None:
            self.trace.note(event, y, **why)

    def _note_out(self, y: Hypothesis, why: str, beam: Beam) -> None:
        """`y` is out because of this beam, which is full of better ones or was taken apart; or because the queue is full."""
        if why == "evict":
            self._note("evict", y, capacity=self.strategy.queue_capacity)
        elif self.trace is not None:
            self.trace.note("prune", y, **_reason(why, y, beam))

    def _note_refused(self, y: Hypothesis, j: int, beam: Beam) -> None:
        """The j-th child of `y` did not get onto its beam. It is not made for this: that may raise where the search did not."""
        if self.trace is None:
            return
        values, tokens, _, ending = y.successors  # type: ignore[misc]
        finished = tokens[j] in self.eos or beam.length == self.complete
        child = Hypothesis(y, tokens[j], y.value + values[j], logprob_of(y, j), finished)
        child.worth = self.score.final(child.value, child.length, self.context) + (ending if finished else 0.0)
        if (made := y.children.get(j)) is not None:
            child.state_key = made.state_key
        self.trace.note("refuse", child, **_reason("full", child, beam))


def _reason(why: str, y: Hypothesis, beam: Beam) -> dict[str, Any]:
    if why == "full" and beam.twins.get(y.state_key) is not None:
        return {"why": "merged", "at": beam.length}
    better = {} if why == "ancestor" else {"better": int(beam.k)}
    return {"why": why, "at": beam.length, **better}
