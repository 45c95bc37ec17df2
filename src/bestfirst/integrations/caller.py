"""Caller: arguments of `generate` that it acts on itself and does not hand to a callable."""

from __future__ import annotations

import inspect
import sys
from typing import Any, NamedTuple

import torch
from transformers import GenerationMixin

from ..drafting import Drafter, SourceLookup
from ..engine.smaller_model import SmallerModel
from ..models.transformers import TransformersModel

GENERATE = inspect.unwrap(GenerationMixin.generate).__code__


class KeptBack(NamedTuple):
    """What `generate` was given; None where nobody gave it."""

    streamer: Any = None
    synced_gpus: bool | None = None
    assistant_model: Any = None

    def drafter(self, config: Any) -> Drafter | None:
        """Who guesses ahead: `assistant_model`, or `prompt_lookup_num_tokens`; None where neither is asked for."""
        if self.assistant_model is None:
            most = getattr(config, "prompt_lookup_num_tokens", None)
            return SourceLookup(most) if most else None
        if not hasattr(self.assistant_model, "get_output_embeddings"):
            raise ValueError(f"assistant_model must be a model of transformers, got {type(self.assistant_model).__name__}")
        return SmallerModel(TransformersModel(self.assistant_model))


def kept_back() -> KeptBack:
    """Read from the frame of the `generate` that called us. Else a streamer's consumer would wait for its end for ever."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not GENERATE:
        frame = frame.f_back  # type: ignore[assignment]
    return KeptBack() if frame is None else KeptBack(*map(frame.f_locals.get, KeptBack._fields))


def stream(streamer: Any, output: Any, n: int, prompt_length: int) -> None:
    """Each input's best of `n` outputs, a token at a time as greedy search would have given it: none was final before the end."""
    sequences: torch.Tensor = output if isinstance(output, torch.Tensor) else output.sequences
    for tokens in sequences[::n, prompt_length:].cpu().unbind(1):
        streamer.put(tokens)
    streamer.end()
