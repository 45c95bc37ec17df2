"""Which engine runs jobs on a model, and who asks the model on the host: the one place where either is made."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from math import inf
from typing import TYPE_CHECKING, Any

from ..models import Model
from ..scoring import Score
from ..settings import Decoding
from .engine import Engine
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
    many: bool = False,
    alone: bool = False,
) -> Engine:
    """Who runs jobs on this model: a GPU's own searches where they can be run there, with the host for the rest.

    `decoding` tells what all jobs share: how scores add up, the largest beam, the row budget, the bound on memory. `adapt` may
    change how the host's scorer works (`generate` adds logits processors); then nothing runs on the device, unless jobs are
    `edited`: they say the same as data (`Job.edits`). With `lenient`, an input on which a model of the user's own raises is
    given up, and the others are decoded. With `device`, ValueError where a GPU cannot run such jobs as a whole, and why. With
    `many`, jobs that come together may be told of a few steps late, so that threads have more to do. `alone`: there will be one
    job, with too few rows for threads to share.
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
        return on_host(scorer, decoding, drafting)

    way, why = _on_device(model, decoding)
    if why is not None and decoding.deterministic:
        raise ValueError(f"deterministic=True needs whole searches on a GPU, and {why}; leave it out")
    if why is not None and device:
        raise ValueError(why)
    if (adapt is None or edited) and way is not None:
        from .device import DeviceEngine

        return DeviceEngine(model, decoding, host, way)  # type: ignore[arg-type]
    if many and decoding.budget is None and two_at_once(model, decoding):
        return TwoEngines(host(), lambda: on_host(scorer_for(model.second, decoding.objective), decoding))  # type: ignore[attr-defined]
    return host()


def on_host(scorer: Any, decoding: Decoding, drafting: Drafting | None = None) -> HostEngine:
    """The host's engine, given who asks the model."""
    return HostEngine(scorer, decoding, drafting)


def two_at_once(model: Model, decoding: Decoding) -> bool:
    """Whether threads may decode on this model, and on its `second`, at the same time: it is compiled, and neither code of the
    user's own nor a model beside it is asked meanwhile, nor is memory bounded for all inputs together."""
    own = (decoding.draft, decoding.allowed, decoding.heuristic, decoding.objective.language_model, decoding.processors or None)
    ours = type(decoding.objective).__module__.startswith("bestfirst.") and all(each is None for each in own)
    return threads() > 1 and hasattr(type(model), "second") and ours and decoding.max_cache_tokens == inf


def _on_device(model: Model, decoding: Decoding) -> tuple[Way | None, str | None]:
    """How a GPU runs this model, if it can; and why jobs with these settings would run on the host, if they would."""
    if not model.on_gpu:
        return None, "the model is not on a GPU"
    if find_spec("triton") is None:
        return None, "Triton is not installed"
    from .device.model_check import way_of
    from .device.rules import unknown_to_device
    from .model_record import record_of

    with record_of(model).lock:  # it may try whether the model's modules agree with it there
        way = way_of(model)  # type: ignore[arg-type]
    if way is None:
        return None, "the searches of the device do not know this architecture, or its modules were changed"
    unknown = unknown_to_device(decoding)
    return way, None if unknown is None else f"the searches of the device do not know {unknown}"


def encodes_itself(model: Any, modules: Modules) -> bool:
    """Whether an engine of ours, on the host or on a device, has an encoder of its own for this model of transformers, which has
    these `modules`. That reads token ids and no padding."""
    from ..models.torch_modules import every_module
    from .steps.step_choice import native_steps

    if any(step.takes(model) for step in native_steps()):
        return every_module(model.get_encoder()).untouched
    if model.device.type != "cuda" or find_spec("triton") is None:
        return False
    from .device.device_bart import DeviceBart

    return DeviceBart.takes(model) and modules.untouched


def drafting_for(model: Model, scorer: Scorer, decoding: Decoding) -> Drafting | None:
    """Who guesses ahead; None where nobody is asked to, or rows cannot be scored with their parents."""
    from ..drafting import named_drafter
    from .drafts import Drafting
    from .model_record import Gains, Rates, record_of

    drafter = named_drafter(decoding.draft)
    if drafter is None or not scorer.chains:
        return None
    about, name = record_of(model), drafter.name
    rates, gains = about.rates.setdefault(name, Rates()), about.gains.setdefault(name, Gains())
    return Drafting(drafter, rates, gains, frozenset(decoding.ending(scorer.eos)))


def scorer_for(model: Model, score: Score, lenient: bool = False) -> Scorer:
    """Who asks this model on behalf of searches: Hugging Face models run on a tree of keys and values, others as they are."""
    if not model.hugging_face:
        return ModelScorer(model, score, lenient)
    from .tree_scorer import TreeScorer

    return TreeScorer(model, score)  # type: ignore[arg-type]
