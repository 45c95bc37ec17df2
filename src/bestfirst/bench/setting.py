"""Setting: one way to decode, by names, so that it can be written down beside its results and read again."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any

from ..models import Model
from ..scoring import Score, named_score
from ..strategies import STRATEGIES

SEARCHES: dict[str, dict[str, Any]] = {
    **{name: {"strategy": name} for name in STRATEGIES},
    "es": {"strategy": "beam", "stop": "opennmt"},  # the paper's early stopping
    "early": {"strategy": "beam", "stop": "huang"},
    **{stop: {"strategy": "beam", "stop": stop} for stop in ("shrinking", "hf-never", "hf-false", "hf-true")},
    "stopping": {"method": "stopping"},  # the paper's two methods for scores that can rise
    "heuristic": {"method": "heuristic"},
}
"""What `decode` is asked for each search; `gamma=2` besides, the paper's memory-reduced search with a queue of 2k."""

GAMMA = re.compile(r"gamma=(\d+)")


@dataclass(frozen=True)
class Setting:
    """Everything that an output and its cost depend on, but for the model and the text.

    `ratio` makes n_max = ceil(ratio |x|), the paper's rule with 2; without it and `max_length`, n_max is the model's own. `alone`
    decodes one input at a time, so that the time each took is its own.
    """

    search: str = "best-first"
    beam: int = 5
    score: str = "logprob"
    options: Mapping[str, float] = field(default_factory=dict, hash=False)  # the score's; a language model is named elsewhere
    finished: str = "leave"
    max_length: int | None = None
    ratio: float | None = None
    row_budget: int | None = None
    alone: bool = False

    def __post_init__(self) -> None:
        if self.search not in SEARCHES and not GAMMA.fullmatch(self.search):
            raise ValueError(f"unknown strategy {self.search!r}; choose from {', '.join(SEARCHES)} and gamma=N")

    @property
    def gamma(self) -> int | None:
        """The capacity of the queue over k, in memory-reduced search."""
        found = GAMMA.fullmatch(self.search)
        return int(found[1]) if found else None

    @property
    def scored(self) -> str:
        """The score and its parameters, as a command line has them."""
        options = ",".join(f"{name}={value:g}" for name, value in self.options.items())
        return f"{self.score}:{options}" if options else self.score

    @property
    def limit(self) -> str:
        """How n_max is found."""
        return f"{self.ratio:g}x" if self.ratio is not None else str(self.max_length or "model")

    @property
    def label(self) -> str:
        """All that sets it apart, in one line."""
        parts = [self.search, f"k:{self.beam}", f"score:{self.scored}", f"finished:{self.finished}", f"n_max:{self.limit}"]
        if self.row_budget is not None:
            parts.append(f"rows:{self.row_budget}")
        return "|".join([*parts, *(["alone"] if self.alone else [])])

    def arguments(self, language_model: Model | None = None) -> dict[str, Any]:
        """What `decode` is asked."""
        asked = {"beam": self.beam, "score": self.objective(language_model), "finished": self.finished}
        if self.gamma is not None:
            asked["queue_capacity"] = self.gamma * self.beam
        return {**asked, **SEARCHES.get(self.search, {}), "max_length": self._n_max(), "row_budget": self.row_budget}

    def objective(self, language_model: Model | None = None) -> Score:
        """The score as an object."""
        options: dict[str, Any] = dict(self.options)
        if self.score == "mutual-information":
            if language_model is None:
                raise ValueError("mutual-information needs a language model; name one with --lm")
            options["language_model"] = language_model
        return named_score(self.score, **options)

    def _n_max(self) -> int | Callable[[int], int] | None:
        ratio = self.ratio
        return self.max_length if ratio is None else lambda length: max(1, ceil(ratio * length))

    def json(self) -> dict[str, Any]:
        """What differs from the defaults."""
        plain = vars(Setting())
        return {name: value for name, value in asdict(self).items() if value != plain[name]}


def read_score(text: str) -> tuple[str, dict[str, float]]:
    """`length-reward:beta=0.5` as the score's name and parameters."""
    name, _, given = text.partition(":")
    options = {}
    for part in filter(None, given.split(",")):
        parameter, _, value = part.partition("=")
        try:
            options[parameter] = float(value)
        except ValueError:
            raise ValueError(f"a score is written name:parameter=number, as in length-reward:beta=0.5; got {text!r}") from None
    return name, options
