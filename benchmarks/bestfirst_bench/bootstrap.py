"""Paired bootstrap: confidence intervals for the difference between two settings' outputs (Koehn 2004).

A metric of a whole text is a function of sums of line statistics. The sums are taken over lines drawn with replacement, with the
same draws for every setting, so that effects of the choice of lines cancel out of a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

SAMPLES = 1000
COMET = "Unbabel/wmt22-comet-da"
LIBRARIES = {"bleu": "sacrebleu", "chrf": "sacrebleu", "rouge-l": "rouge_score", "comet": "comet"}
TITLES = {"bleu": "BLEU", "chrf": "chrF", "rouge-l": "ROUGE-L"}  # metrics that do not read the source
NAMES = {**TITLES, "comet": "COMET"}
INSTALL = "pip install 'bestfirst[bench]'"

Statistics = list[float]


@dataclass(frozen=True)
class Interval:
    """A number and its 95 % interval over draws of the lines."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1f} [{self.low:.1f}, {self.high:.1f}]"

    @property
    def signed(self) -> str:
        return f"{self.value:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"

    @property
    def noise(self) -> bool:
        """Whether the interval contains 0."""
        return self.low <= 0 <= self.high


@dataclass(frozen=True)
class LineMetric:
    """A metric in percent: a function to the statistics of each line, and one from their sums to the score."""

    name: str
    signature: str
    of_lines: Callable[[Sequence[str], Sequence[str], Sequence[str]], list[Statistics]]  # of sources, outputs, references
    score: Callable[[Any], float]

    @property
    def title(self) -> str:
        return NAMES[self.name]

    def of_text(self, outputs: Sequence[str], references: Sequence[str]) -> float:
        """The score of a whole text, for a metric that does not read the source."""
        lines = self.of_lines([], outputs, references)
        return self.score([sum(column) for column in zip(*lines, strict=True)])


def line_metrics(names: Sequence[str], tokenize: str, known: Iterable[str] = LIBRARIES) -> tuple[list[LineMetric], list[str]]:
    """The metrics of these names; and for those whose library is missing, a message with what to install."""
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"unknown metric {unknown[0]!r}; choose from {', '.join(known)}")
    makers = {"bleu": lambda: _sacrebleu("bleu", tokenize), "chrf": lambda: _sacrebleu("chrf", tokenize)}
    makers |= {"rouge-l": _rouge_l, "comet": _comet}
    installed = [name for name in names if find_spec(LIBRARIES[name]) is not None]
    missing = []
    for name in (name for name in names if name not in installed):
        install = "pip install unbabel-comet" if name == "comet" else INSTALL
        missing.append(f"{NAMES[name]} is left out: it needs {LIBRARIES[name].replace('_', '-')}; {install}")
    return [makers[name]() for name in installed], missing


def _sacrebleu(name: str, tokenize: str) -> LineMetric:
    """BLEU or chrF. `tokenize` is BLEU's: `none` for text that is tokenized already."""
    from sacrebleu.metrics import BLEU, CHRF

    if tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"sacrebleu has no tokenizer {tokenize!r}; choose from {', '.join(BLEU.TOKENIZERS)}")
    metric: Any = BLEU(tokenize=tokenize, force=True) if name == "bleu" else CHRF()
    metric.corpus_score(["a"], [["a"]])  # before the first score it has no signature

    def of_lines(_: Sequence[str], outputs: Sequence[str], references: Sequence[str]) -> list[Statistics]:
        return metric._extract_corpus_statistics(outputs, [references])

    return LineMetric(name, str(metric.get_signature()), of_lines, lambda sums: metric._compute_score_from_stats(sums).score)


def _rouge_l() -> LineMetric:
    """ROUGE-L's F-measure, averaged over the text, with Porter's stemmer."""
    from importlib.metadata import version

    from rouge_score.rouge_scorer import RougeScorer

    score = RougeScorer(["rougeL"], use_stemmer=True).score

    def of_lines(_: Sequence[str], outputs: Sequence[str], references: Sequence[str]) -> list[Statistics]:
        pairs = zip(references, outputs, strict=True)
        return [[100 * score(reference, output)["rougeL"].fmeasure, 1.0] for reference, output in pairs]

    return LineMetric("rouge-l", f"f-measure|stemmer:porter|average:mean|rouge-score:{version('rouge-score')}", of_lines, _mean)


