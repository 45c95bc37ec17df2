"""Trace: every event of a search, one JSON object per line, for viewers (`bestfirst.page`) and checks.

A file of traces begins with a line that names the format and its version (`HEADER`). Then, for each search:

    begin    what is searched and how: source, model, strategy, beam (null: nothing is pruned), finished, nbest, max_length, ...
    push     entered a beam, or was queued again: id, parent, token, piece (its text), length, score, logprob, finished; `bound`,
             the most that it can still become, if that is not the score; `place`, its sort key on the agenda
    refuse   a child did not enter its beam, with the fields of a push and a prune; siblings that are no better are not listed
    pop      was scored. `ahead`: it had fallen off its beam by then
    draft    was drafted: scored in one forward pass with its prefix, and later needed by the search (the pop before this event)
    prune    was removed. `why`: "full" (`better` hypotheses of length `at` precede it), "hopeless" (length `at` is full of
             hypotheses that precede all it could become), "merged" (a better one of length `at` has the same continuations),
             "ancestor" (a prefix of it fell off; if it comes back, it is pushed again)
    evict    was removed: more than `capacity` hypotheses were queued
    finish   a complete hypothesis was accepted (better ones may still prune it)
    result   status, exact, calls, rows, the ids of the answers, and of `called`: the hypotheses that had to be scored, where
             some were scored ahead of their turn (null: all that were scored)
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
    """Collects the events of a search. A search without a trace pays one comparison per event.

    Facts about the input and its model (`describe`) go into the `begin` event; the model also provides the text of tokens.
    """

    def __init__(self, **labels: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.about: dict[str, Any] = {}
        self.piece: Callable[[int], str | None] | None = None
        self._labels = labels  # fields of every event, such as the number of the input
        self._ids: dict[tuple[int, int], int] = {}  # by parent and token

    def describe(self, model: Any, source: Any) -> None:
        """Set the input (recorded if it is a text) and the model (its name, and `piece` for tokens), before the search begins."""
        self.about = {"source": source if isinstance(source, str) else None, "model": getattr(model, "name", None)}
        self.piece = getattr(model, "piece", None)

    def begin(self, search: SearchTree) -> None:
        """A search starts: record its settings."""
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
        """Record an event of hypothesis `y`; `why` are further fields."""
        if event in ("push", "refuse"):
            y.id = self._id(y)
            why = {**self._fields(y), **(self._agenda_fields(y) if event == "push" else why)}
        self._add(event, id=y.id, **why)

    def result(self, result: Result, answers: Sequence[Hypothesis], called: Sequence[Hypothesis] | None) -> None:
        """Record the outcome. If a search is asked for its result before it is over, the last such event counts."""
        ids = {"answers": [y.id for y in answers], "called": None if called is None else [y.id for y in called]}
        self._add("result", status=result.status, exact=result.exact, calls=result.calls, rows=result.rows, **ids)

    def text(self, result: Result) -> None:
        """Record what only the engine's result has: texts, forward passes and drafts."""
        drafts = {"drafted": result.drafted, "accepted": result.accepted} if result.drafted else {}
        self._add("text", texts=[answer.text for answer in result.hypotheses], steps=result.steps, **drafts)

    def _id(self, y: Hypothesis) -> int:
        """The id of a hypothesis: the same for the same tokens, even if a child is first refused and enters its beam later."""
        key = (-1, len(self._ids)) if y.parent is None else (y.parent.id, y.token)
        return self._ids.setdefault(key, len(self._ids))

    def _fields(self, y: Hypothesis) -> dict[str, Any]:
        link: dict[str, Any] = {"parent": None, "token": None} if y.parent is None else {"parent": y.parent.id, "token": y.token}
        if self.piece is not None and y.parent is not None:
            link["piece"] = self.piece(y.token)
        return {**link, "length": y.length, "score": y.worth, "logprob": y.logprob, "finished": y.finished}

    def _agenda_fields(self, y: Hypothesis) -> dict[str, Any]:
        place = [*y.key[:2]] if not y.finished and all(map(isfinite, y.key[:2])) else None
        bound = {} if y.finished or y.bound == y.worth or not isfinite(y.bound) else {"bound": y.bound}
        return {**bound, "place": place}

    def _add(self, event: Event, **fields: Any) -> None:
        self.events.append({**self._labels, "event": event, **fields})


class RecordedSearch:
    """Wraps a search that runs in a batch and ahead of turn, and keeps its successors; `replay` then traces it in strict order.

    Strict order needs only hypotheses that were scored, if both searches are of the kind that traces (`AnyOrderSearch`): every
    one of them is needed in any order (`docs/algorithm.md`).
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
        """Drive another search of the same input in strict order from the kept successors, for its trace. No model calls."""
        # The model may have returned more, for other searches of the batch.
        width = None if self.search.width == inf else int(self.search.width)
        while needed := search.frontier(1):
            values, tokens, logprobs, ending = self._successors[needed[0].tokens]
            search.commit(needed[0], Successors(values[:width], tokens[:width], logprobs and logprobs[:width], ending))
        search.result()
        search.dismantle()
