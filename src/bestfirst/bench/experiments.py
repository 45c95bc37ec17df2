"""The paper's experiments as runs: for each of its tables, what to search with which beam, and what to compare it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from .paper import DATASETS, TABLES, Published
from .setting import Setting

paper_setting = partial(Setting, finished="keep", ratio=2.0)
"""Finished hypotheses keep their slots, n_max = ceil(2|x|)."""


@dataclass(frozen=True)
class Entry:
    """One line of a table: what is searched, beside which baseline, and what the paper reports for it.

    `baseline` is beam search with the same score: increase and search error are over it. `zero` is the line that gains of BLEU
    are over, and for mutual information the one that the paper's own search error is against.
    """

    setting: Setting
    score: str = ""  # a title, where a table has several scores
    baseline: Setting | None = None
    zero: Setting | None = None
    published: Published | None = None
    search: str | None = None  # a title, where the search's name will not do


@dataclass(frozen=True)
class Experiment:
    """One table of the paper."""

    name: str
    title: str
    entries: Callable[[int, Mapping[str, Published]], list[Entry]]
    beams: tuple[int, ...]
    every_beam: bool = True  # whether it can be run with a beam for which the paper has no parameters
    validation: bool = False  # whether the paper ran it on the validation set
    language_model: bool = False

    def plan(self, dataset: str, beams: Sequence[int]) -> list[Entry]:
        """All its lines, the beams one after the other."""
        cited = TABLES.get(self.name, {}).get(dataset, [])
        plan = []
        for k in beams:
            here = {line.method: line for line in cited if line.k == k}
            if not here and not self.every_beam:
                known = ", ".join(str(k) for k in sorted({line.k for line in cited}))
                where = f"the paper's table {self.name!r} for {DATASETS[dataset]}"
                raise ValueError(
                    f"{where} has parameters for --beam {known}, not for {k}" if cited else f"there is no {where[4:]}"
                )
            plan += self.entries(k, here)
        return plan


def _over_beam(k: int, searches: Sequence[str], cited: Mapping[str, Published]) -> list[Entry]:
    beam = paper_setting("beam", k)
    lines = [Entry(beam, zero=beam, published=cited.get("beam"))]
    return lines + [Entry(paper_setting(name, k), "", beam, beam, cited.get(name)) for name in searches]


def results(k: int, cited: Mapping[str, Published]) -> list[Entry]:
    """Section 6.1: calls of beam search, of the same with OpenNMT's early stopping, and of best-first."""
    return _over_beam(k, ("es", "best-first"), cited)


def stopping(k: int, cited: Mapping[str, Published]) -> list[Entry]:
    """Section 6.1: other rules to stop beam search by. Both are our reading of the papers that the paper cites."""
    return _over_beam(k, ("shrinking", "early", "best-first"), cited)


def memory(k: int, cited: Mapping[str, Published]) -> list[Entry]:
    """Section 6.4: a queue of at most gamma k hypotheses. With gamma = n_max nothing ever goes: best-first itself."""
    lines = _over_beam(k, ("gamma=2", "gamma=5", "best-first"), cited)
    return [*lines[:-1], replace(lines[-1], search="gamma=n_max")]


def length(k: int, cited: Mapping[str, Published]) -> list[Entry]:
    """Section 6.2: no reward; the bounded reward by the heuristic; the reward by the stopping criterion. Exact search beside."""
    zero = paper_setting("beam", k)
    bounded, reward = cited["heuristic"], cited["stopping"]
    beta, ratio = bounded.parameters["beta"], bounded.parameters["ratio"]
    times = "" if ratio == 1 else f"{ratio:g} "
    return [
        Entry(zero, "no reward", zero=zero),
        *_by_method(k, "bounded-length-reward", bounded, f"beta {beta:g}, b = {times}|x|", zero),
        *_by_method(k, "length-reward", reward, f"beta {reward.parameters['beta']:g}, b = n_max", zero),
    ]


def mutual_information(k: int, cited: Mapping[str, Published]) -> list[Entry]:
    """Section 6.3: nothing clipped, then each method with the epsilon that the paper chose for it. Exact search beside."""
    baseline = cited["beam"]
    zero = paper_setting("beam", k, "mutual-information", baseline.parameters)
    lines = [Entry(zero, "epsilon 0", zero=zero, published=baseline)]
    for published in (cited["heuristic"], cited["stopping"]):
        lines += _by_method(k, "mutual-information", published, f"epsilon {published.parameters['epsilon']:g}", zero)
    return lines


def _by_method(k: int, score: str, published: Published, title: str, zero: Setting) -> list[Entry]:
    """One score, searched level by level, by the paper's method, and exactly."""
    beam, method, exact = (
        paper_setting(search, k, score, published.parameters) for search in ("beam", published.method, "best-first")
    )
    return [
        Entry(beam, title, zero=zero),
        Entry(method, title, beam, zero, published),
        Entry(exact, title, beam, zero, search="exact"),
    ]


def figure(k: int, cited: Mapping[str, Published]) -> list[Entry]:
    """Calls against time, a sentence at a time: a call a forward pass, as in the paper; then as many as the engine likes."""
    lines = []
    for rows in (1, None):
        beam, best_first = (paper_setting(search, k, row_budget=rows, alone=True) for search in ("beam", "best-first"))
        title = "a row a pass" if rows else "rows together"
        lines += [Entry(beam, title), Entry(best_first, title, beam)]
    return lines


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment("results", "Calls (the paper's table of results)", results, (5, 10, 100)),
        Experiment("stopping", "Stopping criteria", stopping, (10, 100)),
        Experiment("length", "Length normalization", length, (5, 10), every_beam=False),
        Experiment("mutual-information", "Mutual information", mutual_information, (5, 10), False, language_model=True),
        Experiment("memory", "Memory-reduced search", memory, (5, 10), validation=True),
        Experiment("figure", "Calls against time, a sentence at a time", figure, (3, 10)),
    )
}
