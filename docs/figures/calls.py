"""Counts the model calls of beam and best-first search on 200 sentences, prints the README's table and draws `calls.svg`.

python docs/figures/calls.py            measure, write calls.json and calls.svg (minutes: beam search with k = 50 is slow)
python docs/figures/calls.py --draw     draw again from calls.json
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
SENTENCES = FOLDER.parents[1] / "tests" / "data" / "tatoeba-200.de"
BEAMS = (5, 10, 50)
RULES = ("leave", "keep")


@dataclass(frozen=True)
class Row:
    """Calls per sentence with beam size k, and how many outputs equal those of beam search."""

    finished: str
    k: int
    beam: float
    stopped: float  # beam search that stops as soon as its best answer is certain
    best_first: float
    same: int


def measure(finished: str, k: int, strategy: str, stop: str | None = None) -> tuple[float, list[str | None]]:
    """Calls per sentence and every sentence's best output, with n_max = 2|x| + 10."""
    import bestfirst

    sentences = SENTENCES.read_text(encoding="utf-8").splitlines()
    settings = {"strategy": strategy, "stop": stop, "beam": k, "finished": finished, "max_length": lambda x: 2 * x + 10}
    results = bestfirst.decode(bestfirst.load(), sentences, **settings)
    assert all(result.exact for result in results)
    return sum(result.calls for result in results) / len(results), [result.text for result in results]


def measure_all() -> list[Row]:
    rows = []
    for finished in RULES:
        for k in BEAMS:
            beam, expected = measure(finished, k, "beam")
            stopped, _ = measure(finished, k, "beam", stop="huang")
            best_first, outputs = measure(finished, k, "best-first")
            same = sum(a == b for a, b in zip(expected, outputs, strict=True))
            rows.append(Row(finished, k, beam, stopped, best_first, same))
            print(rows[-1], file=sys.stderr)
    return rows


def table(rows: list[Row]) -> str:
    """The README's table. Increase: (old - new) / new, as in the paper."""
    lines = [
        "| finished | k | beam search | its best stop | best-first | increase | same output |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    for row in rows:
        increase = 100 * (row.beam - row.best_first) / row.best_first
        calls = f"{row.beam:.1f} | {row.stopped:.1f} | {row.best_first:.1f} | {increase:+.0f} %"
        lines.append(f"| {row.finished} | {row.k} | {calls} | {row.same} of 200 |")
    return "\n".join(lines)


STYLE = """
  text { font: 14px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
  .title { font-size: 17px; font-weight: 600; }
  .note { font-size: 12px; fill: #59636e; }
  .k { font-weight: 600; }
  .beam { fill: #afb8c1; }
  .best-first { fill: #0969da; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .note { fill: #9198a1; }
    .beam { fill: #59636e; }
    .best-first { fill: #4493f8; }
  }
"""


def draw(rows: list[Row]) -> str:
    """Two bars for each k, on one scale, for the default rule of finished hypotheses."""
    rows = [row for row in rows if row.finished == "leave"]
    left, right, top, bar, gap = 150, 90, 84, 20, 26
    width, height = 760, top + len(rows) * (2 * bar + gap) + 4
    scale = (width - left - right) / max(row.beam for row in rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="Model calls per sentence, beam search and best-first beam search">',
        f"<style>{STYLE}</style>",
        '<text class="title" x="20" y="32">Model calls per sentence, for the same answer</text>',
        '<text class="note" x="20" y="54">German to English, the embedded model, 200 Tatoeba sentences, best translation</text>',
    ]
    for i, row in enumerate(rows):
        y = top + i * (2 * bar + gap)
        parts.append(f'<text class="k" x="20" y="{y + bar + 6}">k = {row.k}</text>')
        fewer = f"{row.best_first:.1f}  ({row.beam / row.best_first:.1f} times fewer)"
        bars = (("beam", row.beam, f"{row.beam:.1f}", y), ("best-first", row.best_first, fewer, y + bar + 2))
        for name, value, shown, y_bar in bars:
            length = value * scale
            parts.append(f'<text class="note" x="{left - 8}" y="{y_bar + 14}" text-anchor="end">{name}</text>')
            parts.append(f'<rect class="{name}" x="{left}" y="{y_bar}" width="{length:.1f}" height="{bar}" rx="3"/>')
            parts.append(f'<text x="{left + length + 8:.1f}" y="{y_bar + 15}">{shown}</text>')
    return "\n".join([*parts, "</svg>", ""])


def read() -> list[Row]:
    return [Row(**row) for row in json.loads((FOLDER / "calls.json").read_text(encoding="utf-8"))]


def main() -> None:
    if "--draw" not in sys.argv[1:]:
        rows = [asdict(row) for row in measure_all()]
        (FOLDER / "calls.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (FOLDER / "calls.svg").write_text(draw(read()), encoding="utf-8")
    print(table(read()))


if __name__ == "__main__":
    main()
