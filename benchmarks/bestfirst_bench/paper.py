"""The paper's experiments: its published numbers (cited, not measured), and the settings to repeat each of its tables.

Meister, Vieira and Cotterell, "Best-First Beam Search", TACL 2020, all tables of section 6. They used other models, and whole
test sets: calls, increases and search errors can be compared with ours, absolute BLEU cannot. The numbers are in `paper.csv`; its
"weight" is the paper's beta, and its search errors of mutual information are relative to beam search with nothing clipped.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

from .setting import LANGUAGE_MODEL, TOOLKIT_STOPS, Setting

# -- the paper's numbers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Published:
    """One line of a table of the paper; None where it prints nothing. `increase`, `error` and `quality` are in percent."""

    k: int
    method: str
    calls: float
    increase: float | None = None
    error: float | None = None
    quality: float | None = None  # BLEU, or ROUGE-L for CNN-DailyMail
    gain: float | None = None  # of BLEU, over the baseline of its table
    parameters: dict[str, float] = field(default_factory=dict, hash=False)

    @property
    def quality_and_gain(self) -> str:
        gain = "" if self.gain is None else f" ({self.gain:+.1f})"
        return "" if self.quality is None else f"{self.quality:.1f}{gain}"

    @property
    def named_parameters(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in self.parameters.items())


DATASETS = {"iwslt14": "IWSLT'14 De-En", "wmt17": "WMT'17 De-En", "mttt": "MTTT Fr-En", "cnn-dm": "CNN-DailyMail"}


def _read_tables() -> dict[str, dict[str, list[Published]]]:
    """The lines of `paper.csv`, by table and dataset."""
    tables: dict[str, dict[str, list[Published]]] = {}
    with (files(__package__) / "paper.csv").open(encoding="utf-8") as stream:
        for table, dataset, k, method, *printed, parameters in list(csv.reader(stream))[1:]:
            numbers = [float(number) if number else None for number in printed]
            given = {name: float(value) for name, value in (part.split("=") for part in parameters.split())}
            line: tuple[Any, ...] = (int(k), method, *numbers, given)
            tables.setdefault(table, {}).setdefault(dataset, []).append(Published(*line))
    return tables


TABLES = _read_tables()

# -- the settings to measure ---------------------------------------------------------------------------------------------

NONE: Mapping[str, float] = {}


def paper_setting(search: str, k: int, score: str = "logprob", parameters: Mapping[str, float] = NONE, **more: Any) -> Setting:
    """A setting with the paper's rules: finished hypotheses keep their slots, n_max = ceil(2|x|)."""
    options: dict[str, Any] = {"language_model": LANGUAGE_MODEL} if score == "mutual-information" else {}
    rules = {"finished": "keep", "max_length": "2x", **more}
    return Setting.of(search, k, score=score, score_options={**options, **parameters}, **rules)


@dataclass(frozen=True)
class PlannedLine:
    """One line of a table: the setting to search with, its baselines, and the paper's numbers.

    `baseline` is beam search with the same score, to which increase and search error are relative. `zero` is the line to which
    gains of BLEU are relative, and for mutual information also the paper's own search error.
    """

    setting: Setting
    score: str = ""  # a title, if a table has several scores
    baseline: Setting | None = None
    zero: Setting | None = None
    published: Published | None = None
    search: str | None = None  # a title instead of the search's name


Planner = Callable[[int, Mapping[str, Published]], list[PlannedLine]]


@dataclass(frozen=True)
class Experiment:
    """One table of the paper."""

    name: str
    title: str
    lines: Planner
    beams: tuple[int, ...]
    every_beam: bool = True  # whether it can be run with a beam for which the paper has no parameters
    validation: bool = False  # whether the paper ran it on the validation set
    language_model: bool = False

    def plan(self, dataset: str, beams: Sequence[int]) -> list[PlannedLine]:
        """All lines of the table, by beam size. ValueError for a beam size that it cannot be run with."""
        cited = TABLES.get(self.name, {}).get(dataset, [])
        plan = []
        for k in beams:
            here = {line.method: line for line in cited if line.k == k}
            if not here and not self.every_beam:
                known = ", ".join(str(k) for k in sorted({line.k for line in cited}))
                where = f"the paper's table {self.name!r} for {DATASETS[dataset]}"
                raise ValueError(f"{where} has parameters for k = {known}, not for {k}" if cited else f"there is no {where[4:]}")
            plan += self.lines(k, here)
        return plan


