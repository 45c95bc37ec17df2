"""SearchTree: the part of the tree of hypotheses that is known, and how it grows: children are pushed, beams are capped."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import Any

from .agenda import Agenda, Beam, by_key
from .hypothesis import Hypothesis, logprob_of
from .policy import BaseSearch, BrokenLaw, exceeds
from .table_1 import Strategy
from .trace import Event, Trace


class SearchTree(BaseSearch):
    """The agenda, the answers so far, and how they change: the part of `AnyOrderSearch` that does not choose what to score."""

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
        self.ends = ends  # whether these tokens are a complete output although they do not end in EOS
        self.merge = merge  # outputs of one length for which it returns the same have the same continuations
        self.max_calls = max_calls
        self.trace = trace
        self.agenda = Agenda()
        self.answers: list[Hypothesis] = []  # accepted so far, best first
        self.bound_holds = True  # no hypothesis so far could reach more than its prefix's bound
        self.evicted = 0
        self.short_of_children = False  # too many of the requested successors were complete, more would have been needed
        if ends is not None:
            self.width *= 8  # any number of tokens may end an output; 8 times as many is a guess
        # A heuristic may rank children in another order than their values do, so it must see all of them.
        by_value = strategy.heuristic is None or getattr(strategy.heuristic, "by_value", False)
        if not by_value or merge is not None:  # with `merge`, any number may be refused for others of the same state
            self.width = inf
        if self.policy.by_score:  # of equal scores tokens choose among all; so many settle it if those after the k-th score less
            self.few = self.width + 1 if ends is None else inf
            self.width = inf
        self._asks_again = False
        self._asked_again: set[Hypothesis] = set()  # hypotheses whose few successors left open which are the k best
        self._frontier: list[Hypothesis] = []  # the last frontier: removed from the queue, perhaps not scored
        self._pruned: list[Hypothesis] = []  # open and hopeless: removed from the queue, for now
        self._demoted: list[Hypothesis] = []  # queued by what they can attain, which is less than their bound
        if trace is not None:
            trace.begin(self)
        self._beam_at(0).insert(self._set_keys(self.root))
        self._enter(self.root)

    # -- children --------------------------------------------------------------------------------------------------------

    def _push_children(self, y: Hypothesis) -> None:
        """Push the children of `y`, which is closed: lazily, when they reach the front of the agenda, or all at once."""
        beam = self._beam_at(y.length + 1)
        self._queue_child(y, 0, beam)
        while beam.cursors and not self.policy.lazy:
            self._make_child(beam)

    def _queue_child(self, y: Hypothesis, j: int, beam: Beam) -> None:
        """Queue a cursor for the j-th child of `y`, if there is one and the beam might accept it."""
        values: Sequence[float] = y.successors.values  # type: ignore[union-attr]
        if j == len(values):
            if self.ends is not None and j >= self.width - len(self.eos) and beam.length < self.context.n_max:
                self.short_of_children |= sum(not child.finished for child in y.children.values()) < self.strategy.k
            return
        value = y.value + values[j]
        if self.policy.rank_by_value and beam.full and -value > beam.members[-1].rank[0]:
            self._note_refused(y, j, beam)
            return  # its siblings are no better, so they would not enter either
        reach = value
        if self.policy.lazy and not self.score.value_only:  # not lazy: created at once, wherever its cursor stands
            reach = max(self.scores_of(value, beam.length))
        self.agenda.defer(y, j, self.strategy.order.cursor(beam.length, value, reach))

    def _make_child(self, beam: Beam) -> None:
        """Create the child of the beam's first cursor, insert it if it is good enough, and queue the cursor's next sibling."""
        y, j = self.agenda.pop_cursor(beam)
        if not y.on_beam:
            return
        child = self._child(y, j)
        fallen = (child,) if child.evicted else beam.insert(child)
        enters = child not in fallen
        # Siblings come best first: if an unfinished one is refused, so are the rest. A heuristic or states may break that order.
        by_value = self.strategy.heuristic is None and self.merge is None
        if enters or child.evicted or not by_value or (child.finished and not self.policy.keep):
            self._queue_child(y, j + 1, beam)
        if not enters and not child.evicted:
            self._note_refused(y, j, beam)
        if enters:
            self._enter(child)
            for z in fallen:
                self._fall_off(z, "full", beam)
            # Later beams contain descendants of what fell off, or lack a finished one that holds a slot there too.
            changed = any(z.successors is not None or (z.finished and self.policy.keep) for z in fallen)
            if (changed or (child.finished and self.policy.keep)) and len(self.agenda.beams) > beam.length + 1:
                self._rebuild(beam.length + 1)

    def _insert_finished(self) -> None:
        """Out of budget: accept the finished children that wait behind cursors, for their scores are known."""
        for beam in self.agenda.beams:
            for _, _, _, _, y, j in beam.cursors:
                tokens: Sequence[int] = y.successors.tokens  # type: ignore[union-attr]
                for child in (self._child(y, i) for i in range(j, len(tokens)) if self._finishes(y, tokens[i])):
                    if child not in beam.insert(child):
                        self._enter(child)

    def _finishes(self, y: Hypothesis, token: int) -> bool:
        """Whether the child of `y` with this token is finished."""
        if token in self.eos or y.length + 1 == self.complete:
            return True
        return self.ends is not None and self.ends((*y.tokens, token))

    def _child(self, y: Hypothesis, j: int) -> Hypothesis:
        """The j-th child of `y`, created once: what was scored below it is found again when its beam is rebuilt."""
        child = y.children.get(j)
        if child is None:
            values, tokens, _, _ = y.successors  # type: ignore[misc]
            token, logprob = tokens[j], logprob_of(y, j)
            finished = self._finishes(y, token)
            child = y.children[j] = self._set_keys(Hypothesis(y, token, y.value + values[j], logprob, finished))
            if self.merge is not None and not finished:
                child.state_key = key = self.merge(child.tokens)
                if not isinstance(key, Hashable):
                    raise BrokenLaw(f"merge_key returned {key!r:.40}, which cannot be hashed; return a tuple or a number")
            if exceeds(child.reach, y.bound):
                self.bound_holds = False  # beam search goes on, but no longer stops by bounds
                if self.policy.relies_on_bound:
                    raise BrokenLaw.above_bound(y, token, child.reach, logprob - y.logprob)
        return child

    def _set_keys(self, y: Hypothesis) -> Hypothesis:
        """Set the scores and sort keys of `y`, and return it."""
        self.set_scores(y)
        y.reach = y.worth if y.finished and self.policy.keep else max(y.worth, y.bound)
        if y.finished:  # beams rank by value: `ending` changes its place among the answers, not on its beam
            y.worth += y.parent.successors.ending  # type: ignore[union-attr]
        h = 0.0
        if self.strategy.heuristic is not None and not y.finished:
            h = self.strategy.heuristic(y, self.context)
            if not hasattr(h, "__float__") or h != h:
                raise BrokenLaw(f"the heuristic of {list(y.tokens)} is {h!r:.60}; it must be a number")
        y.rank = (-(y.value if self.policy.rank_by_value else y.worth + h), y.length, y.tokens)
        y.key = (-y.worth, y.length, y.tokens) if y.finished else self.strategy.order.key(y, h)
        return y

    # -- beams -----------------------------------------------------------------------------------------------------------

    def _beam_at(self, length: int) -> Beam:
        """The beam of this length. A new one begins with the finished members of the beam before (`keep`), or is narrower by the
        number of answers (`shrink`; the beam before is complete by then, for only level by level)."""
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
        """`y` is now a member of its beam: it becomes an answer, is queued or, if closed, pushes its children."""
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
        """`y` is no longer a member of a beam: remove it from the answers or from the queue."""
        if not y.on_beam:
            return  # a finished hypothesis that fell off a longer beam before
        y.on_beam = False
        self._note_out(y, why, beam)
        if y.finished:
            del self.answers[bisect_left(self.answers, y.key, key=by_key)]
        elif y.successors is None:
            self.agenda.dequeue(y)

    def _rebuild(self, length: int) -> None:
        """Discard the beams from this length on, whose prefixes fell off, and let the beam before them push its children again.

        Scored hypotheses are not lost: a child that comes again is the same object. In strict order this happens only under
        `keep`, when a finished hypothesis takes a slot on beams that exist already.
        """
        for y in self._demoted:
            queued = self.agenda.dequeue(y)
            y.key = (-y.bound, y.length, y.tokens)
            if queued:
                self.agenda.enqueue(y)
        self._demoted.clear()
        for y in self._pruned:
            if y.on_beam and y.successors is None:
                self.agenda.enqueue(y)  # the beam that made it hopeless may be gone
                self._note("push", y)
        self._pruned.clear()
        for beam in self.agenda.beams[length:]:
            for y in beam.members:
                if y.length >= length:
                    self._fall_off(y, "ancestor", beam)
        del self.agenda.beams[length:]
        previous = self.agenda.beams[length - 1].members[:]
        for y in previous:
            if y.finished and self.policy.keep and not y.on_beam:
                self._enter(y)  # the beam it fell off is gone now
        for y in previous:
            if y.successors is not None:
                self._push_children(y)

    # -- the trace -------------------------------------------------------------------------------------------------------

    def _note(self, event: Event, y: Hypothesis, **why: Any) -> None:
        if self.trace is not None:
            self.trace.note(event, y, **why)

    def _note_out(self, y: Hypothesis, why: str, beam: Beam) -> None:
        """`y` was removed because this beam is full of better ones or was discarded, or because the queue is full."""
        if why == "evict":
            self._note("evict", y, capacity=self.strategy.queue_capacity)
        elif self.trace is not None:
            self.trace.note("prune", y, **_prune_fields(why, y, beam))

    def _note_refused(self, y: Hypothesis, j: int, beam: Beam) -> None:
        """The j-th child of `y` was refused. `_child` would create it, too, but may raise where the search did not."""
        if self.trace is None:
            return
        values, tokens, _, ending = y.successors  # type: ignore[misc]
        finished = tokens[j] in self.eos or beam.length == self.complete
        child = Hypothesis(y, tokens[j], y.value + values[j], logprob_of(y, j), finished)
        child.worth = self.score.final(child.value, child.length, self.context) + (ending if finished else 0.0)
        if (made := y.children.get(j)) is not None:
            child.state_key = made.state_key
        self.trace.note("refuse", child, **_prune_fields("full", child, beam))


def _prune_fields(why: str, y: Hypothesis, beam: Beam) -> dict[str, Any]:
    if why == "full" and beam.by_state.get(y.state_key) is not None:
        return {"why": "merged", "at": beam.length}
    better = {} if why == "ancestor" else {"better": int(beam.k)}
    return {"why": why, "at": beam.length, **better}
