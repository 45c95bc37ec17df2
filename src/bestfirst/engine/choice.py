"""Chooses the engine for a model and its settings, and the scorer for the host: the only place that creates either."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from math import inf
from typing import TYPE_CHECKING, Any

from ..models import Model
from ..scoring import Score
from ..settings import Decoding
from .engine import Engine, Runnable
from .host import HostEngine
from .model_scorer import ModelScorer
from .scorer import Scorer
from .threads import threads
from .two_engines import TwoEngines

if TYPE_CHECKING:
    from ..models.torch_modules import Modules
    from .device.model_check import Way
    from .drafts import Drafting


def engine_for(
    model: Model,
    decoding: Decoding,
    adapt: Callable[[Scorer], None] | None = None,
    *,
    edited: bool = False,
    lenient: bool = False,
    device: bool = False,
    alone: bool = False,
) -> Engine:
    """Creates the engine for this model: whole searches on a GPU where model and settings allow it, a `HostEngine` for the rest.

    `decoding` holds what all jobs share: how scores add up, the largest beam, the row budget, the memory bound. `adapt` may
    modify the host's scorer (`generate` adds logits processors); then nothing runs on the device, unless the jobs are `edited`:
    they carry the same changes as data (`Job.edits`). With `lenient`, an input on which a user's own model raises fails alone
    and the others are decoded. With `device`, ValueError if a GPU cannot run such jobs as a whole, and why. `alone`: there will
    be one job, with too few rows for threads to share.
    """

    def host() -> HostEngine:
        scorer = scorer_for(model, decoding.objective, lenient)
        if decoding.processors:
            from .logits_processing import processing_for

            scorer.process = processing_for(model, decoding)
        if adapt is not None:
            adapt(scorer)
        drafting = None if decoding.draft is None else drafting_for(model, scorer, decoding)
        if model.hugging_face and not model.on_gpu and (alone or threads() == 1):
            from .compiled_engine import CompiledEngine

            if CompiledEngine.takes(scorer, decoding):
                return CompiledEngine(scorer, decoding, drafting)  # type: ignore[arg-type]
        return host_engine(scorer, decoding, drafting)

    way, why = _device_support(model, decoding)
    if why is not None and decoding.deterministic:
        raise ValueError(f"deterministic=True needs whole searches on a GPU, and {why}; leave it out")
    if why is not None and device:
        raise ValueError(why)
    if (adapt is None or edited) and way is not None:
        from .device import DeviceEngine

        return DeviceEngine(model, decoding, host, way)  # type: ignore[arg-type]
    return host()


def host_engine(scorer: Any, decoding: Decoding, drafting: Drafting | None = None) -> HostEngine:
    """A `HostEngine` on a scorer, also for callers that bring a scorer of their own (benchmarks)."""
    return HostEngine(scorer, decoding, drafting)


def engine_for_many(model: Model, decoding: Decoding, lenient: bool = False) -> Runnable:
    """As `engine_for`, for many jobs at once: two engines, where the model has a `second` and there are threads for both.

    Not if the settings have a budget: rows and steps must then not depend on threads."""
    engine = engine_for(model, decoding, lenient=lenient)
    if not isinstance(engine, HostEngine) or decoding.budget is not None or not can_run_two_engines(model, decoding):
        return engine
    return TwoEngines(engine, lambda: host_engine(scorer_for(model.second, decoding.objective), decoding))  # type: ignore[attr-defined]


def can_run_two_engines(model: Model, decoding: Decoding) -> bool:
    """Whether two threads may decode on this model and its `second` at the same time: the model is compiled, neither user code
    nor a second model is called during the search, and there is no memory bound over all inputs."""
    own = (decoding.draft, decoding.allowed, decoding.heuristic, decoding.objective.language_model, decoding.processors or None)
    built_in = type(decoding.objective).__module__.startswith("bestfirst.") and all(each is None for each in own)
    return threads() > 1 and hasattr(type(model), "second") and built_in and decoding.max_cache_tokens == inf


def _device_support(model: Model, decoding: Decoding) -> tuple[Way | None, str | None]:
    """How a GPU runs this model, if it can; and why jobs with these settings would run on the host, if they would."""
    if not model.on_gpu:
        return None, "the model is not on a GPU"
    if find_spec("triton") is None:
        return None, "Triton is not installed"
    from .device.model_check import way_of
    from .device.rules import unknown_to_device
    from .model_record import record_of

    with record_of(model).lock:  # the first call may compare the device step with the model
        way = way_of(model)  # type: ignore[arg-type]
    if way is None:
        return None, "the searches of the device do not know this architecture, or its modules were changed"
    unknown = unknown_to_device(decoding)
    return way, None if unknown is None else f"the searches of the device do not know {unknown}"


def has_own_encoder(model: Any, modules: Modules) -> bool:
    """Whether one of our engines, on the host or on a device, has its own encoder for this transformers model, which consists of
    `modules`. Such an encoder reads token ids and no padding."""
    from ..models.torch_modules import every_module
    from .steps.step_choice import native_steps

    if any(step.takes(model) for step in native_steps()):
        return every_module(model.get_encoder()).untouched
    if model.device.type != "cuda" or find_spec("triton") is None:
        return False
    from .device.device_bart import DeviceBart

    return DeviceBart.takes(model) and modules.untouched


def drafting_for(model: Model, scorer: Scorer, decoding: Decoding) -> Drafting | None:
    """The engine's drafting; None if the settings ask for none, or rows cannot be scored in one step with their parents."""
    from ..drafting import named_drafter
    from .drafts import Drafting
    from .model_record import DraftGains, SuccessRates, record_of

    drafter = named_drafter(decoding.draft)
    if drafter is None or not scorer.chains:
        return None
    record, name = record_of(model), drafter.name
    rates, gains = record.rates.setdefault(name, SuccessRates()), record.gains.setdefault(name, DraftGains())
    return Drafting(drafter, rates, gains, frozenset(decoding.ending(scorer.eos)))


def scorer_for(model: Model, score: Score, lenient: bool = False) -> Scorer:
    """The scorer for this model: a `TreeScorer` for Hugging Face models, a `ModelScorer` for all others."""
    if not model.hugging_face:
        return ModelScorer(model, score, lenient)
    from .tree_scorer import TreeScorer

    return TreeScorer(model, score)  # type: ignore[arg-type]
