"""bench scores: the paper's tables of length normalization and mutual information, on any model, with exact search beside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..decoding import decode
from ..models import Model
from ..scoring import BoundedLengthReward, LengthReward, LogProbability, MutualInformation, Score
from ..search import Result
from .paper import HYPERPARAMETERS, LENGTH, MUTUAL_INFORMATION, Published

NEAR_TIE = 1e-4  # two scores this close are one: batch shape changes logits in the last bits


@dataclass(frozen=True)
class Block:
    """One score, searched level by level, by the paper's method and exactly. A baseline is searched level by level alone."""

    title: str
    score: Score
    method: str | None  # the paper's
    published: Published | None


@dataclass(frozen=True)
class Line:
    """One search of all sentences. Whatever is in percent is so of the sentences.

    `increase` is (old - new) / new, old being the calls of beam search with the same score. `different` outputs are not that beam
    search's; `lower` and `higher` scores differ from its by 1e-4 or more. `unlike_baseline` outputs are not those of beam search
    with nothing clipped, which is what the paper calls search error for mutual information.
    """

    beam: int
    score: str
    method: str
    calls: float  # a sentence
    lm_calls: float
    bleu: float
    gain: float  # of BLEU, over the table's baseline
    unfinished: int  # sentences of which nothing finished within n_max: no output
    increase: float | None = None
    different: float | None = None
    lower: float | None = None
    higher: float | None = None
    unlike_baseline: float | None = None
    published: Published | None = None

    def json(self) -> dict[str, Any]:
        return asdict(self)


def length_blocks(k: int) -> list[Block]:
    """Section 6.2: log-probability as it is, the bounded reward with the heuristic, the reward with the stopping criterion."""
    chosen = HYPERPARAMETERS[k]
    return [
        Block("no reward", LogProbability(), None, None),
        Block(
            f"beta {chosen.bounded_beta:g}, b = |x|",
            BoundedLengthReward(chosen.bounded_beta, ratio=1.0),
            "heuristic",
            LENGTH[k, "heuristic"],
        ),
        Block(f"beta {chosen.beta:g}, b = n_max", LengthReward(chosen.beta), "stopping", LENGTH[k, "stopping"]),
    ]


def mutual_information_blocks(k: int, language_model: Model) -> list[Block]:
    """Section 6.3: nothing clipped, then each method with the epsilon that the paper chose for it."""
    chosen = HYPERPARAMETERS[k]

    def block(epsilon: float, method: str | None) -> Block:
        score = MutualInformation(language_model, chosen.weight, epsilon)
        return Block(f"epsilon {epsilon:g}", score, method, MUTUAL_INFORMATION[k, method or "baseline"])

    return [block(0, None), block(chosen.heuristic_epsilon, "heuristic"), block(chosen.stopping_epsilon, "stopping")]


class Bench:
    """Searches the same sentences again and again, as the paper does: n_max = 2|x|, finished hypotheses keep their slots."""

    def __init__(
        self, model: Model, sources: Sequence[str], references: Sequence[str], progress: Callable[[str], None] = lambda _: None
    ) -> None:
        from sacrebleu.metrics import BLEU

        self.model = model
        self.sources = sources
        self.references = references
        self.progress = progress
        self._bleu = BLEU(tokenize="none", force=True)  # text as it is: the paper's is tokenised and lower-cased already

    @property
    def signature(self) -> str:
        """sacrebleu's, once there is a number to sign."""
        return str(self._bleu.get_signature())

    def tables(self, beams: Sequence[int], language_model: Model | None = None) -> Iterator[tuple[str, Line]]:
        """Every line, after the name of its table; mutual information needs a language model."""
        for k in beams:
            for line in self.lines(k, length_blocks(k)):
                yield "length normalization", line
        if language_model is None:
            return
        for k in beams:
            for line in self.lines(k, mutual_information_blocks(k, language_model), compare_with_baseline=True):
                yield "mutual information", line

    def lines(self, k: int, blocks: Sequence[Block], compare_with_baseline: bool = False) -> Iterator[Line]:
        """One table at one beam size. The first block is its baseline."""
        baseline: list[Result] = []
        zero = 0.0
        for block in blocks:
            beam = self._search(k, block, "beam")
            if not baseline:
                baseline, zero = beam, self._score(beam)
            against = baseline if compare_with_baseline and beam is not baseline else None
            # The paper's own line for a baseline is that of beam search.
            yield self._line(k, block, "beam", beam, zero, against, None, block.published if block.method is None else None)
            for method in [block.method, "exact"] if block.method is not None else []:
                published = block.published if method == block.method else None
                yield self._line(k, block, method, self._search(k, block, method), zero, against, beam, published)

    def _search(self, k: int, block: Block, method: str) -> list[Result]:
        self.progress(f"beam {k}, {block.title}: {method}")
        how = {"strategy": "beam"} if method == "beam" else {"method": method}
        settings: dict[str, Any] = {"beam": k, "score": block.score, "finished": "keep", "max_length": _n_max, **how}
        results = decode(self.model, self.sources, **settings)
        for number, result in enumerate(results, 1):
            if result.status == "error":
                raise ValueError(f"line {number} cannot be decoded: {result.message}")
        return results

    def _score(self, results: Sequence[Result]) -> float:
        return float(self._bleu.corpus_score([result.text or "" for result in results], [list(self.references)]).score)

    def _line(
        self,
        k: int,
        block: Block,
        method: str,
        results: Sequence[Result],
        zero: float,
        baseline: Sequence[Result] | None,
        beam: Sequence[Result] | None,
        published: Published | None,
    ) -> Line:
        calls, bleu = _mean(result.calls for result in results), self._score(results)
        compared: dict[str, float] = {}
        if baseline is not None:
            compared["unlike_baseline"] = _different(results, baseline)
        if beam is not None:
            old = _mean(result.calls for result in beam)
            gaps = [
                _top_score(ours) - _top_score(theirs) for ours, theirs in zip(results, beam, strict=True) if _both(ours, theirs)
            ]
            compared["increase"] = 100 * (old - calls) / calls
            compared["different"] = _different(results, beam)
            compared["lower"] = 100 * sum(gap <= -NEAR_TIE for gap in gaps) / len(results)
            compared["higher"] = 100 * sum(gap >= NEAR_TIE for gap in gaps) / len(results)
        return Line(
            beam=k,
            score=block.title,
            method=method,
            calls=calls,
            lm_calls=_mean(result.lm_calls for result in results),
            bleu=bleu,
            gain=bleu - zero,
            unfinished=sum(not result.hypotheses for result in results),
            published=published,
            **compared,
        )


def _n_max(source_length: int) -> int:
    """The paper's 2|x|; even an empty input may end."""
    return max(2 * source_length, 1)


def _mean(numbers: Iterable[float]) -> float:
    counted = list(numbers)
    return sum(counted) / len(counted)


def _both(ours: Result, theirs: Result) -> bool:
    return bool(ours.hypotheses and theirs.hypotheses)


def _top_score(result: Result) -> float:
    return result.hypotheses[0].score


def _different(results: Sequence[Result], others: Sequence[Result]) -> float:
    """Percent of best outputs that are not the same tokens; none and none are the same."""
    tops = [[result.hypotheses[0].tokens if result.hypotheses else None for result in found] for found in (results, others)]
    return 100 * sum(a != b for a, b in zip(*tops, strict=True)) / len(results)
