"""`generate` with and without `custom_generate=bestfirst.generate`: seconds, and whether the text is the same.

    python -m bestfirst.integrations.compare tests/data/tatoeba-200.de

One thread, CPU seconds; both ways take turns on the same batches, and the best time of each counts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from ..models.transformers import load
from .generate import generate

SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "early_stopping=True": {"early_stopping": True},
    "never, penalty 0": {"early_stopping": "never", "length_penalty": 0.0},
}


@dataclass
class Line:
    """One setting: CPU seconds without and with, how many outputs are the same text, and what the search cost."""

    setting: str
    without: float
    seconds: float
    same: int
    of: int
    calls: int
    rows: int
    steps: int

    @property
    def ratio(self) -> float:
        return self.without / self.seconds


Watch = Callable[[list[Any]], Iterable[Any]]
"""Gives back what it gets, one by one, and shows how far it is."""


def compare(model: Any, lines: Sequence[str], num_beams: int, batch_size: int, repeat: int, watch: Watch = iter) -> list[Line]:
    """Every setting on these lines, batched in their order."""
    tokenizer = model.tokenizer
    parts = [list(lines[i : i + batch_size]) for i in range(0, len(lines), batch_size)]
    batches = [tokenizer(part, return_tensors="pt", padding=True) for part in parts]

    def run(ours: bool, **settings: Any) -> tuple[float, list[str], Counter[str]]:
        begun, texts, cost = process_time(), [], Counter[str]()
        for batch in batches:
            stats: dict[str, Any] = {}
            own = {"custom_generate": generate, "stats": stats} if ours else {}
            output = model.model.generate(**batch, num_beams=num_beams, **settings, **own)
            texts += tokenizer.batch_decode(output, skip_special_tokens=True)
            cost.update({name: stats.get(name, 0) for name in ("calls", "rows", "steps")})
        return process_time() - begun, texts, cost

    run(ours=True)  # a model's first call tries decoders and measures a row budget
    turns: dict[str, list[Any]] = {name: [] for name in SETTINGS}
    for name in watch([name for name in SETTINGS for _ in range(repeat)]):
        turns[name].append((run(ours=False, **SETTINGS[name]), run(ours=True, **SETTINGS[name])))
    found = []
    for name, taken in turns.items():
        (_, expected, _), (_, texts, cost) = taken[-1]
        same = sum(a == b for a, b in zip(expected, texts, strict=True))
        without, seconds = (min(turn[way][0] for turn in taken) for way in (0, 1))
        found.append(Line(name, without, seconds, same, len(lines), cost["calls"], cost["rows"], cost["steps"]))
    return found


def table(lines: Sequence[Line]) -> str:
    """One line for each setting."""
    head = f"{'setting':<20} {'generate':>10} {'bestfirst':>10} {'ratio':>6}  {'same text':>10}"
    head += f"  {'calls':>6} {'rows':>6} {'steps':>5}"
    rows = [head, "-" * len(head)]
    for line in lines:
        seconds = f"{line.setting:<20} {line.without:>8.2f} s {line.seconds:>8.2f} s {line.ratio:>6.2f}"
        rows.append(f"{seconds}  {f'{line.same} of {line.of}':>10}  {line.calls:>6} {line.rows:>6} {line.steps:>5}")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bestfirst.integrations.compare", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="a text file, one input a line")
    parser.add_argument("--model", help="a folder or name (default: the embedded translator)")
    parser.add_argument("--num-beams", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=3, help="the best of so many runs counts (default 3)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    options = parser.parse_args(arguments)
    for name in ("num_beams", "batch_size", "repeat"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}")
    try:
        lines = options.file.read_text(encoding="utf-8").splitlines()
        model = load(options.model)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if not lines:
        parser.error(f"no lines in {options.file}")
    torch.set_num_threads(1)
    found = compare(model, lines, options.num_beams, options.batch_size, options.repeat, watch)
    print("\n".join(json.dumps({**asdict(line), "ratio": line.ratio}) for line in found) if options.json else table(found))


def watch(turns: list[Any]) -> Iterable[Any]:
    """A bar on stderr, where that is a terminal."""
    return track(turns, "comparing", console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


if __name__ == "__main__":
    main()
