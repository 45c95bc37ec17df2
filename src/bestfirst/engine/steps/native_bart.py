"""NativeBart: the compiled step (`native`) for a model of transformers that is on a CPU, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch

from ...models.transformers import Prompt, TransformersModel
from .bart import looks_like_bart, read_bart
from .decoder_step import DecoderStep, chunks
from .native.decoder import NativeDecoder
from .native.parts import KINDS
from .positions import PositionTable


class NativeBart(DecoderStep):
    """A step of a BART-like decoder: tree and sources are numpy's, only what it tells others is torch's."""

    name = "native"
    attends = True
    by_place = False

    @staticmethod
    def takes(model: Any) -> bool:
        known = getattr(model.config, "activation_function", None) in KINDS
        return known and looks_like_bart(model) and model.device.type == "cpu" and model.dtype == torch.float32

    @torch.inference_mode()
    def __init__(self, model: Any, eight_bits: bool = False) -> None:
        self.native = NativeDecoder(as_numpy(read_bart(model)), eight_bits)
        self.encoder = self.native.encoder

    def room(self, model: TransformersModel, tokens: int = 0) -> tuple[Any, Any]:
        return self.native.room(tokens)

    def take_in(self, model: TransformersModel, prompts: Sequence[Prompt], sources: Any) -> list[int]:
        encoded = [prompt.hidden for prompt in prompts]
        if any(hidden is None for hidden in encoded):
            if self.encoder is not None:
                return self.native.take_in([prompt.source for prompt in prompts], sources)
            batches = [model.encode(chunk) for chunk in chunks(prompts)]
            encoded = [each[:n] for hidden, lengths in batches for each, n in zip(hidden, lengths, strict=True)]
        return self.native.take_encoded(torch.cat(encoded).numpy(), [len(hidden) for hidden in encoded], sources)

    def step(self, rows: Any, tree: Any, sources: Any) -> torch.Tensor:
        self.native.watching = self.watching
        return torch.from_numpy(self.native.step(rows, tree, sources))

    @property
    def attention(self) -> Any:  # type: ignore[override]
        return self.native.attention

    def best(
        self, logits: torch.Tensor, width: int, banned: torch.Tensor | None, allowed: Sequence[np.ndarray | None] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if logits.stride(1 if self.native.eight_bits else 0) != 1:  # not as the step laid it out
            return super().best(logits, width, banned, allowed)
        values, tokens = self.native.best(logits.numpy(), width, None if banned is None else banned.numpy(), allowed)
        return torch.from_numpy(values), torch.from_numpy(tokens)


class NumpyPositions:
    """A table of positions as numpy's array."""

    def __init__(self, positions: PositionTable) -> None:
        self._positions = positions

    def up_to(self, n: int) -> Any:
        return self._positions.up_to(n).detach().numpy()


def as_numpy(weights: Any) -> Any:
    """Weights (`BartWeights`, or a part of them) whose tensors are seen as numpy's arrays."""
    if isinstance(weights, torch.Tensor):
        return weights.contiguous().numpy()
    if isinstance(weights, PositionTable):
        return NumpyPositions(weights)
    if isinstance(weights, tuple):
        return tuple(as_numpy(each) for each in weights)
    if is_dataclass(weights) and not isinstance(weights, type):
        return replace(weights, **{field.name: as_numpy(getattr(weights, field.name)) for field in fields(weights)})
    return weights
