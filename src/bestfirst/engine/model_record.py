"""ModelRecord: what engines measured for a model or built from it in earlier decodes. Records do not keep models alive."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from statistics import median
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

from ..drafting import DEFAULT_TRUST
from ..models import Model
from ..settings import Budget


class SuccessRates:
    """Success rates by kind of guess, as running averages in which recent tries weigh more."""

    PRIOR_TRIES, MAX_TRIES = 4, 64  # weight of the prior rate, and cap on the tries counted, so that older ones fade

    def __init__(self) -> None:
        self.idle = 0  # consecutive steps without drafts
        self._tries: Counter[Hashable] = Counter()
        self._rates: dict[Hashable, float] = {}

    def rate(self, kind: Hashable, unknown: float = DEFAULT_TRUST) -> float:
        """The rate in [0, 1]; `unknown` before the first try."""
        return self._rates.get(kind, unknown)

    def note(self, kind: Hashable, right: bool, unknown: float = DEFAULT_TRUST) -> None:
        self._tries[kind] += 1
        rate = self.rate(kind, unknown)
        self._rates[kind] = rate + (right - rate) / (self.PRIOR_TRIES + min(self._tries[kind], self.MAX_TRIES))


class SpeculationRates:
    """How many rows to score speculatively for a single input, by how often such rows were needed.

    Rows that together cost no more than an empty step are always scored. Beyond that, a needed row saves a step and an unneeded
    one costs a row: if an empty step costs as much as b rows, a row pays, as with drafts, if it is needed with a probability of
    at least 1 / (1 + b). A rank without statistics takes the rate of the rank before it.
    """

    def __init__(self) -> None:
        self._rates = SuccessRates()  # by kind of search and rank of the row

    def rows(self, kind: Hashable, most: int, alone: int) -> int:
        """The number of rows for a step, at most `most`; `alone` - 1 rows cost as much as an empty step."""
        rows, rate = 1, DEFAULT_TRUST
        while rows < most:
            rate = self._rates.rate((kind, rows), rate)
            if rows >= alone and rate < 1 / alone:
                break
            rows += 1
        return rows

    def learn(self, kind: Hashable, guessed: Sequence[tuple[int, bool]]) -> None:
        """Records a finished search: the rank of each row scored ahead, and whether it was needed."""
        for rank, needed in guessed:
            self._rates.note((kind, rank), needed)


class DraftGains:
    """Whether drafting pays, by kind of inputs submitted together: CPU seconds per output token, with and without drafts.

    Searches with drafts run in Python, others compiled, so drafts have to save more than that difference. Compares the medians
    of the latest times; the slower way is retried now and then, and at once if its last time beat the other's median.
    """

    REMEMBERED, MIN_TIMES, RETRY = 5, 2, 64  # times kept; times needed to decide; submissions until the slower way is retried

    def __init__(self) -> None:
        self._seconds: defaultdict[Hashable, deque[float]] = defaultdict(lambda: deque(maxlen=self.REMEMBERED))
        self._asked: Counter[Hashable] = Counter()

    def pay(self, kind: Hashable) -> bool:
        """Whether to draft for the next inputs of this kind. Until both ways have `MIN_TIMES` times, they alternate."""
        drafted, plain = (self._seconds[kind, way] for way in (True, False))
        if min(len(drafted), len(plain)) < self.MIN_TIMES:
            return len(drafted) <= len(plain)
        pays = median(drafted) < median(plain)
        slower, best = (plain, median(drafted)) if pays else (drafted, median(plain))
        self._asked[kind] += 1
        return pays != (self._asked[kind] % self.RETRY == 0 or slower[-1] < best)

    def note(self, kind: Hashable, drafted: bool, seconds: float) -> None:
        self._seconds[kind, drafted].append(seconds)


@dataclass
class ModelRecord:
    """Shared by all decodes with the same Hugging Face model, wrapped or through `generate`.

    `step`, `modules` and `session` are stored with the fingerprint of the weights that they were made from.
    """

    agreed: dict[Any, bool] = field(default_factory=dict)  # by decoder step: whether it agrees with the model
    tried: Any = None  # fingerprint of the model structure that `agreed` is about
    unshared: str | None = None  # why no hypotheses can share keys and values, as `tried`
    step: Any = None  # the last decode's decoder step, except one that refers to the model: its `TransformersModel` keeps that
    ratios: dict[Any, float] = field(default_factory=dict)  # by settings: time of `generate`'s own loop over ours
    budget: Budget | None = None  # the measured row budget
    ahead: SpeculationRates = field(default_factory=SpeculationRates)
    rates: dict[str, SuccessRates] = field(default_factory=dict)  # by drafter: success rates of its guesses
    gains: dict[str, DraftGains] = field(default_factory=dict)  # by drafter: whether drafting pays
    session: Any = None  # the device session
    modules: Any = None  # how a GPU runs the model's own modules; its entry is None if it cannot
    lock: Any = field(default_factory=RLock)  # one forward pass or call of `generate` at a time: some steps hook into the model
    composed_lock: Any = field(default_factory=RLock)  # held by a call of a model composed of this one (`use_caches`)


_records: WeakKeyDictionary[Any, dict[bool, ModelRecord]] = WeakKeyDictionary()


def record_of(model: Model) -> ModelRecord:
    """The record of this model's weights; int8 models have one of their own."""
    by_precision = _records.setdefault(model.known_as, {})
    return by_precision.get(model.eight_bits) or by_precision.setdefault(model.eight_bits, ModelRecord())


def known_record(known_as: Any) -> ModelRecord | None:
    """The record of what a model is known as (`Model.known_as`), in its own precision; None if it has none yet."""
    return _records.get(known_as, {}).get(False)
