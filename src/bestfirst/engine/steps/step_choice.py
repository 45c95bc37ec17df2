"""Step choice: which step runs a model: a compiled or fused one, the model's own modules on the tree, or recomputation.

No candidate is trusted by name: the first time a model is decoded with, it is checked against the model itself (`step_check`).
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
from .step_check import agreeing_step, agrees_without_masks, encoder_agrees
from .t5 import FusedT5
from .windows import FULL, Windows

_warned: set[str] = set()


def step_for(model: TransformersModel) -> DecoderStep:
    """The fastest step that agrees with the model. Returns the last decode's step while the model is unchanged."""
    shared = record_of(model)
    kept = shared.step or model.step
    if kept is not None and kept[0].holds(model.modules):
        return kept[1]
    fingerprint, outline = Fingerprint(model.modules), outline_of(model.modules)
    if shared.tried != outline:
        shared.agreed.clear()  # the model was rebuilt: verdicts on its former modules do not count
        shared.ratios.clear()
        shared.unshared = None
        shared.tried = outline
    step = choose(model, shared.agreed)
    shared.step = model.step = None
    (model if step.holds_model else shared).step = (fingerprint, step)
    return step


def outline_of(modules: Modules) -> list[Any]:
    """The ids of a model's modules and their parts, which keep none of them alive, and its settings."""
    parts = [(kind, *map(id, own)) for kind, *own in modules.parts]
    return [*map(id, modules), *parts, modules.settings, len(modules.weights)]


class Fingerprint:
    """Tells whether a model is still the same: its modules and hooks, where its weights lie, their version counters, and some of
    the numbers, as averaged weights and adapters are often written through `.data`, which torch does not count.

    `checksum`, if set, is a checksum of all numbers that a step has copies of.
    """

    checksum: Any = None  # a `Checksum`, made on demand (`checksum.make_checksum`)

    def __init__(self, modules: Modules) -> None:
        self._parts, self._settings = modules.parts, modules.settings
        self._versions = self._read_versions(modules)
        self._sampled: dict[Any, list[torch.Tensor]] = {}
        for p in list(dict.fromkeys(modules.weights))[::5]:
            if p.numel():
                self._sampled.setdefault((p.device, p.dtype), []).append(p.detach()[(0,) * p.dim()])
        self._numbers = self._read_numbers()

    def holds(self, modules: Modules) -> bool:
        """Whether the model, which now has these modules, is still the same."""
        return self._same_parts(modules) and self._read_numbers() == self._numbers

    def seems_to_hold(self, modules: Modules) -> bool:
        """As `holds`, without the numbers if there is a checksum: it begins to read here, and `checksum.holds()` must confirm."""
        if self.checksum is None:
            return self.holds(modules)
        self.checksum.begin()
        return self._same_parts(modules)

    def _same_parts(self, modules: Modules) -> bool:
        same = modules.parts == self._parts and modules.settings == self._settings
        return same and self._read_versions(modules) == self._versions

    def _read_versions(self, modules: Modules) -> list[tuple[int, int]]:
        return [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in (*modules.weights, *modules.buffers)]

    def _read_numbers(self) -> list[list[float]]:
        return [torch.stack(group).tolist() for group in self._sampled.values()]


def choose(model: TransformersModel, agreed: dict[Any, bool]) -> DecoderStep:
    """The first candidate that agrees with the model. `agreed` keeps the verdicts: each candidate is checked once per model."""
    if model.eight_bits:
        return choose_int8(model, agreed)
    for candidate in candidates(model):
        if candidate not in agreed:
            step = agreeing_step(candidate, model)
            agreed[candidate] = step is not None
        else:
            step = candidate(model.model) if agreed[candidate] else None
        if step is not None:
            if step.encoder is not None and not _can_replace_encoder(step.encoder, model, agreed):
                step.encoder = None
            if isinstance(step, HookedStep) and step.repeats_shared_keys:
                step.omit_masks = _verdict(agreed, (type(step), "without masks"), partial(agrees_without_masks, step, model))
            return step
    raise ValueError(
        f"{type(model.model).__name__} ({model.model.config.model_type}) cannot be decoded with by this engine: "
        "none of its ways to run a batch of hypotheses gives the scores that the model itself gives them"
    )


