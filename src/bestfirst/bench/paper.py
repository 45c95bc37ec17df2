"""What the paper reports: cited, not measured.

Meister, Vieira and Cotterell, "Best-First Beam Search", TACL 2020, all tables of section 6. Theirs are other models, and whole
test sets: calls, increases and search errors may be compared, absolute BLEU may not.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Published:
    """One line of a table of the paper. What it does not print is None; in percent: `increase`, `error`, `quality`."""

    k: int
    method: str
    calls: float
    increase: int | None = None
    error: float | None = None
    quality: float | None = None  # BLEU, or ROUGE-L for CNN-DailyMail
    gain: float | None = None  # of BLEU, over the baseline of its table
    parameters: dict[str, float] = field(default_factory=dict, hash=False)

    def json(self) -> dict[str, Any]:
        return asdict(self)


DATASETS = {
    "iwslt14": "IWSLT'14 De-En",
    "wmt17": "WMT'17 De-En",
    "mttt": "MTTT Fr-En",
    "cnn-dm": "CNN-DailyMail",
}


def _results(metrics: dict[int, float], **calls: dict[int, tuple[int, int | None]]) -> list[Published]:
    """The table of results: each k's quality is that of all three methods."""
    named = [(name.replace("_", "-"), found) for name, found in calls.items()]
    return [Published(k, name, *found[k], quality=metrics[k]) for k in metrics for name, found in named]


RESULTS = {
    "iwslt14": _results(
        {5: 35.6, 10: 35.4, 100: 34.7, 500: 7.9},
        best_first={5: (93, 24), 10: (169, 36), 100: (1275, 79), 500: (1168, 736)},
        es={5: (107, 7), 10: (210, 9), 100: (2047, 12), 500: (7685, 27)},
        beam={5: (115, None), 10: (229, None), 100: (2286, None), 500: (9770, None)},
    ),
    "mttt": _results(
        {10: 33.0, 100: 9.9, 500: 1.2},
        best_first={10: (184, 16), 100: (867, 138), 500: (885, 836)},
        es={10: (196, 9), 100: (1310, 58), 500: (4182, 98)},
        beam={10: (214, None), 100: (2066, None), 500: (8281, None)},
    ),
    "cnn-dm": _results(
        {5: 31.5, 10: 30.9, 100: 29.1},
        best_first={5: (200, 33), 10: (305, 43), 100: (2960, 92)},
        es={5: (224, 19), 10: (357, 22), 100: (3942, 59)},
        beam={5: (266, None), 10: (435, None), 100: (5673, None)},
    ),
}

STOPPING = {
    "iwslt14": [
        Published(10, "shrinking", 229, 0, 0.0, 35.4),
        Published(10, "early", 225, 2, 0.0, 35.4),
        Published(10, "best-first", 169, 36, None, 35.4),
        Published(100, "shrinking", 2278, 0, 31.7, 13.2),
        Published(100, "early", 1738, 31, 31.7, 13.2),
        Published(100, "best-first", 1275, 79, None, 34.7),
    ],
    "wmt17": [
        Published(10, "shrinking", 260, 0, 0.0, 28.6),
        Published(10, "early", 252, 3, 0.0, 28.6),
        Published(10, "best-first", 230, 12, None, 28.6),
        Published(100, "shrinking", 2587, 0, 1.7, 26.4),
        Published(100, "early", 2402, 8, 1.7, 26.4),
        Published(100, "best-first", 2046, 26, None, 26.9),
    ],
}

LENGTH = {
    "iwslt14": [
        Published(5, "heuristic", 115, 0, 40.6, 33.9, 0.3, {"beta": 0.8, "ratio": 1.0}),
        Published(10, "heuristic", 229, 0, 54.7, 33.8, 0.5, {"beta": 1.2, "ratio": 1.0}),
        Published(5, "stopping", 73, 58, None, 33.7, 0.1, {"beta": 0.5}),
        Published(10, "stopping", 130, 76, None, 33.7, 0.4, {"beta": 0.5}),
    ],
    "mttt": [
        Published(5, "heuristic", 100, 8, 16.2, 33.5, 0.2, {"beta": 0.8, "ratio": 0.7}),
        Published(10, "heuristic", 196, 9, 25.2, 33.6, 0.6, {"beta": 1.0, "ratio": 0.7}),
        Published(5, "stopping", 65, 66, None, 34.1, 0.8, {"beta": 1.0}),
        Published(10, "stopping", 88, 143, None, 34.1, 1.1, {"beta": 1.2}),
    ],
}

# The paper's table calls the weight beta. Its search errors are against the baseline, beam search with nothing clipped.
MUTUAL_INFORMATION = {
    "iwslt14": [
        Published(5, "beam", 115, None, None, 33.2, None, {"weight": 0.05, "epsilon": 0}),
        Published(10, "beam", 229, None, None, 33.0, None, {"weight": 0.05, "epsilon": 0}),
        Published(5, "heuristic", 129, 0, 42.7, 33.2, None, {"weight": 0.05, "epsilon": 0.02}),
        Published(10, "heuristic", 256, 0, 42.7, 33.0, None, {"weight": 0.05, "epsilon": 0.02}),
        Published(5, "stopping", 114, 1, 29.2, 33.2, None, {"weight": 0.05, "epsilon": 3e-4}),
        Published(10, "stopping", 224, 2, 26.6, 33.0, None, {"weight": 0.05, "epsilon": 5e-5}),
    ],
}

MEMORY = {
    "iwslt14": [  # on the validation set
        Published(5, "gamma=2", 43.8, 163, 22.7, 35.7, 0.1),
        Published(5, "gamma=5", 79.8, 44, 4.4, 35.8, 0.2),
        Published(5, "best-first", 93.0, 24, None, 35.6),
        Published(10, "gamma=2", 48.4, 374, 22.6, 35.7, 0.3),
        Published(10, "gamma=5", 126.9, 81, 4.5, 35.6, 0.2),
        Published(10, "best-first", 169.0, 36, None, 35.4),
    ],
    "wmt17": [
        Published(5, "gamma=2", 77.5, 75, 29.0, 29.7, 0.2),
        Published(5, "gamma=5", 115.8, 12, 1.2, 29.5, 0.0),
        Published(5, "best-first", 118.8, 10, None, 29.5),
        Published(10, "gamma=2", 97.3, 165, 36.6, 29.5, 0.2),
        Published(10, "gamma=5", 230.0, 12, 2.6, 29.3, 0.0),
        Published(10, "best-first", 230.2, 12, None, 29.3),
    ],
}

TABLES: dict[str, dict[str, list[Published]]] = {
    "results": RESULTS,
    "stopping": STOPPING,
    "length": LENGTH,
    "mutual-information": MUTUAL_INFORMATION,
    "memory": MEMORY,
}
