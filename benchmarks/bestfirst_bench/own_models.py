"""python -m bestfirst_bench.own_models [FILE]: the library's overhead on a user's own model, and of an ensemble over its models.

Times are CPU seconds, the best of several turns, alternating between what is compared. FILE: lines for the ensemble.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch

import bestfirst
from bestfirst import Query

TOKENS, WIDTH, WIDE = 200, 64, 50_000


class Lstm(bestfirst.Model):
    """An LSTM with random weights, computed in numpy. `form` converts the scores into what `score` returns."""

    eos = (0,)

    def __init__(self, form: Callable[[Any], Any]) -> None:
        numbers = np.random.default_rng(0)
        self.form = form
        self.embedding = numbers.normal(0, 0.5, (TOKENS, WIDTH)).astype(np.float32)
        self.cell = numbers.normal(0, 0.2, (2 * WIDTH, 4 * WIDTH)).astype(np.float32)
        self.head = numbers.normal(0, 0.4, (WIDTH, TOKENS)).astype(np.float32)

    def start(self, source: int) -> Any:
        return np.full(WIDTH, source / 10, np.float32), np.zeros(WIDTH, np.float32)

    def score(self, batch: Sequence[Query]) -> Any:
        h, c = (np.stack([query.state[i] for query in batch]) for i in (0, 1))
        x = np.concatenate([self.embedding[[query.prefix[-1] if query.prefix else 1 for query in batch]], h], 1) @ self.cell
        i, f, o, u = np.split(x, 4, 1)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(u)
        h = _sigmoid(o) * np.tanh(c)
        logits = h @ self.head
        logits -= logits.max(1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(1, keepdims=True))
        return list(zip(self.form(logits), zip(h, c, strict=True), strict=True))


class Constant(bestfirst.Model):
    """A model that returns the same row of scores after every prefix."""

    eos = (0,)

    def __init__(self, form: Callable[[Any], Any]) -> None:
        row = np.random.default_rng(0).normal(size=WIDE).astype(np.float32)
        self.row = form(row - np.log(np.exp(row).sum()))

    def start(self, source: Any) -> Any:
        return None

    def score(self, batch: Sequence[Query]) -> Any:
        return [(self.row, None)] * len(batch)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


FORMS: dict[str, Callable[[Any], Any]] = {"lists": lambda x: x.tolist(), "numpy": lambda x: x, "torch": torch.from_numpy}
"""The types in which a model can return a row or matrix of scores, and the conversion from numpy."""


def least_seconds(work: Mapping[str, Callable[[], Any]], turns: int) -> dict[str, float]:
    """The least CPU seconds of each function, after one warm-up turn."""
    best = dict.fromkeys(work, float("inf"))
    for turn in range(turns + 1):
        for name, call in work.items():
            begun = process_time()
            call()
            best[name] = min(best[name], process_time() - begun) if turn else best[name]
    return best


def lstms(turns: int) -> dict[str, float]:
    """Seconds for 40 inputs, 20 tokens each, by the type of the model's scores."""
    settings: Any = {"beam": 5, "max_length": 20, "accept_truncated": True, "row_budget": 32}
    models = {name: Lstm(form) for name, form in FORMS.items()}
    runs = {name: partial(bestfirst.decode, model, range(40), **settings) for name, model in models.items()}
    return least_seconds(runs, turns)


def rows(turns: int) -> dict[str, float]:
    """Seconds for each row of 50,000 scores, with the whole decode, by the type of the row."""
    settings: Any = {"beam": 5, "max_length": 20, "accept_truncated": True, "row_budget": 16}
    models = {name: Constant(form) for name, form in FORMS.items()}
    count = sum(result.rows for result in bestfirst.decode(models["numpy"], [()] * 4, **settings))
    runs = {name: partial(bestfirst.decode, model, [()] * 4, **settings) for name, model in models.items()}
    return {name: seconds / count for name, seconds in least_seconds(runs, turns).items()}


def ensemble(lines: Sequence[str], turns: int) -> dict[str, float]:
    """Seconds of the embedded model, of a second instance, and of an ensemble of both."""
    models = [bestfirst.load(), bestfirst.load()]
    three = {"first": models[0], "second": models[1], "ensemble": bestfirst.Ensemble(models)}
    return least_seconds({name: partial(bestfirst.decode, model, lines, beam=5) for name, model in three.items()}, turns)


def main(path: str | None = None, turns: int = 7) -> None:
    torch.set_num_threads(1)
    seconds = lstms(turns)
    print("an LSTM, seconds:", ", ".join(f"{name} {each:.3f}" for name, each in seconds.items()), end="")
    print(f"; slowest over fastest {max(seconds.values()) / min(seconds.values()):.2f}")
    print("a row of 50,000, ms:", ", ".join(f"{name} {1e3 * each:.2f}" for name, each in rows(turns).items()))
    if path is not None:
        seconds = ensemble(Path(path).read_text("utf-8").splitlines()[:40], turns)
        ratio = seconds["ensemble"] / (seconds["first"] + seconds["second"])
        print("40 lines, seconds:", ", ".join(f"{name} {each:.3f}" for name, each in seconds.items()), end="")
        print(f" ; {ratio:.2f} of the two apart")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
