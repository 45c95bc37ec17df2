"""ModelRecord: what engines found out about a model, and made of it, in earlier decodes. Nothing here keeps a model in memory."""

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


class Rates:
    """How often tokens of each kind were right, the latest counting most."""

    FEW, MANY = 4, 64  # tries that the first guess at a rate counts as, and those that are remembered

    def __init__(self) -> None:
        self.idle = 0  # steps in a row for which nothing was guessed
        self._tries: Counter[Hashable] = Counter()
        self._rates: dict[Hashable, float] = {}

    def rate(self, kind: Hashable, unknown: float = DEFAULT_TRUST) -> float:
        """From 0 to 1; what is not known yet is worth a try."""
        return self._rates.get(kind, unknown)

    def note(self, kind: Hashable, right: bool, unknown: float = DEFAULT_TRUST) -> None:
        self._tries[kind] += 1
        rate = self.rate(kind, unknown)
        self._rates[kind] = rate + (right - rate) / (self.FEW + min(self._tries[kind], self.MANY))


class Ahead:
    """How many rows of an input by itself are worth scoring ahead of their turn, by how often such rows came to be needed.

    So many as together cost no more than the step itself always are. Beyond that a row that comes to be needed saves a step, and
    one that does not costs a row: where a step costs as much as b rows before it has one it pays, as with drafts, if that is at
    least as likely as 1 / (1 + b). What is not known yet of a row is taken to be as of the one before it.
    """

    def __init__(self) -> None:
        self._rates = Rates()  # by kind of search and rank

    def rows(self, kind: Hashable, most: int, alone: int) -> int:
        """The rows of a step, at most `most`, which costs as much as one with `alone` rows less before it has any."""
        rows, rate = 1, DEFAULT_TRUST
        while rows < most:
            rate = self._rates.rate((kind, rows), rate)
            if rows >= alone and rate < 1 / alone:
                break
            rows += 1
        return rows

    def learn(self, kind: Hashable, guessed: Sequence[tuple[int, bool]]) -> None:
        """A search is over, for which these were scored ahead: the rank of each, and whether it came to be needed."""
        for rank, needed in guessed:
            self._rates.note((kind, rank), needed)


class Gains:
    """Whether drafts pay, by kind of input: seconds for a token of the output, with drafts and without.

    Searches in Python can be drafted for, compiled ones cannot, so that drafts have to save more than the difference. Of each the
    median of the latest counts; the slower one is tried again now and then, and at once where it was faster the last time.
    """

    LATEST, TRIES, SELDOM = 5, 2, 64  # times that are remembered, those that it takes to tell, inputs after which to try again

    def __init__(self) -> None:
        self._seconds: defaultdict[Hashable, deque[float]] = defaultdict(lambda: deque(maxlen=self.LATEST))
        self._asked: Counter[Hashable] = Counter()

    def pay(self, kind: Hashable) -> bool:
        """Whether to draft for an input of this kind."""
        drafted, plain = (self._seconds[kind, way] for way in (True, False))
        if min(len(drafted), len(plain)) < self.TRIES:
            return len(drafted) <= len(plain)
        pays = median(drafted) < median(plain)
        slower, best = (plain, median(drafted)) if pays else (drafted, median(plain))
        self._asked[kind] += 1
        return pays != (self._asked[kind] % self.SELDOM == 0 or slower[-1] < best)

    def note(self, kind: Hashable, drafted: bool, seconds: float) -> None:
        self._seconds[kind, drafted].append(seconds)


@dataclass
class ModelRecord:
    """Shared by all that decode with the same Hugging Face model, wrapped or through `generate`.

    A step, modules and a session come with the fingerprint of the weights that they were made of.
    """

    agreed: dict[Any, bool] = field(default_factory=dict)  # steps that were tried, and whether they agree with the model
    tried: Any = None  # the outline of the model that these verdicts are on
    step: Any = None  # of the last decode, unless it holds the whole model; then it stays with its `TransformersModel`
    ratios: dict[Any, float] = field(default_factory=dict)  # by settings: the time of `generate`'s own loop over ours
    budget: Budget | None = None  # what suits the model, once it was measured
    ahead: Ahead = field(default_factory=Ahead)
    rates: dict[str, Rates] = field(default_factory=dict)  # by drafter, how often its guesses were right
    gains: dict[str, Gains] = field(default_factory=dict)  # by drafter, whether it pays
    session: Any = None  # a GPU's room for whole searches
    modules: Any = None  # how a GPU runs the model by its own modules; with None in its place where it cannot
    lock: Any = field(default_factory=RLock)  # one call of `generate` or pass at a time: some steps hook into the model meanwhile
    asked: Any = field(default_factory=RLock)  # one call at a time of what is made of this model (`cached_model.running`)


_known: WeakKeyDictionary[Any, dict[bool, ModelRecord]] = WeakKeyDictionary()


def record_of(model: Model) -> ModelRecord:
    """What is known of this model's weights, or of them in eight bits."""
    by_bits = _known.setdefault(model.known_as, {})
    return by_bits.get(model.eight_bits) or by_bits.setdefault(model.eight_bits, ModelRecord())
