"""Unencoded: inputs that `generate` has not run its encoder on, because the engine has a faster one.

Before it calls us `generate` encodes the padded batch and copies what comes of that for every row of a beam, which can take a
third of the whole time. But first it reads our signature, and then an encoder that the engine has compiled can still be put off.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import update_wrapper
from typing import Any

import torch
from transformers import GenerationMixin

from ..engine.steps.choose import untouched
from ..engine.steps.native.libraries import available
from ..engine.steps.native_bart import NativeBart

GENERATE = inspect.unwrap(GenerationMixin.generate).__code__
IDLE = {"attention_mask", "decoder_attention_mask", "decoder_input_ids", "labels", "use_cache"}
"""Arguments of a model beside which its encoder reads token ids and nothing else."""
ENCODE = (
    "_prepare_text_encoder_decoder_kwargs_for_generation"  # what `generate` calls; where it has no such method nothing is put off
)
DEPTH = 8  # calls between `generate`, which asks for a signature, and the object that is asked


class Unencoded(dict[str, Any]):
    """In place of the encoder's output: to `generate` a dictionary in which there is nothing to copy."""

    def __init__(self, *call: Any) -> None:
        """`call`: what ENCODE takes, of a model."""
        self._model, *self._call = call

    def encoded(self, rows: int) -> Any:
        """What `generate` would have put here, with so many rows."""
        output = getattr(self._model, ENCODE)(*self._call)["encoder_outputs"]
        for name, value in output.items():
            if isinstance(value, torch.Tensor):
                output[name] = value.repeat_interleave(rows // len(value), 0)
        return output


def encoded(arguments: dict[str, Any], rows: int) -> dict[str, Any]:
    """A model's arguments with the encoder's output among them."""
    if isinstance(arguments.get("encoder_outputs"), Unencoded):
        arguments["encoder_outputs"] = arguments["encoder_outputs"].encoded(rows)
    return arguments


class WithoutEncoder:
    """A function for `custom_generate`; `generate` does not run its encoder for it where that `can_wait`."""

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
            frame = frame and frame.f_back
        return self._signature


def put_off(of_generate: dict[str, Any]) -> None:
    """Put the encoder off, given the variables of `generate`. It asks twice, and knows its inputs the second time."""
    model, inputs, arguments, name, config = map(
        of_generate.get, ("self", "inputs_tensor", "model_kwargs", "model_input_name", "generation_config")
    )
    if isinstance(arguments, dict) and isinstance(inputs, torch.Tensor) and can_wait(model, inputs, arguments, config):
        arguments["encoder_outputs"] = Unencoded(model, inputs, {**arguments}, name, config)


def can_wait(model: Any, inputs: torch.Tensor, arguments: dict[str, Any], config: Any) -> bool:
    """Whether the encoder reads token ids alone, from the first position on, none of them padding, and one can be compiled."""
    others = any(value is not None for name, value in arguments.items() if name not in IDLE)
    compiled = model.config.is_encoder_decoder and available() and NativeBart.takes(model)
    if others or not compiled or not hasattr(model, ENCODE):
        return False
    if inputs.dim() != 2 or inputs.is_floating_point() or config.output_attentions or config.output_hidden_states:
        return False
    mask = arguments.get("attention_mask")
    mask = torch.ones_like(inputs) if mask is None else mask
    if mask.shape != inputs.shape or not bool((mask[:, 0] == 1).all()) or bool((mask[:, 1:] > mask[:, :-1]).any()):
        return False
    encoder = model.get_encoder()
    return not bool(((inputs == model.config.pad_token_id) & (mask != 0)).any()) and not encoder.training and untouched(encoder)
