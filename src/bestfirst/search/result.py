"""Result and Answer: what a search returns for one input, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from .hypothesis import Hypothesis

if TYPE_CHECKING:
    from .trace import Trace

Status = Literal["complete", "incomplete", "budget", "error"]
"""complete: something finished; incomplete: nothing finished within n_max; budget: `max_calls` reached; error: see `message`."""


@dataclass(slots=True)
class Answer:
    """One output: its tokens (no BOS, at most one EOS, last) and its scores."""

    tokens: tuple[int, ...]
    score: float  # the value it was ranked by
    logprob: float  # plain sum of log-probabilities
    text: str | None = None
    truncated: bool = False  # it has no end: cut at the length limit, or unfinished because nothing finished
    item: int | None = None  # its number in the `Trie` of allowed outputs, if there is one

    @classmethod
    def of(cls, y: Hypothesis) -> Answer:
        return cls(y.tokens, float(y.worth), float(y.logprob))


@dataclass(slots=True)
class Result:
    """The outcome for one input.

    `calls` counts the hypotheses that the algorithm had to score (the paper's metric), `rows` those the model was run on,
    speculation included, `steps` the forward passes this input took part in, `lm_calls` the calls of the additional language
    model that some scores need. `drafted` rows were guessed ahead of their prefixes' scores; the search came to need `accepted`
    of them. `exact` says whether the hypotheses are beam search's, provided that the score's bound holds (`check_score`).
    """

    hypotheses: list[Answer] = field(default_factory=list)
    calls: int = 0
    rows: int = 0
    steps: int = 0
    lm_calls: int = 0
    drafted: int = 0
    accepted: int = 0
    exact: bool = False
    status: Status = "error"
    message: str | None = None
    partial: Answer | None = None  # the best unfinished hypothesis, if nothing finished
    trace: Trace | None = field(default=None, repr=False, compare=False)  # the recorded search, if a trace was requested

    @property
    def text(self) -> str | None:
        """The text of the best hypothesis; if nothing finished, that of the best unfinished one (`truncated`)."""
        best = self.best
        return None if best is None else best.text

    @property
    def best(self) -> Answer | None:
        """The best hypothesis; if nothing finished, the best unfinished one; None if there is not even that."""
        return self.hypotheses[0] if self.hypotheses else self.partial

    @property
    def truncated(self) -> bool:
        """Whether the best hypothesis is not properly ended (`Answer.truncated`)."""
        return self.best is not None and self.best.truncated
