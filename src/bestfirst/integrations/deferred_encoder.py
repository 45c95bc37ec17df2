"""DeferredEncoderOutput: inputs that `generate` has not run its encoder on, because the engine has a faster one.

Before it calls us `generate` encodes the padded batch, copies what comes of that for every row of a beam, and makes a cache: a
third of the whole time. But first it reads our signature, and then all of that can still be put off.
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
"""Arguments of a model beside which its encoder reads token ids and nothing else."""
ENCODE = ("_prepare_text_encoder_decoder_kwargs_for_generation", "_prepare_encoder_decoder_kwargs_for_generation")
"""What `generate` calls, by version of transformers; where it has no such method nothing is put off."""
DEPTH = 8  # calls between `generate`, which asks for a signature, and the object that is asked


class DeferredEncoderOutput(dict[str, Any]):
    """In place of the encoder's output: to `generate` a dictionary in which there is nothing to copy."""

    def __init__(self, ids: np.ndarray, attended: np.ndarray, model: Any, modules: Modules, *call: Any) -> None:
        """`ids`, `attended` (batch, length): the inputs, and where they are no padding. `call`: what ENCODE takes of a model."""
        self.ids, self.attended, self.model, self.modules, self.call = ids, attended, model, modules, call


class NoCache:
    """In place of a cache, which `generate` makes where it is given none."""

    def get_seq_length(self) -> int:
        return 0


def encoded(arguments: dict[str, Any], rows: int) -> dict[str, Any]:
    """A model's arguments, with what `generate` would have put among them for so many rows where it was put off."""
    if not isinstance(late := arguments.get("encoder_outputs"), DeferredEncoderOutput):
        return arguments
    encode = next(getattr(late.model, name) for name in ENCODE if hasattr(late.model, name))
    output = arguments["encoder_outputs"] = encode(*late.call)["encoder_outputs"]
    for name, value in output.items():
        if isinstance(value, torch.Tensor):
            output[name] = value.repeat_interleave(rows // len(value), 0)
    if isinstance(arguments.get("past_key_values"), NoCache):
        del arguments["past_key_values"]
        config = late.call[-1]
        late.model._prepare_cache_for_generation(config, arguments, None, rows, config.max_length - 1)
    return arguments


class WithDeferredEncoder:
    """A function for `custom_generate`; `generate` does not run its encoder for it where that can wait (`put_off`)."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self._function, self._signature = function, inspect.signature(function)
        del vars(self)["__wrapped__"]  # else its signature is read

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._function(*arguments, **named)

    def __reduce__(self) -> str:
        return self.__name__  # type: ignore[attr-defined]

    @property
    def __signature__(self) -> inspect.Signature:
        frame: Any = sys._getframe(1)
        for _ in range(DEPTH):
            if frame is not None and frame.f_code is GENERATE:
                with suppress(AttributeError):  # of a model unlike any: `inspect` would take it for a missing signature
                    put_off(frame.f_locals)
                break
            frame = frame and frame.f_back
        return self._signature


def put_off(of_generate: dict[str, Any]) -> None:
    """Put the encoder off, given the variables of `generate`. It asks twice, and knows its inputs the second time."""
    names = ("self", "inputs_tensor", "model_kwargs", "model_input_name", "generation_config")
    found: list[Any] = [*map(of_generate.get, names)]
    model, inputs, arguments, name, config = found
    if any(each is None for each in found) or not can_wait(model, inputs, arguments, config):
        return
    if not has_own_encoder(model, modules := every_module(model)):
        return
    if (read := plain_tokens(inputs, arguments.get("attention_mask"), model.config.pad_token_id)) is not None:
        arguments["encoder_outputs"] = DeferredEncoderOutput(*read, model, modules, inputs, {**arguments}, name, config)
        if config.cache_implementation is None:
            arguments["past_key_values"] = NoCache()


def can_wait(model: Any, inputs: torch.Tensor, arguments: dict[str, Any], config: Any) -> bool:
    """Whether the encoder reads token ids alone, and nobody sees what it makes of them."""
    others = any(value is not None for name, value in arguments.items() if name not in IDLE)
    if others or not model.config.is_encoder_decoder or not any(hasattr(model, name) for name in ENCODE):
        return False
    if inputs.dim() != 2 or inputs.is_floating_point() or config.output_attentions or config.output_hidden_states:
        return False
    return not model.get_encoder().training


def plain_tokens(inputs: torch.Tensor, mask: torch.Tensor | None, pad: int | None) -> tuple[np.ndarray, np.ndarray] | None:
    """The inputs (batch, length) on the host, and which of them are attended to: all from the first position on, none of them
    padding. None where that is not so. A device is waited for once."""
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
    from_the_first = bool(lengths.all()) and np.array_equal(given, np.arange(ids.shape[1]) < lengths[:, None])
    return (ids, attended) if from_the_first and not bool(((ids == pad) & attended).any()) else None
