"""Hypothesis: a prefix y of an output, as a node of the search tree; and the successors that a model gives it."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Successors(NamedTuple):
    """The best one-token extensions of a hypothesis, best first (ties: smaller token first).

    `values` are increments of the score that is searched with; `logprobs` are the model's own log-probabilities, `None` where the
    two are the same. Impossible tokens (-inf) are left out. `ending` is what finishing now adds to the score, never positive, for
    scores that know it only when a hypothesis finishes (a coverage penalty).
    """

    values: Sequence[float]
    tokens: Sequence[int]
    logprobs: Sequence[float] | None = None
    ending: float = 0.0


Key = tuple[float, float, tuple[int, ...]]
"""A sort key of hypotheses, smallest first: two numbers, then the tokens, which differ between any two hypotheses."""


@dataclass(frozen=True)
class Context:
    """What a score may use besides the hypothesis itself: the length limit and the input."""

    n_max: int  # most tokens a finished hypothesis may have, EOS included, BOS not
    source_length: int = 0  # |x|, without EOS
    source: Any = field(default=None, compare=False, repr=False)  # x itself, as the model was given it


@dataclass(slots=True, init=False, eq=False, repr=False)
class Hypothesis:
    """A prefix y: one token and a link to the prefix before it.

    `value` is the sum of increments, which ranks hypotheses of one length; `worth` is the score at its own length; `bound` is
    the best score that any longer continuation can reach; `reach` is the greater of the two (under `keep`, if finished,
    `worth`). The `worth` of a finished hypothesis includes the `ending` of its parent's successors. `successors` is None until
    the model has scored the hypothesis: before that it is *open*, afterwards *closed*. `state` belongs to the engine that runs
    the model, `node` to the constraint on the output, if there is one.
    """

    parent: Hypothesis | None
    token: int
    tokens: tuple[int, ...]
    length: int
    value: float
    logprob: float
    finished: bool
    worth: float
    bound: float
    reach: float
    rank: Key  # sort key on its beam, among hypotheses of the same length
    key: Key  # sort key on the agenda or, once finished, among the answers
    on_beam: bool
    evicted: bool
    successors: Successors | None
    children: dict[int, Hypothesis]
    state: Any
    state_key: Hashable  # hypotheses of one length with equal keys have the same continuations; None: not known
    node: Any
    wanted: Collection[int]  # tokens that the successors must include, however unlikely
    id: int

    def __init__(self, parent: Hypothesis | None, token: int, value: float, logprob: float, finished: bool) -> None:
        self.parent = parent
        self.token = token
        self.value = value
        self.logprob = logprob
        self.finished = finished
        if parent is None:
            self.tokens = ()
            self.length = 0
        else:
            self.tokens = (*parent.tokens, token)
            self.length = parent.length + 1
        self.on_beam = False
        self.evicted = False
        self.successors = None
        self.state = None
        self.state_key = None
        self.node = None
        self.wanted = ()
        self.id = -1

    def __repr__(self) -> str:
        ending = ", finished" if self.finished else ""
        return f"Hypothesis({list(self.tokens)}, value={self.value:.4f}{ending})"


def logprob_of(parent: Hypothesis, j: int) -> float:
    """The log-probability of the j-th child of `parent`."""
    successors: Successors = parent.successors  # type: ignore[assignment]
    return parent.logprob + (successors.values if successors.logprobs is None else successors.logprobs)[j]