def choose_int8(model: TransformersModel, agreed: dict[Any, bool]) -> DecoderStep:
    """The compiled step in int8, where it agrees with the model in float32. Raises ValueError for models without one."""
    exact = copy(model)
    exact.eight_bits = False
    step = choose(exact, agreed)
    if not isinstance(step, native_steps()):
        kind = f"{type(model.model).__name__} ({model.model.config.model_type})"
        compiled = "Marian, BART, mBART, Pegasus, M2M100 and NLLB"
        raise ValueError(f"dtype 'int8' is for models that run compiled ({compiled}), not for {kind}; use fp32 or bf16")
    chosen: Any = type(step)(model.model, eight_bits=True)  # type: ignore[call-arg]
    if step.encoder is None:
        chosen.encoder = None
    return chosen


def _can_replace_encoder(encoder: Any, model: TransformersModel, agreed: dict[Any, bool]) -> bool:
    """Whether a step's own encoder may replace the model's: the model's has no hooks or changed methods, and they agree."""
    if not every_module(model.model.get_encoder()).untouched:
        return False
    return _verdict(agreed, type(encoder), lambda: encoder_agrees(lambda ids: torch.from_numpy(encoder([ids])), model.model))


def _verdict(agreed: dict[Any, bool], key: Any, check: Callable[[], bool]) -> bool:
    """The kept verdict, from a check that runs once."""
    if key not in agreed:
        agreed[key] = check()
    return agreed[key]


def warn_of_recomputing(model: TransformersModel) -> None:
    """Warn that this model's hypotheses are recomputed from scratch: once per model class."""
    kind = type(model.model).__name__
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(
            f"{kind} ({model.model.config.model_type}) cannot share keys and values between hypotheses as this engine does: "
            "falling back to a slower path that runs every hypothesis from its first token. Results are the same.",
            stacklevel=2,
        )


def candidates(model: TransformersModel) -> Iterator[type[DecoderStep]]:
    """Step classes that may fit the model, fastest first."""
    if not changes_with_length(model):
        if Modules(_without_encoder(model.model)).untouched:
            fused: tuple[type[DecoderStep], ...] = (*native_steps(), FusedBart, FusedLlama, FusedT5)
            yield from (each for each in fused if each.takes(model.model))
        windows = Windows(model.model)
        if windows.named and set(windows.kinds) != {FULL}:
            yield MaskedLayersStep
        if len(set(windows.kinds)) == 1:
            yield HookedStep
    yield RecomputeStep


def native_steps() -> tuple[type[DecoderStep], ...]:
    """The compiled step classes: none where there are neither shipped kernels nor numba."""
    return (NativeBart,) if available() else ()


def changes_with_length(model: TransformersModel) -> bool:
    """Whether attention or positions change beyond some length, which short hypotheses cannot show. Windows do not count: the
    check narrows them."""
    config, windows = model.model.config.get_text_config(decoder=True), Windows(model.model)
    if not windows.known() or rope_changes_with_length(config):
        return True
    window = getattr(config, "window_size", None)  # GPT-Neo's own local attention
    return isinstance(window, int) and window < model.positions


def rope_changes_with_length(config: Any) -> bool:
    """Whether rotary positions depend on the input's length."""
    rope = getattr(config, "rope_parameters", None) or {}
    return any(each.get("rope_type") in ("dynamic", "longrope") for each in (rope, *rope.values()) if isinstance(each, dict))


def _without_encoder(model: Any) -> Iterator[Any]:
    """The modules that a step replaces or uses: all but the encoder's own, which runs separately."""
    encoders = set() if not model.config.is_encoder_decoder else set(model.get_encoder().modules())
    yield from (module for module in model.modules() if module not in encoders)
    yield from model.get_decoder().modules()  # some belong to the encoder, too, as shared embeddings do
