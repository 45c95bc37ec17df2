"""DeferredEncoderOutput: keeps `generate` from running its encoder where the engine encodes the inputs itself, faster.

Before it calls a custom function, `generate` encodes the padded batch, repeats the encoder output for every row of a beam, and
makes a cache: a third of the whole time. But it inspects the function's signature first; at that moment `WithDeferredEncoder`
puts placeholders into its `model_kwargs`. If `generate`'s own loop has to run after all, `with_encoder_output` runs the encoder.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import update_wrapper
from typing import Any

import numpy as np
import torch
from transformers import GenerationMixin

from ..engine.choice import has_own_encoder
from ..models.torch_modules import Modules, every_module

GENERATE = inspect.unwrap(GenerationMixin.generate).__code__
IDLE = {"attention_mask", "decoder_attention_mask", "decoder_input_ids", "labels", "use_cache"}
"""Model arguments that change nothing about what the encoder reads: token ids and a mask."""
ENCODE = ("_prepare_text_encoder_decoder_kwargs_for_generation", "_prepare_encoder_decoder_kwargs_for_generation")
"""The method with which `generate` runs the encoder, by version of transformers; without it nothing is deferred."""
DEPTH = 8  # most frames between `generate` and the property that it reads through `inspect`


class DeferredEncoderOutput(dict[str, Any]):
    """A placeholder for the encoder output: an empty dictionary, in which `generate` finds nothing to repeat for its beams."""

    def __init__(self, ids: np.ndarray, attended: np.ndarray, model: Any, modules: Modules, *call: Any) -> None:
        """`ids` and `attended` (batch, length) are token ids and attention mask; `call`: the arguments of the ENCODE method."""
        self.ids, self.attended, self.model, self.modules, self.call = ids, attended, model, modules, call


class NoCache:
    """A placeholder for the KV cache, so that `generate` does not allocate one."""

    def get_seq_length(self) -> int:
        return 0


def with_encoder_output(arguments: dict[str, Any], rows: int) -> dict[str, Any]:
    """The model's arguments as `generate` would have prepared them for this many rows (batch * beams): if the encoder was
    deferred, it runs now, and its output and the cache replace the placeholders in `arguments`."""
    if not isinstance(deferred := arguments.get("encoder_outputs"), DeferredEncoderOutput):
        return arguments
    encode = next(getattr(deferred.model, name) for name in ENCODE if hasattr(deferred.model, name))
    output = arguments["encoder_outputs"] = encode(*deferred.call)["encoder_outputs"]
    for name, value in output.items():
        if isinstance(value, torch.Tensor):
            output[name] = value.repeat_interleave(rows // len(value), 0)
    if isinstance(arguments.get("past_key_values"), NoCache):
        del arguments["past_key_values"]
        config = deferred.call[-1]
        deferred.model._prepare_cache_for_generation(config, arguments, None, rows, config.max_length - 1)
    return arguments


class WithDeferredEncoder:
    """A callable for `custom_generate` that defers the encoder (`defer_encoder`) when `generate` inspects its signature."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self._function, self._signature = function, inspect.signature(function)
        del vars(self)["__wrapped__"]  # else `inspect` would follow it and never read `__signature__`

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._function(*arguments, **named)

    def __reduce__(self) -> str:
        return self.__name__  # type: ignore[attr-defined]

    @property
    def __signature__(self) -> inspect.Signature:
        frame: Any = sys._getframe(1)
        for _ in range(DEPTH):
            if frame is not None and frame.f_code is GENERATE:
                with suppress(AttributeError):  # of an unusual model: `inspect` would mistake it for a missing signature
                    defer_encoder(frame.f_locals)
                break
            frame = frame and frame.f_back
        return self._signature


def defer_encoder(variables: dict[str, Any]) -> None:
    """Put placeholders for encoder output and cache into the `model_kwargs` among `generate`'s local variables, if possible.

    `generate` inspects the signature twice; the first time its inputs are not prepared yet, and nothing is done."""
    names = ("self", "inputs_tensor", "model_kwargs", "model_input_name", "generation_config")
    values: list[Any] = [*map(variables.get, names)]
    model, inputs, arguments, name, config = values
    if any(each is None for each in values) or not can_defer(model, inputs, arguments, config):
        return
    if not has_own_encoder(model, modules := every_module(model)):
        return
    if (tokens := host_tokens(inputs, arguments.get("attention_mask"), model.config.pad_token_id)) is not None:
        arguments["encoder_outputs"] = DeferredEncoderOutput(*tokens, model, modules, inputs, {**arguments}, name, config)
        arguments["past_key_values"] = NoCache()


def can_defer(model: Any, inputs: torch.Tensor, arguments: dict[str, Any], config: Any) -> bool:
    """Whether the encoder reads token ids alone, is not in training mode, and its states are not part of the output. Where a kind
    of cache is asked for, `generate` makes it itself, a static one by the encoder output's length."""
    others = any(value is not None for name, value in arguments.items() if name not in IDLE)
    if others or config.cache_implementation is not None:
        return False
    if not model.config.is_encoder_decoder or not any(hasattr(model, name) for name in ENCODE):
        return False
    if inputs.dim() != 2 or inputs.is_floating_point() or config.output_attentions or config.output_hidden_states:
        return False
    return not model.get_encoder().training


def host_tokens(inputs: torch.Tensor, mask: torch.Tensor | None, pad: int | None) -> tuple[np.ndarray, np.ndarray] | None:
    """The inputs and their mask (batch, length) on the host, in one transfer. None unless all padding is on the right and no
    attended token is the padding token."""
    if mask is not None and mask.shape != inputs.shape:
        return None
    if mask is None:
        ids, given = inputs.cpu().numpy(), np.ones(inputs.shape, np.int64)
    else:
        ids, given = torch.stack((inputs, mask.to(inputs))).cpu().numpy()
    attended = given == 1
    if ids.shape[1] and attended.all():
        return None if (ids == pad).any() else (ids, attended)
    lengths = attended.sum(1)
    right_padded = bool(lengths.all()) and np.array_equal(given, np.arange(ids.shape[1]) < lengths[:, None])
    return (ids, attended) if right_padded and not bool(((ids == pad) & attended).any()) else None
