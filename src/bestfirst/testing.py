"""Laws that a model or a score of your own must obey, for your own tests. Pure Python; numpy only where a score needs arrays.

    from bestfirst.testing import check_model, check_score
    check_model(MyModel(), "an input")
    check_score(MyScore())

Both return None, or raise AssertionError with a sentence that names the law, the hypothesis and the numbers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from math import exp, inf, isnan
from typing import Any

from .models import Model, Query, Scored, as_model
from .models.model import ask
from .models.score_arrays import as_float64
from .scoring import Score, log_softmax
from .search import ROUNDING, TOLERANCE, BrokenLaw, Context, exceeds

Prefix = tuple[int, ...]


# -- models ----------------------------------------------------------------------------------------------------------------


def check_model(
    model: Model,
    source: Any = None,
    *,
    normalized: bool = True,
    monotonic: bool = True,
    prefixes: int = 20,
    tolerance: float = ROUNDING,
    seed: int = 0,
) -> None:
    """Check a model on one input and a random tree of that many prefixes. Its laws:

    - a score for every token of one vocabulary, EOS among them; none of them NaN or +inf
    - monotonic: no score is positive (turn off for additive scores that can rise; those need strategy="beam")
    - normalized: the scores are logarithms of probabilities that sum to 1 (turn off for scores that are not probabilities)
    - consistent: continuing from a kept state, however often it was used, equals scoring the prefix again from the start
    - batch-independent: a hypothesis' scores and state do not depend on what else is in the batch

    `tolerance` is what rounding may change: batch shape changes the last bits of a neural model's scores.
    """
    model = as_model(model)
    alone = _random_tree(model, source, prefixes, random.Random(seed))
    size = len(alone[()].logprobs)
    for prefix, answer in alone.items():
        _check_numbers(prefix, answer.logprobs, size, model)
        if monotonic:
            _check_monotonic(prefix, answer.logprobs, tolerance)
        if normalized:
            _check_normalized(prefix, answer.logprobs, tolerance)
    for prefix, answer in alone.items():
        again = _replay(model, source, prefix)
        _check_same("consistent", prefix, answer, "from a kept state", again, "from the start", tolerance)
    _check_batches(model, source, alone, random.Random(seed), tolerance)


def _ask(model: Model, batch: Sequence[Query]) -> list[Scored]:
    """The model's answers, validated as they are while decoding, with scores as lists."""
    try:
        answers = ask(model, batch)
    except BrokenLaw as broken:
        raise AssertionError(f"one answer a query: {broken}") from None
    return [answer._replace(logprobs=_as_list(answer.logprobs)) for answer in answers]


def _as_list(row: Any) -> list[float]:
    if isinstance(row, (list, tuple)):
        return [float(value) for value in row]
    return [float("nan")] if row is None else as_float64(row, "the scores", nan=True).tolist()


def _random_tree(model: Model, source: Any, prefixes: int, rng: random.Random) -> dict[Prefix, Scored]:
    """A random tree of prefixes, each scored alone, from the state that the model returned for its parent."""
    start = model.start(source)
    tree: dict[Prefix, Scored] = {(): _ask(model, [Query(start, ())])[0]}
    limit = model.max_length(source)
    for _ in range(4 * prefixes):
        if len(tree) == prefixes:
            break
        parent = list(tree)[-1] if rng.random() < 0.6 else rng.choice(list(tree))
        possible = [token for token, value in enumerate(tree[parent].logprobs) if value > -inf and token not in model.eos]
        prefix = (*parent, rng.choice(possible)) if possible else parent
        if prefix not in tree and len(prefix) < limit:
            tree[prefix] = _ask(model, [Query(tree[parent].state, prefix)])[0]
    return tree


def _replay(model: Model, source: Any, prefix: Prefix) -> Scored:
    """Score the prefix from the start, token by token, alone."""
    answer = Scored([], model.start(source))
    for length in range(len(prefix) + 1):
        answer = _ask(model, [Query(answer.state, prefix[:length])])[0]
    return answer


def _check_numbers(prefix: Prefix, logprobs: Sequence[float], size: int, model: Model) -> None:
    if len(logprobs) != size:
        raise AssertionError(
            f"one vocabulary: there are {len(logprobs)} scores after {list(prefix)} but {size} after []; "
            "give -inf to tokens that may not come"
        )
    if not model.eos or not all(0 <= token < size for token in model.eos):
        raise AssertionError(f"EOS in the vocabulary: eos is {sorted(model.eos)}, and the vocabulary has {size} tokens")
    for token, value in enumerate(logprobs):
        if isnan(value) or value == inf:
            raise AssertionError(f"numbers: the score of token {token} after {list(prefix)} is {value}")


