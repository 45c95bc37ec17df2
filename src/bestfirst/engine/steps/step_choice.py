"""Which step runs a model: the compiled or fused one of its architecture, its own modules on the tree, or plain recomputation.

None is trusted by name: the first time a model is decoded with, a candidate is tried against the model itself (`step_check`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from typing import Any

import torch

from ...models.torch_modules import Modules, every_module
from ...models.transformers import TransformersModel
from ..model_record import record_of
from .bart import FusedBart, NativeBart
from .decoder_step import DecoderStep
from .hooked import HookedStep, MaskedLayersStep, RecomputeStep
from .llama import FusedLlama
from .native.registers import available
from .step_check import agrees, agrees_without_masks, encoder_agrees
from .t5 import FusedT5
from .windows import FULL, Windows

_warned: set[str] = set()


def step_for(model: TransformersModel) -> DecoderStep:
    """The fastest step that agrees with the model; the one of the last decode while the model is the same."""
    shared = record_of(model)
    kept = shared.step or model.step
    if kept is not None and kept[0].holds(model.modules):
        return kept[1]
    fingerprint = Fingerprint(model.modules)
    if shared.tried != fingerprint.outline():
        shared.agreed.clear()  # somebody has rebuilt it: verdicts on what it was say nothing
        shared.ratios.clear()
        shared.tried = fingerprint.outline()
    step = choose(model, shared.agreed)
    shared.step = model.step = None
    (model if step.holds_model else shared).step = (fingerprint, step)
    return step


class Fingerprint:
    """What tells whether a model is still the same: its modules and hooks; where its weights lie, how often they were written to,
    and some of the numbers; with `copied`, all of those that a step has copies of.

    The numbers, because averaged weights and adapters are often written through `.data`, which is not counted.
    """

    copied: Any = None  # a `Checksum`, where somebody asked for one

    def __init__(self, modules: Modules) -> None:
        self.parts = modules.parts
        self._places = self._look(modules)
        self._some: dict[Any, list[torch.Tensor]] = {}
        for p in list(dict.fromkeys(modules.weights))[::5]:
            if p.numel():
                self._some.setdefault((p.device, p.dtype), []).append(p.detach()[(0,) * p.dim()])
        self._numbers = self._read()

    def holds(self, modules: Modules) -> bool:
        """Whether the model is still that one, which has these modules."""
        return self._stands(modules) and self._read() == self._numbers

    def seems_to_hold(self, modules: Modules) -> bool:
        """The same, but for what was copied: that is read from now on, and `copied.holds()` is to be asked before it counts."""
        if self.copied is None:
            return self.holds(modules)
        self.copied.begin()
        return self._stands(modules)

    def _stands(self, modules: Modules) -> bool:
        return modules.parts == self.parts and self._look(modules) == self._places

    def outline(self) -> list[Any]:
        """Its parts, of which this keeps none in memory."""
        return [(kind, *map(id, own)) for kind, *own in self.parts]

    def _look(self, modules: Modules) -> list[tuple[int, int]]:
        return [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in modules.weights]

    def _read(self) -> list[list[float]]:
        return [torch.stack(some).tolist() for some in self._some.values()]


def choose(model: TransformersModel, agreed: dict[Any, bool]) -> DecoderStep:
    """Each candidate is tried once a model; the verdicts stay with it."""
    if model.eight_bits:
        return in_eight_bits(model, agreed)
    for candidate in candidates(model):
        if _once(agreed, candidate, partial(agrees, candidate, model)):
            step = candidate(model.model)
            if step.encoder is not None and not _takes_the_place(step.encoder, model, agreed):
                step.encoder = None
            if isinstance(step, HookedStep) and step.repeats:
                step.needless = _once(agreed, (type(step), "without masks"), partial(agrees_without_masks, step, model))
            return step
    raise ValueError(
        f"{type(model.model).__name__} ({model.model.config.model_type}) cannot be decoded with by this engine: "
        "none of its ways to run a batch of hypotheses gives the scores that the model itself gives them"
    )


def in_eight_bits(model: TransformersModel, agreed: dict[Any, bool]) -> DecoderStep:
    """The compiled step in eight bits, for a model with which it agrees in float32."""
    exact = copy(model)
    exact.eight_bits = False
    step = choose(exact, agreed)
    if not isinstance(step, native()):
        kind = f"{type(model.model).__name__} ({model.model.config.model_type})"
        raise ValueError(f"dtype 'int8' is for models that are compiled, {kind} is not here; use fp32, or bf16")
    chosen: Any = type(step)(model.model, eight_bits=True)  # type: ignore[call-arg]
    if step.encoder is None:
        chosen.encoder = None
    return chosen


def _takes_the_place(encoder: Any, model: TransformersModel, agreed: dict[Any, bool]) -> bool:
    """Whether a step's own encoder may stand in for the model's: nobody has changed that, and they agree."""
    if not every_module(model.model.get_encoder()).untouched:
        return False
    return _once(agreed, type(encoder), lambda: encoder_agrees(lambda ids: torch.from_numpy(encoder([ids])), model.model))


def _once(agreed: dict[Any, bool], what: Any, tried: Callable[[], bool]) -> bool:
    """The verdict on something, which is tried if there is none."""
    if what not in agreed:
        agreed[what] = tried()
    return agreed[what]


def warn_of_recomputing(model: TransformersModel) -> None:
    """Once a class of models."""
    kind = type(model.model).__name__
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(
            f"{kind} ({model.model.config.model_type}) cannot share keys and values between hypotheses as this engine does: "
            "falling back to a slower path that runs every hypothesis from its first token. Results are the same.",
            stacklevel=2,
        )


def candidates(model: TransformersModel) -> Iterator[type[DecoderStep]]:
    """Steps that may fit, fastest first."""
    if not changes_with_length(model):
        if Modules(_without_encoder(model.model)).untouched:
            fused: tuple[type[DecoderStep], ...] = (*native(), FusedBart, FusedLlama, FusedT5)
            yield from (each for each in fused if each.takes(model.model))
        windows = Windows(model.model)
        if windows.named and set(windows.kinds) != {FULL}:
            yield MaskedLayersStep
        if len(set(windows.kinds)) == 1:
            yield HookedStep
    yield RecomputeStep


def native() -> tuple[type[DecoderStep], ...]:
    """The compiled steps, where there are compiled kernels or numba is installed."""
    return (NativeBart,) if available() else ()


def changes_with_length(model: TransformersModel) -> bool:
    """Whether attention or positions work otherwise beyond some length, which short hypotheses cannot show.

    Windows do not count: the trial narrows them.
    """
    config, windows = model.model.config.get_text_config(decoder=True), Windows(model.model)
    if not windows.known() or turns_otherwise(config):
        return True
    window = getattr(config, "window_size", None)  # GPT-Neo's, of its own making
    return isinstance(window, int) and window < model.positions


def turns_otherwise(config: Any) -> bool:
    """Whether rotary positions depend on how long the input is."""
    rope = getattr(config, "rope_parameters", None) or {}
    return any(each.get("rope_type") in ("dynamic", "longrope") for each in (rope, *rope.values()) if isinstance(each, dict))


def _without_encoder(model: Any) -> Iterator[Any]:
    """The modules that a step takes part of: all but the encoder's own, which runs beside it."""
    encoders = set() if not model.config.is_encoder_decoder else set(model.get_encoder().modules())
    yield from (module for module in model.modules() if module not in encoders)
    yield from model.get_decoder().modules()  # some of them are the encoder's, too