def over_beam(*searches: str, last: str | None = None) -> Planner:
    """A table of plain log-probability: beam search, and these searches compared with it; `last`: title of the last one."""

    def lines(k: int, cited: Mapping[str, Published]) -> list[PlannedLine]:
        beam = paper_setting("beam", k)
        plan = [PlannedLine(beam, zero=beam, published=cited.get("beam"))]
        plan += [PlannedLine(paper_setting(name, k), "", beam, beam, cited.get(name)) for name in searches]
        return [*plan[:-1], replace(plan[-1], search=last)]

    return lines


def length(k: int, cited: Mapping[str, Published]) -> list[PlannedLine]:
    """Section 6.2: no reward; the bounded reward by heuristic; the reward by stopping criterion; both also by exact search."""
    zero = paper_setting("beam", k)
    bounded, reward = cited["heuristic"], cited["stopping"]
    beta, ratio = bounded.parameters["beta"], bounded.parameters["ratio"]
    times = "" if ratio == 1 else f"{ratio:g} "
    return [
        PlannedLine(zero, "no reward", zero=zero),
        *_by_method(k, "bounded-length-reward", bounded, f"beta {beta:g}, b = {times}|x|", zero),
        *_by_method(k, "length-reward", reward, f"beta {reward.parameters['beta']:g}, b = n_max", zero),
    ]


def mutual_information(k: int, cited: Mapping[str, Published]) -> list[PlannedLine]:
    """Section 6.3: nothing clipped, then each method with the paper's epsilon for it; each with exact search."""
    baseline = cited["beam"]
    zero = paper_setting("beam", k, "mutual-information", baseline.parameters)
    lines = [PlannedLine(zero, "epsilon 0", zero=zero, published=baseline)]
    for published in (cited["heuristic"], cited["stopping"]):
        lines += _by_method(k, "mutual-information", published, f"epsilon {published.parameters['epsilon']:g}", zero)
    return lines


def _by_method(k: int, score: str, published: Published, title: str, zero: Setting) -> list[PlannedLine]:
    """Lines for one score: searched level by level, by the paper's method, and exactly."""
    beam, method, exact = (
        paper_setting(search, k, score, published.parameters) for search in ("beam", published.method, "best-first")
    )
    return [
        PlannedLine(beam, title, zero=zero),
        PlannedLine(method, title, beam, zero, published),
        PlannedLine(exact, title, beam, zero, search="exact"),
    ]


def figure(k: int, cited: Mapping[str, Published]) -> list[PlannedLine]:
    """Calls against time, one sentence at a time: one row a forward pass, as in the paper; then the engine's own row budget."""
    lines = []
    for rows in (1, None):
        beam, best_first = (paper_setting(search, k, row_budget=rows, alone=True) for search in ("beam", "best-first"))
        title = "a row a pass" if rows else "rows together"
        lines += [PlannedLine(beam, title), PlannedLine(best_first, title, beam)]
    return lines


def toolkit_stops(k: int, cited: Mapping[str, Published]) -> list[PlannedLine]:
    """Not in the paper: beam search with the rules and stops of today's toolkits, and best-first search with the same answers."""
    lines = []
    scores: dict[str, Any] = {"log p": {}, "log p / N": {"score": "length-normalized", "parameters": {"alpha": 1.0}}}
    for title, how in scores.items():
        for stop in TOOLKIT_STOPS:
            beam, ours = (paper_setting(search, k, finished="leave", **how) for search in (stop, f"best-first/{stop}"))
            lines += [PlannedLine(beam, title), PlannedLine(ours, title, beam)]
    return lines


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        # Section 6.1: calls of beam search, of the same with OpenNMT's early stopping, and of best-first.
        Experiment("results", "Calls (the paper's table of results)", over_beam("es", "best-first"), (5, 10, 100)),
        # Other stopping rules for beam search. Both are our reading of the papers that the paper cites.
        Experiment("stopping", "Stopping criteria", over_beam("shrinking", "early", "best-first"), (10, 100)),
        Experiment("length", "Length normalization", length, (5, 10), every_beam=False),
        Experiment("mutual-information", "Mutual information", mutual_information, (5, 10), False, language_model=True),
        # Section 6.4: a queue of at most gamma k hypotheses. With gamma = n_max nothing is ever dropped: plain best-first search.
        Experiment(
            "memory",
            "Memory-reduced search",
            over_beam("gamma=2", "gamma=5", "best-first", last="gamma=n_max"),
            (5, 10),
            validation=True,
        ),
        Experiment("stops", "Today's stops", toolkit_stops, (5, 10)),
        Experiment("figure", "Calls against time, a sentence at a time", figure, (3, 10)),
    )
}