def _check_monotonic(prefix: Prefix, logprobs: Sequence[float], tolerance: float) -> None:
    best = max(range(len(logprobs)), key=logprobs.__getitem__)
    if logprobs[best] > tolerance:
        raise AssertionError(
            f"monotonic: token {best} after {list(prefix)} adds {logprobs[best]:.6g}, more than 0; "
            "of logits return the log_softmax, of probabilities the log. If scores are meant to rise, search with "
            "strategy='beam' and check with monotonic=False"
        )


def _check_normalized(prefix: Prefix, logprobs: Sequence[float], tolerance: float) -> None:
    total = sum(exp(min(value, 700.0)) for value in logprobs)
    if abs(total - 1) > tolerance:
        raise AssertionError(
            f"normalized: the probabilities after {list(prefix)} sum to {total:.6g}, not 1; "
            "check with normalized=False if the scores are not meant to be probabilities"
        )


def _check_batches(model: Model, source: Any, alone: dict[Prefix, Scored], rng: random.Random, tolerance: float) -> None:
    """Score all prefixes in one batch, in random order and with repetitions; then again from the states of that batch."""
    states = {prefix: answer.state for prefix, answer in alone.items()}
    for where in ("in a batch", "from states made in a batch, in one"):
        batch = [*alone, *rng.choices(list(alone), k=3)]
        rng.shuffle(batch)
        start = model.start(source)
        answers = _ask(model, [Query(states[prefix[:-1]] if prefix else start, prefix) for prefix in batch])
        for prefix, answer in zip(batch, answers, strict=True):
            _check_same("batch-independent", prefix, alone[prefix], "alone", answer, f"{where} of {len(batch)}", tolerance)
        states = {prefix: answer.state for prefix, answer in zip(batch, answers, strict=True)}


def _check_same(law: str, prefix: Prefix, one: Scored, how: str, other: Scored, otherwise: str, tolerance: float) -> None:
    if len(one.logprobs) != len(other.logprobs):
        raise AssertionError(
            f"{law}: there are {len(one.logprobs)} scores after {list(prefix)} {how}, {len(other.logprobs)} {otherwise}"
        )
    for token, (a, b) in enumerate(zip(one.logprobs, other.logprobs, strict=True)):
        if a != b and not abs(a - b) <= tolerance * (1 + abs(a)):
            raise AssertionError(f"{law}: token {token} after {list(prefix)} scores {a:.6g} {how} and {b:.6g} {otherwise}")


# -- scores ----------------------------------------------------------------------------------------------------------------


def check_score(score: Score, *, n_max: int = 12, source_length: int = 6, tolerance: float = TOLERANCE, seed: int = 0) -> None:
    """Check a score on random values, at every length up to `n_max`. Its laws:

    - increments are never positive, nor is what finishing adds
    - `final` never falls when the value rises
    - `bound` is not exceeded by `final` at any greater length, nor by the bound of a longer hypothesis
    - its claims: `monotonic` (`final` never rises with length), `one_way` (it only rises, or only falls, and rises strictly with
      the value), `value_only`

    Under them best-first search returns beam search's result (docs/algorithm.md).
    """
    rng = random.Random(seed)
    _check_increments(score, rng, tolerance)
    if "attention" in score.needs:
        _check_ending(score, rng, tolerance)
    values = sorted({0.0, -1e-6, -1.0, *(-rng.expovariate(0.2) for _ in range(20))})
    for limit in sorted({1, 2, n_max}):
        context = Context(n_max=limit, source_length=source_length)
        for length in range(1, limit + 1):
            _check_final(score, values, length, context, tolerance)
        for length in range(limit):
            for value in values:
                _check_bound(score, value, [each for each in values if each <= value], length, context, tolerance)
        for value in values:
            _check_claims(score, value, context, tolerance)


def _exceeds(a: float, b: float, tolerance: float) -> bool:
    """Whether a > b by more than rounding; NaN always does."""
    return isnan(a) or isnan(b) or exceeds(a, b, tolerance)


