"""SharedScorer: several settings search one input on one tree, so that a hypothesis that several of them need is scored once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from bestfirst.engine import Job, no_garbage_collection, run
from bestfirst.engine.choice import host_engine, scorer_for
from bestfirst.engine.scorer import Scorer
from bestfirst.engine.user_model import ModelFailure
from bestfirst.models import Model, Source
from bestfirst.search import Hypothesis, Result, Successors
from bestfirst.settings import Budget, Decoding

BUDGET_FACTOR = 4  # times a single setting's row budget: most of the requested rows were scored for another setting already


class SharedScorer:
    """A scorer for `searches` searches of each input (the same `Source` object), all on one tree of that input.

    Each search gets the same successors as alone, so its results and `calls` are those of a run by itself (except for near-ties,
    since other rows share the pass). `scored` counts the rows that the model was run on for all of them together.
    """

    def __init__(self, scorer: Scorer, searches: int, width: int) -> None:
        self.scorer = scorer
        self.searches = searches
        self.width = width  # successors to keep of each hypothesis: as many as any search can use
        self.scored = 0
        self._roots: dict[int, Hypothesis] = {}  # by the source's id
        self._open_searches: dict[int, int] = {}  # by the root's id: the number of searches that are not over

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scorer, name)

    def start(self, roots: Sequence[tuple[Hypothesis, Source]]) -> None:
        new = {id(source): (_node(None, -1), source) for _, source in roots if id(source) not in self._roots}
        if new:
            self.scorer.start(list(new.values()))
            self._roots |= {key: root for key, (root, _) in new.items()}
        for root, source in roots:
            root.state = self._roots[id(source)]
            self._open_searches.setdefault(id(root.state), self.searches)

    def expand(self, batch: Sequence[Hypothesis], width: float) -> list[Successors | ModelFailure]:
        nodes = [self._node_of(y) for y in batch]
        new = list({id(node): node for node in nodes if node.successors is None}.values())
        if new:
            self.scored += len(new)
            for node, successors in zip(new, self.scorer.expand(new, self.width), strict=True):
                node.successors = successors  # type: ignore[assignment]
        for y, node in zip(batch, nodes, strict=True):
            y.state = node
        return [_first_successors(node.successors, int(width)) for node in nodes]  # type: ignore[arg-type]

    def release(self, root: Hypothesis) -> None:
        """A search is over; the tree is released with the last search of its input."""
        shared = root.state
        self._open_searches[id(shared)] -= 1
        if not self._open_searches[id(shared)]:
            self.scorer.release(shared)
            del self._open_searches[id(shared)]
            self._roots = {key: each for key, each in self._roots.items() if each is not shared}

    def advice(self, root: Hypothesis, n_max: int, eos: Collection[int] | None) -> str | None:
        return self.scorer.advice(root.state, n_max, eos)

    def _node_of(self, y: Hypothesis) -> Hypothesis:
        if y.parent is None:
            return y.state
        children = y.parent.state.children
        if y.token not in children:
            children[y.token] = _node(y.parent.state, y.token)
        return children[y.token]


def _node(parent: Hypothesis | None, token: int) -> Hypothesis:
    node = Hypothesis(parent, token, 0.0, 0.0, finished=False)
    node.children = {}
    return node


def _first_successors(successors: Successors | ModelFailure, width: int) -> Successors | ModelFailure:
    if isinstance(successors, ModelFailure) or len(successors.tokens) <= width:
        return successors
    logprobs = None if successors.logprobs is None else successors.logprobs[:width]
    return Successors(successors.values[:width], successors.tokens[:width], logprobs, successors.ending)


def decode_shared(model: Model, inputs: Sequence[Any], decodings: Sequence[Decoding]) -> Iterator[tuple[int, int, Result]]:
    """Decode every input with all settings; yields (number of the input, number of the setting, result).

    `Result.rows` and `steps` have no meaning here, since passes are shared. ValueError if the settings cannot share an engine,
    for instance with a score that changes log-probabilities.
    """
    read = model.reader(None)
    own = scorer_for(model, decodings[0].objective)
    width = max(int(decoding.plan.k) for decoding in decodings) + len(own.eos)
    scorer = SharedScorer(own, len(decodings), width)
    budget = scorer.budget()
    settings = decodings[0].using(row_budget=Budget(BUDGET_FACTOR * budget.rows, free=1))
    engine = host_engine(scorer, settings)
    count = len(decodings)

    def jobs() -> Iterator[Job]:
        for number, raw in enumerate(inputs):
            try:
                source = read(raw)
            except ValueError as error:
                yield Job(number * count, Source(None, 0, 0), decodings[0], error=str(error))
                continue
            for place, decoding in enumerate(decodings):
                yield Job(number * count + place, source, decoding)

    with no_garbage_collection():
        for job, result in run(engine, jobs()):
            yield *divmod(job.index, count), result
