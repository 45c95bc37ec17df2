"""Hypothesis: a prefix of an output, as a node of the search tree."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Successors(NamedTuple):
    """The best one-token extensions of a hypothesis, best first (ties: smaller token first).

    `values` are increments of the score that is searched with; `logprobs` are the model's own log-probabilities,
    `None` where the two are the same. Impossible tokens (-inf) are left out. `ending` is what finishing now adds to the score,
    never positive, for scores that know only then (a coverage penalty).
    """

    values: Sequence[float]
    tokens: Sequence[int]
    logprobs: Sequence[float] | None = None
    ending: float = 0.0


Key = tuple[float, float, tuple[int, ...]]
"""What sorts hypotheses, smallest first: two numbers, then the tokens, which differ between any two."""


@dataclass(frozen=True)
class Context:
    """What a score may know of the input besides the hypothesis itself."""

    n_max: int  # most tokens a finished hypothesis may have, EOS included, BOS not
    source_length: int = 0  # |x|, without EOS
    source: Any = field(default=None, compare=False, repr=False)  # x itself, as the model was given it


@dataclass(slots=True, init=False, eq=False, repr=False)
class Hypothesis:
    """A prefix y: one token and a link to the prefix before it.

    `value` is the sum of increments, which ranks hypotheses of one length; `worth` is the score at its own length;
    `bound` is the best score that any longer continuation can reach; `reach` is the better of the two.
    `successors` is None until the model has scored the hypothesis: then it is *closed*, before that *open*.
    `state` belongs to whoever runs the model, `node` to what constrains the output, where something does.
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
    rank: Key  # its place among hypotheses of the same length
    key: Key  # its place on the agenda, or among the answers
    on_beam: bool
    evicted: bool
    successors: Successors | None
    children: dict[int, Hypothesis]
    state: Any
    state_key: Hashable  # of what is equal, hypotheses of one length have the same continuations; None: of nobody knows what
    node: Any
    wanted: Collection[int]  # tokens among its successors that are asked for, however unlikely
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
