"""Setting: one way to decode, with a name for its search, that is saved with its results."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from bestfirst.settings import Decoding
from bestfirst.strategies import STRATEGIES

if TYPE_CHECKING:
    from bestfirst.models import Model

TOOLKIT_STOPS = ("hf-never", "hf-false", "hf-true", "patience", "ctranslate2")  # stops that both searches have
SEARCHES: dict[str, dict[str, Any]] = {
    **{name: {"strategy": name} for name in STRATEGIES},
    "es": {"strategy": "beam", "stop": "opennmt"},  # the paper's early stopping
    "early": {"strategy": "beam", "stop": "huang"},
    "shrinking": {"strategy": "beam", "stop": "shrinking"},
    **{stop: {"strategy": "beam", "stop": stop} for stop in TOOLKIT_STOPS},
    **{f"best-first/{stop}": {"strategy": "best-first", "stop": stop} for stop in TOOLKIT_STOPS},
    "stopping": {"method": "stopping"},  # the paper's two methods for scores that can rise
    "heuristic": {"method": "heuristic"},
}
"""Arguments of `Decoding` for each search. In addition there is `gamma=N`, the paper's memory-reduced search with a queue of N k.

`best-first/STOP` returns the answers of beam search with that stop. Patience waits for twice as many answers as the beam has
slots; with as many answers as slots it would be `hf-true`."""

GAMMA = re.compile(r"gamma=(\d+)")
LANGUAGE_MODEL = "lm"  # placeholder for a score's language model in settings; a row's signature tells which one it was


@dataclass(frozen=True)
class Setting:
    """How to decode, and the name of the search. `alone`: one input at a time, so that each has its own time."""

    search: str
    decoding: Decoding
    alone: bool = False

    @classmethod
    def of(cls, search: str, beam: int = 5, *, alone: bool = False, **decoding: Any) -> Setting:
        """The search of this name, with other arguments of `Decoding`. ValueError for arguments that contradict each other."""
        return cls(search, Decoding(beam=beam, **_decoding_options(search, beam), **decoding), alone)

    def using(self, search: str) -> Setting:
        """The same settings with another search."""
        return replace(self, search=search, decoding=self.decoding.using(**_decoding_options(search, self.beam)))

    @property
    def beam(self) -> int:
        return self.decoding.beam

    @property
    def scored(self) -> str:
        """The score and its parameters, as on a command line."""
        options = [f"{name}={value:g}" for name, value in self.decoding.score_options.items() if name != "language_model"]
        return f"{self.decoding.score}:{','.join(options)}" if options else str(self.decoding.score)

    @property
    def rules(self) -> str:
        """The score, the rule for finished hypotheses, and n_max."""
        return f"{self.scored}, {self.decoding.finished}, n_max {self.decoding.max_length or 'model'}"

    @property
    def signature(self) -> str:
        """All settings in one line, as the key of saved results."""
        rows = [] if self.decoding.row_budget is None else [f"rows:{self.decoding.row_budget}"]
        # For some stops, best-first search proves beam search's answers and stops by its own rule, so the name is added.
        rows += [] if self.decoding.stop in (None, self.decoding.plan.stop.name) else [f"as:{self.decoding.stop}"]
        return "|".join([self.decoding.signature, *rows, *(["alone"] if self.alone else [])])

    @property
    def baseline(self) -> Setting:
        """The beam search with the same answers."""
        return self.using(self.search.removeprefix("best-first/") if "/" in self.search else "beam")

    @property
    def needs_language_model(self) -> bool:
        return self.decoding.score == "mutual-information"

    def with_language_model(self, model: Model | None) -> Decoding:
        """The settings for `decode`, with the language model in place of its placeholder. ValueError if it is missing."""
        if not self.needs_language_model:
            return self.decoding
        if model is None:
            raise ValueError("mutual-information needs a language model")
        return self.decoding.using(score_options={**self.decoding.score_options, "language_model": model})

    def json(self) -> dict[str, Any]:
        return {"search": self.search, "alone": self.alone, "decoding": self.decoding.json()}


def _decoding_options(search: str, beam: int) -> dict[str, Any]:
    """The arguments of `Decoding` for the search of this name. ValueError for an unknown name."""
    plain: dict[str, Any] = {"strategy": "best-first", "method": "exact", "stop": None, "queue_capacity": None}
    plain["stop_options"] = {"factor": 2.0} if search.endswith("patience") else {}
    if gamma := GAMMA.fullmatch(search):
        return {**plain, "queue_capacity": int(gamma[1]) * beam}
    if search not in SEARCHES:
        raise ValueError(f"unknown strategy {search!r}; choose from {', '.join(SEARCHES)} and gamma=N")
    return {**plain, **SEARCHES[search]}


@cache
def read_setting(text: str) -> Setting:
    """The setting from the text of its `json`; cached, since many rows share one."""
    fields = json.loads(text)
    return Setting(fields["search"], Decoding(**fields["decoding"]), fields["alone"])


def read_score(text: str) -> dict[str, Any]:
    """`length-reward:beta=0.5` as arguments of `Decoding`."""
    name, _, parameters = text.partition(":")
    options: dict[str, Any] = {"language_model": LANGUAGE_MODEL} if name == "mutual-information" else {}
    for part in filter(None, parameters.split(",")):
        parameter, _, value = part.partition("=")
        try:
            options[parameter] = float(value)
        except ValueError:
            raise ValueError(f"a score is written name:parameter=number, as in length-reward:beta=0.5; got {text!r}") from None
    return {"score": name, "score_options": options}
