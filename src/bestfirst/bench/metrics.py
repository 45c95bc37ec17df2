"""Metrics: BLEU and chrF by sacrebleu, ROUGE-L by rouge-score, each with a signature that says how it was computed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

METRICS = ("bleu", "chrf", "rouge-l")
TITLES = {"bleu": "BLEU", "chrf": "chrF", "rouge-l": "ROUGE-L"}
INSTALL = "pip install 'bestfirst[bench]'"


class Metrics:
    """Scores outputs against references. What is not installed is left out, and named in `left_out`."""

    def __init__(self, names: Sequence[str] = ("bleu", "chrf"), tokenize: str = "13a") -> None:
        if unknown := [name for name in names if name not in METRICS]:
            raise ValueError(f"unknown metric {unknown[0]!r}; choose from {', '.join(METRICS)}")
        self.left_out: list[str] = []
        self._scorers: dict[str, Any] = {}
        self._known: dict[tuple[str, ...], dict[str, float]] = {}
        for name in names:
            library = "rouge_score" if name == "rouge-l" else "sacrebleu"
            if find_spec(library) is None:
                self.left_out.append(f"{TITLES[name]} is left out: it needs {library.replace('_', '-')}; {INSTALL}")
            else:
                self._scorers[name] = _scorer(name, tokenize)

    @property
    def names(self) -> list[str]:
        return list(self._scorers)

    def score(self, outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Each metric of the whole text, in percent. Searches that find the same outputs are scored once."""
        key = (*outputs, *references)
        if key not in self._known:
            self._known[key] = {name: scorer(outputs, references) for name, scorer in self._scorers.items()}
        return self._known[key]

    def signatures(self) -> list[str]:
        """How each number was computed."""
        return [f"{TITLES[name]}: {scorer.signature}" for name, scorer in self._scorers.items()]


def _scorer(name: str, tokenize: str) -> Any:
    return RougeL() if name == "rouge-l" else SacreBleu(name, tokenize)


class SacreBleu:
    """BLEU or chrF of a whole text. `tokenize` is BLEU's: `none` for text that is tokenized already."""

    def __init__(self, name: str, tokenize: str) -> None:
        from sacrebleu.metrics import BLEU, CHRF

        if tokenize not in BLEU.TOKENIZERS:
            raise ValueError(f"sacrebleu has no tokenizer {tokenize!r}; choose from {', '.join(BLEU.TOKENIZERS)}")
        self._metric: Any = BLEU(tokenize=tokenize, force=True) if name == "bleu" else CHRF()

    def __call__(self, outputs: Sequence[str], references: Sequence[str]) -> float:
        return float(self._metric.corpus_score(list(outputs), [list(references)]).score)

    @property
    def signature(self) -> str:
        """sacrebleu's own, known once there is a number to sign."""
        if getattr(self._metric, "num_refs", None) in (None, -1):
            self(["a"], ["a"])
        return str(self._metric.get_signature())


class RougeL:
    """ROUGE-L's F-measure, averaged over the text, with Porter's stemmer."""

    def __init__(self) -> None:
        from rouge_score.rouge_scorer import RougeScorer

        self._scorer = RougeScorer(["rougeL"], use_stemmer=True)

    def __call__(self, outputs: Sequence[str], references: Sequence[str]) -> float:
        pairs = zip(outputs, references, strict=True)
        return sum(100 * self._scorer.score(reference, output)["rougeL"].fmeasure for output, reference in pairs) / len(outputs)

    @property
    def signature(self) -> str:
        return f"f-measure|stemmer:porter|average:mean|rouge-score:{version('rouge-score')}"