def _comet() -> LineMetric:
    """COMET, a trained metric that reads the source too. The library downloads its model once."""
    from comet import download_model, load_from_checkpoint  # type: ignore[import-not-found, unused-ignore]

    model = load_from_checkpoint(download_model(COMET))

    def of_lines(sources: Sequence[str], outputs: Sequence[str], references: Sequence[str]) -> list[Statistics]:
        lines = [{"src": s, "mt": o, "ref": r} for s, o, r in zip(sources, outputs, references, strict=True)]
        return [[100 * score, 1.0] for score in model.predict(lines, batch_size=16, gpus=0, progress_bar=False).scores]

    return LineMetric("comet", f"model:{COMET}", of_lines, _mean)


def _mean(sums: Sequence[float]) -> float:
    return float(sums[0]) / float(sums[1])


class Bootstrap:
    """One metric on one text, with the same draws for the outputs of all settings. Statistics and scores of outputs are
    cached."""

    def __init__(self, metric: LineMetric, sources: Sequence[str], references: Sequence[str], samples: int = SAMPLES) -> None:
        self.metric = metric
        self.sources = sources
        self.references = references
        self.samples = samples
        self._statistics: dict[tuple[int, str], Statistics] = {}
        self._drawn: dict[tuple[str, ...], np.ndarray] = {}

    @cached_property
    def draws(self) -> np.ndarray:
        """How often each line is drawn: (samples, lines)."""
        import numpy as np

        lines = len(self.sources)
        return np.random.default_rng(1).multinomial(lines, np.full(lines, 1 / lines), size=self.samples)

    def statistics(self, outputs: Sequence[str]) -> np.ndarray:
        """(lines, statistics) for outputs of the first lines of the text."""
        import numpy as np

        new = [i for i, output in enumerate(outputs) if (i, output) not in self._statistics]
        if new:
            computed = self.metric.of_lines(*([each[i] for i in new] for each in (self.sources, outputs, self.references)))
            self._statistics |= {(i, outputs[i]): statistics for i, statistics in zip(new, computed, strict=True)}
        return np.asarray([self._statistics[i, output] for i, output in enumerate(outputs)])

    def value(self, outputs: Sequence[str]) -> float:
        """The metric of these outputs."""
        return self.metric.score(self.statistics(outputs).sum(0).tolist())

    def drawn(self, outputs: Sequence[str], draws: np.ndarray | None = None) -> np.ndarray:
        """The metric under each draw: (samples,). By default under this bootstrap's own draws, cached."""
        import numpy as np

        if draws is not None:
            return np.array([self.metric.score(sums) for sums in (draws @ self.statistics(outputs)).tolist()])
        key = tuple(outputs)
        if key not in self._drawn:
            self._drawn[key] = self.drawn(outputs, self.draws)
        return self._drawn[key]

    def interval(self, outputs: Sequence[str], baseline: Sequence[str] | None = None) -> Interval:
        """The metric of these outputs; or its difference to that of the baseline's outputs."""
        import numpy as np

        less = (0.0, 0.0) if baseline is None else (self.value(baseline), self.drawn(baseline))
        low, high = np.percentile(self.drawn(outputs) - less[1], [2.5, 97.5])
        return Interval(self.value(outputs) - less[0], float(low), float(high))

    def clear_gains(self, candidates: Sequence[Sequence[str]], samples: int = 100) -> np.ndarray:
        """(candidates, candidates): whether the first is better than the second by more than 2.58 standard deviations of the
        difference (99 in 100), on the lines that have outputs."""
        import numpy as np

        lines = len(candidates[0])
        draws = np.random.default_rng(2).multinomial(lines, np.full(lines, 1 / lines), size=samples)
        drawn = {key: self.drawn(key, draws) for key in set(map(tuple, candidates))}
        matrix = np.array([drawn[tuple(outputs)] for outputs in candidates])
        values = np.array([self.value(outputs) for outputs in candidates])
        gains = values[:, None] - values[None]
        spreads = np.array([np.std(row - matrix, axis=1) for row in matrix])
        return (gains > 0) & (gains > 2.58 * spreads)

    def picked(self, candidates: Sequence[Sequence[str]], baseline: Sequence[str]) -> Interval:
        """The gain of the best candidate on held-out lines: picked on the lines of each draw, measured on all others.

        The best of many is the best in part by chance, so its gain on the lines that it was picked on is too high.
        """
        import numpy as np

        held_out = (self.draws == 0).astype(int)
        judged = np.flatnonzero(held_out.any(1))
        best = np.argmax([self.drawn(outputs)[judged] for outputs in candidates], axis=0)
        others = np.array([self.drawn(outputs, held_out[judged]) for outputs in candidates])
        gains = others[best, np.arange(len(judged))] - self.drawn(baseline, held_out[judged])
        low, high = np.percentile(gains, [2.5, 97.5])
        return Interval(float(gains.mean()), float(low), float(high))
