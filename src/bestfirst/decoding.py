"""decode and decode_iter: inputs in, results out, for any model. They check the call, then run the inputs through an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from inspect import Parameter, Signature, signature
from time import perf_counter
from typing import Any, Literal, get_args

from .engine import BATCH, FIRST_BATCH, Job, Stats, engine_for, engine_for_many, no_garbage_collection, run
from .models import Model, Source, as_model
from .search import Result, Trace
from .settings import DEFAULT, Decoding, read_settings

Tracing = bool | Callable[[int], Trace | None] | None
Errors = Literal["result", "raise"]


def decode(
    model: Model,
    inputs: Iterable[Any],
    decoding: Decoding | None = None,
    *,
    trace: Tracing = None,
    progress: Callable[[int, Result], None] | None = None,
    stats: Stats | None = None,
    errors: Errors = "result",
    **settings: Any,
) -> list[Result]:
    """Decode every input; returns one `Result` for each, in order.

    An input that cannot be decoded gets a result with `status="error"` and a `message`; the others are not affected.

    settings  those of `bestfirst.Decoding`, by name (`beam=10, length_penalty=0.6`), or instead the object itself
    trace     whether to record every search (`Result.trace`, for `bestfirst.view`); or a function that returns the `Trace` for an
              input's number, None for no trace
    progress  called with an input's number and result, as soon as it is done
    stats     a `bestfirst.Stats`, filled with the costs of the whole decode
    errors    what happens to an input on which a model of your own raises: a "result" with `status="error"`, or "raise"
    """
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function of an input's number and its result, got {progress!r:.60}")
    results: dict[int, Result] = {}
    with no_garbage_collection():
        for index, result in decode_iter(model, inputs, decoding, trace=trace, stats=stats, errors=errors, **settings):
            results[index] = result
            if progress is not None:
                progress(index, result)
    return [results[index] for index in range(len(results))]


def decode_iter(
    model: Model,
    inputs: Iterable[Any],
    decoding: Decoding | None = None,
    *,
    trace: Tracing = None,
    stats: Stats | None = None,
    errors: Errors = "result",
    **settings: Any,
) -> Iterator[tuple[int, Result]]:
    """As `decode`, but yields each input's number and result as soon as it is done, and reads inputs as they are needed: any
    number of them is decoded in bounded memory. If `inputs` raises, the inputs read before are finished first.

    Forward passes are shared, so some hundreds of inputs are read before the first result; on a GPU up to some ten thousand.
    """
    if isinstance(inputs, str):
        raise ValueError("inputs must be a list of inputs, got one text; write decode(model, [text])")
    if isinstance(inputs, Mapping):
        raise ValueError(
            "inputs must be a list of inputs, got a mapping (a tokenizer's output?); write decode(model, [text]) "
            "or decode(model, mapping['input_ids'])"
        )
    if isinstance(inputs, Model):
        raise ValueError(f"inputs must be a list of inputs, got a {type(inputs).__name__}; write decode(model, inputs)")
    if not isinstance(inputs, Iterable):
        raise ValueError(f"inputs must be a list of inputs, got {inputs!r:.60}; write decode(model, [input])")
    if stats is not None and not isinstance(stats, Stats):
        raise TypeError(f"stats must be a bestfirst.Stats, got {type(stats).__name__}")
    if not isinstance(trace, (bool, type(None))) and not callable(trace):
        raise TypeError(f"trace must be True, False, or a function from an input's number to a Trace, got {trace!r:.60}")
    if errors not in get_args(Errors):
        raise ValueError(f"errors must be 'result' or 'raise', got {errors!r}")
    decoding = read_settings(decoding, settings)
    model = model if isinstance(model, Model) and getattr(model, "eos", None) is not None else as_model(model)
    return _results(model, inputs, decoding, trace, stats, errors == "result")


def _results(
    model: Model, inputs: Iterable[Any], decoding: Decoding, trace: Tracing, stats: Stats | None, lenient: bool
) -> Iterator[tuple[int, Result]]:
    """Run the inputs through an engine. `lenient`: errors of a user's model become results."""
    if decoding.draft is not None:
        from .loading import with_drafter

        decoding = with_drafter(decoding)
    decoding = decoding.read(model)
    alone = isinstance(inputs, (list, tuple)) and len(inputs) == 1
    engine = engine_for(model, decoding, lenient=lenient, alone=True) if alone else engine_for_many(model, decoding, lenient)
    begun = perf_counter()

    def jobs() -> Iterator[Job]:
        for index, (raw, read) in enumerate(_read(model, inputs, decoding.prefix)):
            try:
                if isinstance(read, ValueError):
                    raise read
                job = Job(index, read, decoding)
            except ValueError as error:
                yield Job(index, NO_SOURCE, decoding, error=str(error))
                continue
            if trace:
                job.trace = trace(index) if callable(trace) else Trace()
                if job.trace is not None:
                    job.trace.describe(model, raw)
            yield job

    try:
        for job, result in run(engine, jobs()):
            if job.trace is not None:
                result.trace = job.trace
                job.trace.text(result)
            yield job.index, result
    finally:
        if stats is not None:
            stats.add(engine.stats)
            stats.seconds += perf_counter() - begun


NO_SOURCE = Source(None, 0, 0)


def _read(model: Model, inputs: Iterable[Any], prefix: Any) -> Iterator[tuple[Any, Source | ValueError]]:
    """Yields each input with its `Source`, or with the error if the model cannot read it. Lists are tokenized in batches, as they
    are needed; other iterables one by one, since an input that is not needed yet must not be waited for."""
    try:
        read = model.reader(prefix)
    except ValueError as error:
        yield from ((raw, error) for raw in inputs)
        return
    batch = getattr(read, "batch", None)
    if batch is not None and isinstance(inputs, (list, tuple)):
        for first in (0, *range(FIRST_BATCH, len(inputs), BATCH)):
            raws = inputs[first : first + BATCH if first else FIRST_BATCH]
            yield from zip(raws, batch(raws), strict=True)
        return
    for raw in inputs:
        try:
            yield raw, read(raw)
        except ValueError as error:
            yield raw, error


def _show_settings(function: Any) -> None:
    """Let `help` and editors show the settings as keyword arguments."""
    own = [each for each in signature(function).parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    more = [Parameter(each.name, Parameter.KEYWORD_ONLY, default=getattr(DEFAULT, each.name)) for each in fields(Decoding)]
    function.__signature__ = Signature([*own, *more])


for _function in (decode, decode_iter):
    _show_settings(_function)
