"""UserModel: a model of the user's own as the engine asks it: its answers are read whatever their form, its failures are kept to
the input that they belong to, its times are taken, and now and then it is tried whether its scores depend on the batch."""

from __future__ import annotations

import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from time import perf_counter
from traceback import extract_tb
from typing import Any, NamedTuple

from ..models import FunctionModel, Model, Query, Scored
from ..models.combinators import Ensemble, ShallowFusion
from ..models.score_arrays import as_float64
from ..search import ROUNDING, BrokenLaw, Hypothesis
from ..settings import Budget

USUAL, MOST = 16, 512  # rows in a step: where nothing is known of the model, and at most
SHARE = 0.75  # of the best rate there is: more rows are more memory
PACKAGE = Path(__file__).parents[1]


class ModelFailure(NamedTuple):
    """The model cannot go on with an input, and why."""

    message: str


class UserModel:
    """Asks one model. With `lenient`, what it raises becomes a `ModelFailure` of the inputs that it raises it for."""

    def __init__(self, model: Model, lenient: bool) -> None:
        self.model = model
        self.name = type(getattr(model, "given", model)).__name__
        self.lenient = lenient
        self.seconds = 0.0
        self.independent = True  # as far as was seen: its scores do not depend on the batch
        self._groups = getattr(model.batch_key, "__func__", None) is not Model.batch_key
        self._needs_no_check = _rows_apart(model)
        self._batches = self._mixed = 0  # of several rows; of rows of several lengths
        self._next_check = 1
        self._times: dict[int, float] = {}  # the least seconds of a call, by its rows
        self._warned = False

    # -- what suits it ---------------------------------------------------------------------------------------------------

    def budget(self) -> Budget:
        """As many rows as it takes to come near the model's best rate, as far as its calls so far tell, if a call takes a time of
        its own and one for each row; all of them may then be scored ahead of their turn."""
        few, many = min(self._times, default=0), max(self._times, default=0)
        if many < 4 * max(few, 1):
            return Budget(USUAL, free=1)
        each = max((self._times[many] - self._times[few]) / (many - few), 1e-9)
        enough = int(min(MOST, SHARE / (1 - SHARE) * (self._times[few] / each - few)))
        return Budget(max(USUAL, enough), free=max(1, enough))

    def _timed(self, rows: int, call: Callable[[], Any]) -> Any:
        begun = perf_counter()
        try:
            return call()
        finally:
            taken = perf_counter() - begun
            self.seconds += taken
            if rows:
                self._times[rows] = min(taken, self._times.get(rows, taken))

    # -- inputs ------------------------------------------------------------------------------------------------------------

    def start(self, sources: Sequence[Any]) -> list[Any]:
        """The state of each input, or a `ModelFailure`."""
        try:
            states = list(self._timed(0, lambda: self.model.start_batch(sources)))
        except Exception as error:
            if not self.lenient or isinstance(error, BrokenLaw):
                raise
            if len(sources) == 1:
                return [self._failure("start", error)]
            return [self.start([source])[0] for source in sources]
        if len(states) != len(sources):
            raise BrokenLaw(f"{self.name}.start_batch was given {len(sources)} inputs and returned {len(states)} states")
        return states

    # -- hypotheses --------------------------------------------------------------------------------------------------------

    def ask(self, batch: Sequence[Query], attend: bool = False, several: bool = True) -> list[Any]:
        """A `Scored` for each query, or a `ModelFailure`. `several`: states are used more than once, so a check may use them."""
        method = "attend" if attend else "score"
        if not self._groups:
            return self._ask(method, batch, several)
        groups: dict[Any, list[int]] = defaultdict(list)
        for place, query in enumerate(batch):
            groups[self.model.batch_key(query)].append(place)
        out: list[Any] = [None] * len(batch)
        for places in groups.values():
            for place, answer in zip(places, self._ask(method, [batch[i] for i in places], several), strict=True):
                out[place] = answer
        return out

    def _ask(self, method: str, batch: Sequence[Query], several: bool) -> list[Any]:
        try:
            given = self._timed(len(batch), lambda: getattr(self.model, method)(batch))
        except Exception as error:
            if not self.lenient or isinstance(error, BrokenLaw):
                raise
            if len(batch) == 1:
                return [self._failure(method, error)]
            return [self._ask(method, [query], False)[0] for query in batch]
        answers = self.answers(given, batch, method)
        if several and len(batch) > 1 and not self._needs_no_check and self.independent:
            self._spot_check(method, batch, answers)
        return answers

    def best(self, batch: Sequence[Query], width: float) -> list[tuple[list[float], list[int], Any]] | None:
        """The best tokens of each query, their scores, and its state, by an ensemble; None where it does not know just these."""
        try:
            return self._timed(len(batch), lambda: self.model.best(batch, width))  # type: ignore[attr-defined]
        except Exception:
            if not self.lenient:
                raise
            return None  # asked one by one, each has its own failure

    def answers(self, given: Any, batch: Sequence[Query], method: str) -> list[Scored]:
        """What the model returned, as one `Scored` a query."""
        what = f"{self.name}.{method} was asked about {len(batch)} hypotheses"
        states: Any = None
        if isinstance(given, tuple) and len(given) == 2 and getattr(given[0], "ndim", 1) == 2:
            given, states = given
        if isinstance(given, Scored):
            raise BrokenLaw(f"{what} and returned one Scored; return a list, one for each")
        if isinstance(given, (dict, str)) or not hasattr(given, "__iter__"):
            raise BrokenLaw(f"{what} and returned {_shown(given)}; return a list of Scored(logprobs, state), one for each")
        if getattr(given, "ndim", 2) != 2:
            shape = tuple(given.shape)
            raise BrokenLaw(f"{what} and returned an array of shape {shape}; return one of shape ({len(batch)}, vocabulary)")
        answers = list(given)
        for said, count in (("answers", len(answers)), ("states", len(answers if states is None else states))):
            if count != len(batch):
                raise BrokenLaw(f"{what} and returned {count} {said}; return one for each, in the same order")
        if states is not None:
            return [Scored(row, state) for row, state in zip(answers, states, strict=True)]
        return [answer if isinstance(answer, Scored) else _scored(answer) for answer in answers]

    def _failure(self, method: str, error: Exception) -> ModelFailure:
        """What the model's own code raised, and where."""
        frames = [frame for frame in extract_tb(error.__traceback__) if not Path(frame.filename).is_relative_to(PACKAGE)]
        where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        message = f"{self.name}.{method} raised {type(error).__name__}: {error}{where}"
        if not self._warned:
            self._warned = True
            warnings.warn(f"{message}; inputs on which it raises get status='error'", RuntimeWarning, stacklevel=2)
        return ModelFailure(message)

    def text(self, source: Any, tokens: Sequence[int]) -> str | None:
        """The tokens as text; None where the model's own code fails on them."""
        try:
            return self.model.text(source, tokens)
        except Exception as error:
            if not self.lenient:
                raise
            self._failure("text", error)
            return None

    # -- the batch law ---------------------------------------------------------------------------------------------------------

    def _spot_check(self, method: str, batch: Sequence[Query], answers: Sequence[Scored]) -> None:
        """The first batches, the first with hypotheses of several lengths, and then ever fewer: is one row the same alone?"""
        self._batches += 1
        lengths = [len(query.prefix) for query in batch]
        mixed = min(lengths) < max(lengths)
        self._mixed += mixed
        if self._batches < self._next_check and not (mixed and self._mixed <= 3):
            return
        self._next_check = max(4, 4 * self._batches)
        row = lengths.index(min(lengths)) if mixed else self._batches % len(batch)  # the shorter is the one that is padded
        try:
            (alone,) = self.answers(self._timed(1, lambda: getattr(self.model, method)([batch[row]])), [batch[row]], method)
        except Exception:
            return  # what it cannot do alone will be found out when it has to
        found = difference(alone.logprobs, answers[row].logprobs)
        if found is None:
            return
        self.independent = False
        token, one, other = found
        message = (
            f"{self.name}.{method} gives token {token} after {list(batch[row].prefix)} {one:.6g} alone and {other:.6g} "
            f"in a batch of {len(batch)}: its scores depend on the batch, so results are marked exact=False; mend it (padding "
            "without a mask, dropout, states that are overwritten), or decode with row_budget=1"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def _rows_apart(model: Model) -> bool:
    """Whether no row can see another, or those that run the rows were tried before: a model of transformers."""
    if type(model) in (Ensemble, ShallowFusion):
        return all(each.hugging_face or _rows_apart(each) for each in model.models)  # type: ignore[attr-defined]
    return isinstance(model, FunctionModel) and not model.batched


def difference(one: Any, other: Any) -> tuple[int, float, float] | None:
    """A token whose scores in two rows differ by more than rounding does, in the precision they came in, and both scores."""
    import numpy

    slack = max(ROUNDING, 4 * max(_resolution(row) for row in (one, other)))
    a, b = as_float64(one, "the scores"), as_float64(other, "the scores")
    if len(a) != len(b):
        return 0, float(len(a)), float(len(b))
    with numpy.errstate(invalid="ignore"):
        apart = ~((a == b) | (abs(a - b) <= slack * (1 + abs(a))))
    token = int(apart.argmax())
    return (token, float(a[token]), float(b[token])) if apart[token] else None


def _resolution(row: Any) -> float:
    """The step between 1 and the next number that a row's precision knows."""
    if "torch" in sys.modules and hasattr(row, "detach") and row.dtype.is_floating_point:
        return float(sys.modules["torch"].finfo(row.dtype).eps)
    return 2.0**-10 if getattr(row, "dtype", None) == "float16" else 0.0


def _scored(answer: Any) -> Scored:
    """A pair of scores and a state; or scores alone."""
    if isinstance(answer, tuple) and len(answer) in (2, 3) and (answer[0] is None or hasattr(answer[0], "__len__")):
        return Scored(*answer)
    return Scored(answer)


def _shown(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r:.40}"


def wrong_in(values: Sequence[float], tokens: Sequence[int], what: object) -> str | None:
    """What is wrong with the best scores, if anything."""
    if values and values[0] != values[0]:
        return f"{what} contain NaN"
    return f"{what} include {values[0]} for token {tokens[0]}" if values and values[0] == inf else None


def warn_of_probabilities(row: Any, what: object) -> None:
    """Nothing else can see it where scores may rise: from 0 up, and 1 together."""
    if isinstance(row, (list, tuple)):  # the first log-probability ends this
        total = sum(row) if all(isinstance(value, (int, float)) and value >= 0 for value in row) else 0.0
    else:
        found = as_float64(row, what, nan=True)
        total = found.sum() if found.min() >= 0 else 0.0
    if len(row) > 1 and abs(total - 1) < ROUNDING:
        warnings.warn(f"{what} look like probabilities (from 0 up, 1 together); return their log", RuntimeWarning, stacklevel=2)


class ScoresAfter:
    """What is complained of, put into words when it is: few are."""

    __slots__ = ("y",)

    def __init__(self, y: Hypothesis) -> None:
        self.y = y

    def __str__(self) -> str:
        return f"the model's scores after {list(self.y.tokens)}"