def _check_increments(score: Score, rng: random.Random, tolerance: float) -> None:
    """Checks the increments for log-probabilities from flat to peaked distributions."""
    if score.plain:
        return
    import numpy

    for sharpness in 10 * (0.0, 1.0, 5.0, 50.0):
        logits = numpy.array([[rng.gauss(0, sharpness) for _ in range(8)] for _ in range(2)])
        logprobs, aux = log_softmax(logits).clip(max=0)
        known = {"aux": aux} if "language_model" in score.needs else {}
        if "language_model_past" in score.needs:
            known["past"] = numpy.array([-rng.expovariate(0.2)])
        increments = score.increment(logprobs, **known)
        if getattr(increments, "shape", None) != logprobs.shape:
            raise AssertionError(f"{score.name}: `increment` returns a number for each token, but it returned {increments!r:.60}")
        for logprob, increment in zip(logprobs.tolist(), increments.tolist(), strict=True):
            if not increment <= tolerance:
                raise AssertionError(
                    f"{score.name}: increments are never positive, but a token of log-probability {logprob:.6g} adds "
                    f"{increment:.6g}; take off the most that a token can add, and give it back in `final`"
                )


def _check_ending(score: Score, rng: random.Random, tolerance: float) -> None:
    import numpy

    for _ in range(20):
        coverage = numpy.array([rng.expovariate(1.0) for _ in range(5)])
        ending = float(score.ending(coverage))
        if not ending <= tolerance:
            seen = coverage.round(3).tolist()
            raise AssertionError(f"{score.name}: what finishing adds is never positive, but coverage {seen} adds {ending:.6g}")


def _check_final(score: Score, values: Sequence[float], length: int, context: Context, tolerance: float) -> None:
    for lower, higher in pairwise(values):
        a, b = score.final(lower, length, context), score.final(higher, length, context)
        _check_number(f"{score.name}.final", a)
        if inf in (a, b):
            raise AssertionError(f"{score.name}: `final` is not infinitely good, but at length {length} it is inf")
        if _exceeds(a, b, tolerance):
            raise AssertionError(
                f"{score.name}: `final` never falls when the value rises, but at length {length} (n_max {context.n_max}) "
                f"a hypothesis of value {lower:.6g} is worth {a:.6g}, and one of value {higher:.6g} is worth {b:.6g}"
            )
        if score.one_way and not a < b:
            raise AssertionError(
                f"{score.name}: it claims to go one way, so `final` must rise strictly with the value, as finished='keep' needs, "
                f"but at length {length} (n_max {context.n_max}) values {lower:.6g} and {higher:.6g} are both worth {b:.6g}"
            )


def _check_number(name: str, found: Any) -> None:
    if not hasattr(found, "__float__"):
        raise AssertionError(f"{name}: it must return a number, but it returned {found!r:.60}")


def _check_bound(score: Score, value: float, lower: Sequence[float], length: int, context: Context, tolerance: float) -> None:
    bound = score.bound(value, length, context)
    _check_number(f"{score.name}.bound", bound)
    this = f"a hypothesis of value {value:.6g} and length {length} (n_max {context.n_max}) has bound {bound:.6g}"
    for longer in range(length + 1, context.n_max + 1):
        final = score.final(value, longer, context)
        if _exceeds(final, bound, tolerance):
            raise AssertionError(
                f"{score.name}: `bound` is not exceeded by any longer `final`, but {this}, "
                f"and at length {longer} it can be worth {final:.6g}"
            )
    if length + 1 < context.n_max:
        for below in reversed(lower):  # the value itself first
            child = score.bound(below, length + 1, context)
            if _exceeds(child, bound, tolerance):
                token = "one free token" if below == value else f"one token of cost {value - below:.6g}"
                raise AssertionError(f"{score.name}: `bound` never rises along a path, but {this}, and {token} more {child:.6g}")


def _check_claims(score: Score, value: float, context: Context, tolerance: float) -> None:
    worth = {length: score.final(value, length, context) for length in range(1, context.n_max + 1)}
    rises = [t for t in range(2, context.n_max + 1) if _exceeds(worth[t], worth[t - 1], tolerance)]
    falls = [t for t in range(2, context.n_max + 1) if _exceeds(worth[t - 1], worth[t], tolerance)]
    if score.monotonic and rises:
        t = rises[0]
        raise AssertionError(
            f"{score.name}: it claims to be monotonic, but a hypothesis of value {value:.6g} is worth {worth[t - 1]:.6g} at "
            f"length {t - 1} and {worth[t]:.6g} at length {t}"
        )
    if score.one_way and rises and falls:
        raise AssertionError(
            f"{score.name}: it claims to go one way, but a hypothesis of value {value:.6g} rises at length {rises[0]}, "
            f"to {worth[rises[0]]:.6g}, and falls at length {falls[0]}, to {worth[falls[0]]:.6g}"
        )
    bounds = [score.bound(value, length, context) for length in range(context.n_max)]
    other = next((number for number in (*worth.values(), *bounds) if number != value), None)
    if score.value_only and other is not None:
        raise AssertionError(f"{score.name}: it claims to be the value alone, but of value {value:.6g} it makes {other:.6g}")
