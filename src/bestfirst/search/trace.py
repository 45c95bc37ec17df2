"""Trace: every event of a search, one JSON object a line, for those who want to see it.

A file of traces begins with a line that names the format and its version (`HEADER`). Then, for each search:

    begin    what is searched and how: source, model, strategy, beam (null: nothing is pruned), finished, nbest, max_length, ...
    push     entered a beam, or waits again: id, parent, token, piece (its text), length, score, logprob, finished; `bound`, the
             most that it can still become, where that is not the score; `place` on the agenda, which is sorted by it
    refuse   a child that did not get onto its beam, with what a push and a prune tell; siblings that are no better are not listed
    pop      was scored. `ahead`: it had fallen off its beam by then
    draft    was guessed, and scored in one forward pass with what comes before it; the search came to ask for it (the pop before)
    prune    is out. `why`: "full" (`better` hypotheses of length `at` precede it), "hopeless" (length `at` is full of hypotheses
             that precede all it could become), "merged" (a better one of length `at` goes on alike),
             "ancestor" (what it was built on fell off; if it comes back, it is pushed again)
    evict    is out: more than `capacity` hypotheses waited
    finish   a complete hypothesis was accepted (it may still be pruned by better ones)
    result   status, exact, calls, rows, the ids of the answers, and of what was `called` (null: all that was scored): where
             hypotheses were scored ahead of their turn, those that had to be
    text     the answers' texts, the forward passes they took, and how many rows were `drafted` and of these `accepted`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Literal

from .hypothesis import Hypothesis, Successors

if TYPE_CHECKING:
    from .result import Result
    from .search import Search
    from .search_tree import SearchTree

Event = Literal["begin", "push", "refuse", "pop", "draft", "prune", "evict", "finish", "result", "text"]
FORMAT, VERSION = "bestfirst-trace", 2
HEADER: dict[str, Any] = {"format": FORMAT, "version": VERSION}


class Trace:
    """Collects events. A search without a trace pays one comparison an event.

    What is known of the input and its model (`describe`) goes into the `begin` line, and names tokens.
    """

    def __init__(self, **labels: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.about: dict[str, Any] = {}
        self.piece: Callable[[int], str | None] | None = None
        self._labels = labels  # on every line, say the number of the input
        self._ids: dict[tuple[int, int], int] = {}  # by parent and token

    def describe(self, model: Any, source: Any) -> None:
        """What is decoded by what, before the search begins: an input that is a text, and a model that can name tokens."""
        self.about = {"source": source if isinstance(source, str) else None, "model": getattr(model, "name", None)}
        self.piece = getattr(model, "piece", None)

    def begin(self, search: SearchTree) -> None:
        """A search starts: what it is."""
        strategy = search.strategy
        self._add(
            "begin",
            **self.about,
            strategy=strategy.name,
            order=strategy.order.name,
            beam=None if strategy.k == inf else int(strategy.k),
            finished=strategy.finished,
            stop=strategy.stop.name,
            score=getattr(search.score, "name", None),
            nbest=search.n,
            max_length=search.context.n_max,
            queue_capacity=strategy.queue_capacity,
        )

    def note(self, event: Event, y: Hypothesis, **why: Any) -> None:
        """Something happened to `y`."""
        if event in ("push", "refuse"):
            y.id = self._id(y)
            why = {**self._about(y), **(self._place(y) if event == "push" else why)}
        self._add(event, id=y.id, **why)

    def result(self, result: Result, answers: Sequence[Hypothesis], called: Sequence[Hypothesis] | None) -> None:
        """What came of it. The last one counts, where a search was asked before it was over."""
        ids = {"answers": [y.id for y in answers], "called": None if called is None else [y.id for y in called]}
        self._add("result", status=result.status, exact=result.exact, calls=result.calls, rows=result.rows, **ids)

    def text(self, result: Result) -> None:
        """What only whoever ran the search knows."""
        drafts = {"drafted": result.drafted, "accepted": result.accepted} if result.drafted else {}
        self._add("text", texts=[answer.text for answer in result.hypotheses], steps=result.steps, **drafts)

    def _id(self, y: Hypothesis) -> int:
        """The same for the same tokens, also where a child is refused first and let in later."""
        key = (-1, len(self._ids)) if y.parent is None else (y.parent.id, y.token)
        return self._ids.setdefault(key, len(self._ids))

    def _about(self, y: Hypothesis) -> dict[str, Any]:
        about: dict[str, Any] = {"parent": None, "token": None} if y.parent is None else {"parent": y.parent.id, "token": y.token}
        if self.piece is not None and y.parent is not None:
            about["piece"] = self.piece(y.token)
        return {**about, "length": y.length, "score": y.worth, "logprob": y.logprob, "finished": y.finished}

    def _place(self, y: Hypothesis) -> dict[str, Any]:
        place = [*y.key[:2]] if not y.finished and all(map(isfinite, y.key[:2])) else None
        bound = {} if y.finished or y.bound == y.worth or not isfinite(y.bound) else {"bound": y.bound}
        return {**bound, "place": place}

    def _add(self, event: Event, **fields: Any) -> None:
        self.events.append({**self._labels, "event": event, **fields})


class RecordedSearch:
    """Search as the search it holds; with others, and ahead of turn. `replay` then repeats it one hypothesis at a time.

    Strict order needs nothing that was not scored: whatever the order, those hypotheses had to be (`docs/algorithm.md`).
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        self._successors: dict[tuple[int, ...], Successors] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.search, name)

    def commit(self, y: Hypothesis, successors: Successors) -> None:
        self._successors[y.tokens] = successors
        self.search.commit(y, successors)

    def replay(self, search: Search) -> None:
        """Run another search of the same input, in strict order, without asking the model, for the sake of its trace."""
        width = int(self.search.width)  # the model may have been asked for more, on behalf of others
        while needed := search.frontier(1):
            values, tokens, logprobs, ending = self._successors[needed[0].tokens]
            search.commit(needed[0], Successors(values[:width], tokens[:width], logprobs and logprobs[:width], ending))
        search.result()
        search.dismantle()
