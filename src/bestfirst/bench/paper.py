"""What the paper reports for length normalization and mutual information on IWSLT'14 De-En: cited, not measured.

Meister, Vieira and Cotterell, "Best-First Beam Search", TACL 2020, the tables of sections 6.2 and 6.3. Theirs is another model,
the whole test set and another BLEU: calls and search errors may be compared, absolute BLEU may not.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """One line of a table of the paper. `error` is None where the paper prints none, because it claims that there is none."""

    calls: int
    increase: int | None  # percent
    error: float | None  # percent
    bleu: float
    gain: float | None = None  # of BLEU, over no length normalization


@dataclass(frozen=True)
class Hyperparameters:
    """What the paper chose for a beam size."""

    bounded_beta: float  # length, heuristic; b = |x|
    beta: float  # length, stopping criterion; b = n_max
    weight: float  # mutual information's lambda, which the paper's table calls beta
    heuristic_epsilon: float
    stopping_epsilon: float


HYPERPARAMETERS = {
    5: Hyperparameters(0.8, 0.5, 0.05, 0.02, 3e-4),
    10: Hyperparameters(1.2, 0.5, 0.05, 0.02, 5e-5),
}

LENGTH = {
    (5, "heuristic"): Published(115, 0, 40.6, 33.9, 0.3),
    (10, "heuristic"): Published(229, 0, 54.7, 33.8, 0.5),
    (5, "stopping"): Published(73, 58, None, 33.7, 0.1),
    (10, "stopping"): Published(130, 76, None, 33.7, 0.4),
}

MUTUAL_INFORMATION = {
    (5, "baseline"): Published(115, None, None, 33.2),
    (10, "baseline"): Published(229, None, None, 33.0),
    (5, "heuristic"): Published(129, 0, 42.7, 33.2),
    (10, "heuristic"): Published(256, 0, 42.7, 33.0),
    (5, "stopping"): Published(114, 1, 29.2, 33.2),
    (10, "stopping"): Published(224, 2, 26.6, 33.0),
}
