"""Error rates of the paper's two methods for scores that are not monotonic, and of the exact method, against beam search.

    python tests/scoring/mismatches.py --cases 1000

Random toy models without ties, the same for every method. Beam search runs to the end; its calls are counted under `keep` until
all hypotheses are finished, under `leave` until nothing can precede the k-th answer.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from math import exp, log
from typing import Any

from bestfirst.scoring import BoundedLengthReward, LengthReward, MutualInformation, Score
from bestfirst.search import (
    METHODS,
    AnyOrderSearch,
    Context,
    Exhausted,
    Finished,
    Strategy,
    Successors,
    beam,
    best_first_beam,
    by_method,
)

Toy = Callable[[tuple[int, ...]], Sequence[float]]
N_MAX, SOURCE, VOCABULARY, EOS = 8, 5, 5, 0
RULES: tuple[Finished, ...] = ("keep", "leave")
NO_MODEL: Any = None  # `toy_model` generates the language model's log-probabilities
SCORES = (
    ("length-reward beta=1", LengthReward(1.0)),
    ("length-reward beta=0.5", LengthReward(0.5)),
    ("bounded-length-reward beta=0.8 ratio=1", BoundedLengthReward(0.8, 1.0)),
    ("mutual-information weight=0.05 epsilon=0.02", MutualInformation(NO_MODEL, 0.05, 0.02)),
    ("mutual-information weight=0.3 epsilon=5e-4", MutualInformation(NO_MODEL, 0.3, 5e-4)),
)


@dataclass
class Mismatches:
    """One line of the table: the number of cases, those whose best answer is not beam search's, and the total calls."""

    score: str
    finished: str
    k: int
    cases: int
    beam_calls: int
    wrong: dict[str, int]
    calls: dict[str, int]


def toy_model(seed: str, score: Score) -> Toy:
    """Increments of `score` on a random model, with a random language model if it needs one."""

    def logprobs(kind: str, prefix: tuple[int, ...]) -> list[float]:
        rng = random.Random(f"{seed} {kind} {prefix}")
        logits = [rng.gauss(0, 2) for _ in range(VOCABULARY)]
        total = log(sum(exp(logit) for logit in logits))
        return [logit - total for logit in logits]

    @cache
    def increments(prefix: tuple[int, ...]) -> Sequence[float]:
        if score.plain:
            return logprobs("model", prefix)
        import numpy

        lm = numpy.array(logprobs("language model", prefix))
        return list(score.increment(numpy.array(logprobs("model", prefix)), lm))

    return increments


def run(toy: Toy, strategy: Strategy, score: Score) -> tuple[tuple[int, ...] | None, int]:
    """The best answer, and its calls."""
    search = AnyOrderSearch(strategy, score=score, eos={EOS}, context=Context(N_MAX, SOURCE))
    while batch := search.frontier(VOCABULARY):
        for y in batch:
            values = toy(y.tokens)
            tokens = sorted(range(VOCABULARY), key=lambda token: -values[token])
            search.commit(y, Successors([values[token] for token in tokens], tokens))
    result = search.result()
    return result.hypotheses[0].tokens if result.hypotheses else None, result.calls


def mismatch_rates(cases: int = 1000, seed: int = 0, beams: Sequence[int] = (2, 3, 5)) -> list[Mismatches]:
    """Every score, rule and beam size on the same toy models."""
    out = []
    for name, score in SCORES:
        toys = [toy_model(f"{seed} {case}", score) for case in range(cases)]
        for finished in RULES:
            for k in beams:
                line = Mismatches(name, finished, k, cases, 0, dict.fromkeys(METHODS, 0), dict.fromkeys(METHODS, 0))
                for toy in toys:
                    expected, _ = run(toy, beam(k, finished).using(stop=Exhausted()), score)
                    line.beam_calls += run(toy, beam(k, finished), score)[1]
                    for method in METHODS:
                        found, calls = run(toy, by_method(best_first_beam(k, finished), method, score), score)
                        line.wrong[method] += found != expected
                        line.calls[method] += calls
                out.append(line)
    return out


def table(lines: Sequence[Mismatches]) -> str:
    """Wrong answers in percent and calls per case, one line for each score, rule and beam size."""
    head = f"{'score':<44} {'finished':<8} {'k':>2}  {'beam':>5}" + "".join(f"  {method:>16}" for method in METHODS)
    rows = [head, "-" * len(head)]
    for line in lines:
        each = [f"{100 * line.wrong[m] / line.cases:5.1f} % {line.calls[m] / line.cases:6.1f} c" for m in METHODS]
        row = f"{line.score:<44} {line.finished:<8} {line.k:>2}  {line.beam_calls / line.cases:5.1f}"
        rows.append(row + "".join(f"  {cell:>16}" for cell in each))
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python tests/scoring/mismatches.py", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000, help="random models for each line (default 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    options = parser.parse_args(arguments)
    if options.cases < 1:
        parser.error(f"--cases must be at least 1, got {options.cases}")
    lines = mismatch_rates(options.cases, options.seed)
    if options.json:
        print("\n".join(json.dumps(asdict(line)) for line in lines))
    else:
        print(table(lines))
        print("\nwrong: best answer is not beam search's, percent of cases; c: calls a case; beam: beam search's calls")


if __name__ == "__main__":
    main()
