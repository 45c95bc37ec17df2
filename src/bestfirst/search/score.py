"""Score: what a hypothesis is worth, and the most that it can still become. `bestfirst.scoring` has the scores."""

from __future__ import annotations

from typing import Any

from .any_order import AnyOrderSearch
from .hypothesis import Context
from .level import LevelSearch
from .search import Search
from .strict import StrictSearch
from .table_1 import Finished, Strategy

NEEDS = frozenset({"attention", "language_model", "language_model_past", "source_length"})  # what `Score.needs` may name
ANY_ORDER_ONLY = ("ends", "max_calls", "merge", "trace")  # settings that the cheaper searches do not support


class Score:
    """What a hypothesis is worth, and the best that any continuation of it can be worth. Subclass it for a score of your own.

    The `value` of a hypothesis is the sum of its tokens' increments; its score is `final(value, length)`. The laws
    (`bestfirst.testing.check_score`): increments are never positive; `final` never falls when the value rises; no `final` at a
    greater length exceeds `bound`. Under them best-first search is exact; `docs/scores.md` has the proof.
    """

    name: str = "score"
    monotonic: bool = False  # whether `final` never rises as tokens are added
    value_only: bool = False  # whether `final` and `bound` are the value itself
    one_way: bool = False
    """Whether `final` of a fixed value only rises, or only falls, with length, and at every length rises strictly with the value.
    Under `keep` a score that is not monotonic is exact only then: of two equal scores the lower value may not win a slot."""
    needs: frozenset[str] = frozenset()
    """Inputs required beside log-probabilities: "language_model" (its log-probabilities, as `aux` of `increment`),
    "language_model_past" (its log-probability of the prefix, as `past`), "attention" (for `ending`), "source_length"."""
    language_model: Any = None

    def __eq__(self, other: object) -> bool:
        """Whether this is a score of the same class that holds equal numbers, texts and scores, and the same other objects."""
        if type(self) is not type(other) or vars(self).keys() != vars(other).keys():
            return False
        pairs = [(value, vars(other)[name]) for name, value in vars(self).items()]
        return all(a is b or (type(a) is type(b) and isinstance(a, COMPARED) and a == b) for a, b in pairs)

    def __hash__(self) -> int:
        return hash(type(self))

    @property
    def plain(self) -> bool:
        """Whether increments are the model's log-probabilities, unchanged."""
        return type(self).increment is Score.increment

    @property
    def strict(self) -> bool:
        """Whether `final` is known to rise strictly with the value."""
        return self.value_only or self.one_way or type(self).final is Score.final

    def increment(self, logprobs: Any, aux: Any = None) -> Any:
        """What each next token adds to the value; `logprobs` and `aux` (..., vocabulary) are numpy arrays or tensors."""
        return logprobs

    def final(self, value: float, length: int, context: Context) -> float:
        """The score of a hypothesis of this value and length. The length is at least 1, for EOS counts."""
        return value

    def bound(self, value: float, length: int, context: Context) -> float:
        """The best `final` of any longer continuation. This default is right for every score, by trying every length."""
        if self.monotonic:
            return self.final(value, length + 1, context)
        finals = [self.final(value, longer, context) for longer in range(length + 1, context.n_max + 1)]
        return sum(finals) if any(final != final for final in finals) else max(finals)  # `max` would lose a NaN

    def ending(self, coverage: Any) -> Any:
        """What finishing adds to the score, never positive. Called only for a score that needs attention; `coverage` (...,
        source) is the attention that each source token has received."""
        return 0.0

    def exact(self, finished: Finished) -> bool:
        """Whether best-first search returns beam search's result under this rule for finished hypotheses."""
        return finished != "keep" or self.monotonic or self.one_way

    def check(self, strategy: Strategy) -> None:
        """Raise ValueError, naming the way out, for a strategy that this score cannot be searched with."""

    def search(self, strategy: Strategy, **settings: Any) -> Search:
        """A new search with this score for an engine to drive. The cheapest that supports the settings: the stop's own search,
        `StrictSearch` or `LevelSearch`; otherwise `AnyOrderSearch`."""
        by_value: type[StrictSearch] = getattr(strategy.stop, "own_search", StrictSearch)
        cheap: type[LevelSearch] | type[StrictSearch] = LevelSearch if strategy.level_by_level else by_value
        if not cheap.takes(strategy, self) or any(settings.get(name) is not None for name in ANY_ORDER_ONLY):
            return AnyOrderSearch(strategy, score=self, **settings)
        return cheap(strategy, score=self, **{name: x for name, x in settings.items() if name not in ANY_ORDER_ONLY})


COMPARED = (bool, int, float, str, frozenset, Score)
