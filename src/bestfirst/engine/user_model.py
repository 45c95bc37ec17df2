"""UserModel: the interface to a user's own model. It accepts answers in many forms, assigns failures to their inputs, measures
call times, and checks now and then whether scores depend on the batch."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from time import perf_counter
from traceback import extract_tb
from typing import Any, NamedTuple

from ..models import FunctionModel, Model, Query, Scored
from ..models.combinators import Ensemble, ShallowFusion
from ..models.model import ask, groups_of, name_of
from ..models.score_arrays import as_float64
from ..search import ROUNDING, BrokenLaw, Hypothesis
from ..settings import Budget

DEFAULT_ROWS, MAX_ROWS = 16, 512  # rows per step: before the first timings, and at most
RATE_SHARE = 0.75  # of the peak throughput: more rows need more memory
PACKAGE = Path(__file__).parents[1]


class ModelFailure(NamedTuple):
    """Why the model cannot continue with an input."""

    message: str


class UserModel:
    """Calls one model. With `lenient`, an exception becomes a `ModelFailure` of the inputs that cause it."""

    def __init__(self, model: Model, lenient: bool) -> None:
        self.model = model
        self.name = name_of(model)
        self.lenient = lenient
        self.seconds = 0.0
        self.independent = True  # no check has found scores that depend on the batch
        self._needs_no_check = _rows_independent(model)
        self._batches = self._mixed = 0  # batches so far: of several rows; of several lengths
        self._next_check = 1
        self._times: dict[int, float] = {}  # by number of rows: the minimum seconds of a call
        self._warned = False

    # -- the row budget --------------------------------------------------------------------------------------------------

    def budget(self) -> Budget:
        """The row budget at which throughput reaches `RATE_SHARE` of its peak, from the calls so far, if a call takes a constant
        time plus a time per row. All rows may then be speculative."""
        few, many = min(self._times, default=0), max(self._times, default=0)
        if many < 4 * max(few, 1):
            return Budget(DEFAULT_ROWS, free=1)
        per_row = max((self._times[many] - self._times[few]) / (many - few), 1e-9)
        enough = int(min(MAX_ROWS, RATE_SHARE / (1 - RATE_SHARE) * (self._times[few] / per_row - few)))
        return Budget(max(DEFAULT_ROWS, enough), free=max(1, enough))

    def _timed(self, rows: int, call: Callable[[], Any]) -> Any:
        started = perf_counter()
        try:
            return call()
        finally:
            taken = perf_counter() - started
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

    def ask(self, batch: Sequence[Query], attend: bool = False, reusable: bool = True) -> list[Any]:
        """A `Scored` or a `ModelFailure` for each query. `reusable`: states are used again, so a spot check may use them."""
        method = "attend" if attend else "score"
        try:
            answers = self._timed(len(batch), lambda: ask(self.model, batch, method))
        except Exception as error:
            if not self.lenient or isinstance(error, BrokenLaw):
                raise
            if len(batch) == 1:
                return [self._failure(method, error)]
            return [self.ask([query], attend, False)[0] for query in batch]
        if reusable and len(batch) > 1 and not self._needs_no_check:
            for places in groups_of(self.model, batch):
                if len(places) > 1 and self.independent:
                    self._spot_check(method, [batch[i] for i in places], [answers[i] for i in places])
        return answers

    def best(self, batch: Sequence[Query], width: float) -> list[tuple[list[float], list[int], Any]] | None:
        """An ensemble's best tokens for each query, as (scores, tokens, state); None if it cannot tell without all scores."""
        try:
            return self._timed(len(batch), lambda: self.model.best(batch, width))  # type: ignore[attr-defined]
        except Exception:
            if not self.lenient:
                raise
            return None  # then each model is called, and failures are assigned to inputs

    def _failure(self, method: str, error: Exception) -> ModelFailure:
        """A failure with the exception and its place in the model's own code; the first one also warns."""
        frames = [frame for frame in extract_tb(error.__traceback__) if not Path(frame.filename).is_relative_to(PACKAGE)]
        where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        message = f"{self.name}.{method} raised {type(error).__name__}: {error}{where}"
        if not self._warned:
            self._warned = True
            warnings.warn(f"{message}; inputs on which it raises get status='error'", RuntimeWarning, stacklevel=2)
        return ModelFailure(message)

    def text(self, source: Any, tokens: Sequence[int]) -> str | None:
        """Detokenizes; None if the model raises, when `lenient`."""
        try:
            return self.model.text(source, tokens)
        except Exception as error:
            if not self.lenient:
                raise
            self._failure("text", error)
            return None

    # -- the batch law ---------------------------------------------------------------------------------------------------------

    def _spot_check(self, method: str, batch: Sequence[Query], answers: Sequence[Scored]) -> None:
        """Compares a row's scores alone and in its batch: in the first batch, in the first three of mixed lengths, then ever more
        rarely."""
        self._batches += 1
        lengths = [len(query.prefix) for query in batch]
        mixed = min(lengths) < max(lengths)
        self._mixed += mixed
        if self._batches < self._next_check and not (mixed and self._mixed <= 3):
            return
        self._next_check = max(4, 4 * self._batches)
        row = lengths.index(min(lengths)) if mixed else self._batches % len(batch)  # a short one, which is padded
        try:
            (alone,) = self._timed(1, lambda: ask(self.model, [batch[row]], method))
        except Exception:
            return  # if it fails again as a normal call, that reports it
        found = first_difference(alone.logprobs, answers[row].logprobs)
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


def _rows_independent(model: Model) -> bool:
    """Whether rows cannot influence each other, or were checked elsewhere (transformers models)."""
    if type(model) in (Ensemble, ShallowFusion):
        return all(map(_rows_independent, model.models))  # type: ignore[attr-defined]
    return model.hugging_face or (isinstance(model, FunctionModel) and not model.batched)


def first_difference(one: Any, other: Any) -> tuple[int, float, float] | None:
    """The first token whose scores in two rows differ by more than rounding in their precision, and both scores."""
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
    """The machine epsilon of a tensor's dtype or of float16 arrays; 0 for all other rows."""
    if "torch" in sys.modules and hasattr(row, "detach") and row.dtype.is_floating_point:
        return float(sys.modules["torch"].finfo(row.dtype).eps)
    return 2.0**-10 if getattr(row, "dtype", None) == "float16" else 0.0


def invalid_scores(values: Sequence[float], tokens: Sequence[int], label: object) -> str | None:
    """A message if the best scores contain NaN or +inf, else None."""
    if values and values[0] != values[0]:
        return f"{label} contain NaN"
    return f"{label} include {values[0]} for token {tokens[0]}" if values and values[0] == inf else None


def warn_of_probabilities(row: Any, label: object) -> None:
    """Warns about a row of probabilities (non-negative, sum 1), which scores that may rise would accept silently."""
    if isinstance(row, (list, tuple)):  # `all` stops at the first log-probability
        total = sum(row) if all(isinstance(value, (int, float)) and value >= 0 for value in row) else 0.0
    else:
        found = as_float64(row, label, nan=True)
        total = found.sum() if found.min() >= 0 else 0.0
    if len(row) > 1 and abs(total - 1) < ROUNDING:
        warnings.warn(f"{label} look like probabilities (from 0 up, 1 together); return their log", RuntimeWarning, stacklevel=2)


class ScoresAfter:
    """The subject of an error message, formatted only if there is an error."""

    __slots__ = ("y",)

    def __init__(self, y: Hypothesis) -> None:
        self.y = y

    def __str__(self) -> str:
        return f"the model's scores after {list(self.y.tokens)}"
