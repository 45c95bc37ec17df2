"""Windows: layers that do not attend to all ancestors, but to the latest few (Mistral, Gemma) or to their own chunk (Llama 4)."""

from __future__ import annotations

from copy import copy, deepcopy
from typing import Any

import torch

from ...models.transformers import TransformersModel
from .tree import MaskedRows

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
SIZES = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}
"""Kinds of layers as configs name them, and the settings that hold their window or chunk size."""


class Windows:
    """Which ancestors each layer of a decoder attends to. Sizes are read from the config at every use, as the model does."""

    def __init__(self, model: Any) -> None:
        self.config = model.config.get_text_config(decoder=True)
        kinds = getattr(self.config, "layer_types", None)
        self.named = kinds is not None  # whether the config lists a kind for each layer
        self.kinds: list[str] = list(kinds or [SLIDING if self.size(SLIDING) else FULL])

    def size(self, kind: str) -> int | None:
        """The window or chunk size of this kind of layer; None: unlimited."""
        name = SIZES.get(kind)
        size = getattr(self.config, name, None) if name and getattr(self.config, "use_sliding_window", True) else None
        return size if isinstance(size, int) else None

    def known(self) -> bool:
        """Whether all layers are attention layers of known kinds."""
        return not set(self.kinds) - {FULL, SLIDING, CHUNKED}

    def of_layer(self, index: int) -> str:
        return self.kinds[index] if self.named else self.kinds[0]

    def masks(self, rows: MaskedRows, omit_masks: bool) -> dict[str, torch.Tensor | None]:
        """Each kind's mask (rows, 1, 1, context): 0 where a layer reads an ancestor. With `omit_masks`, None if it reads
        all, and all rows have equally many."""
        omit_masks = omit_masks and rows.same_length
        return {kind: None if omit_masks and self._all(rows, kind) else self._mask(rows, kind) for kind in set(self.kinds)}

    def _all(self, rows: MaskedRows, kind: str) -> bool:
        """Whether a window of this kind hides nothing."""
        size = self.size(kind)
        return size is None or rows.paths.shape[1] <= size

    def _mask(self, rows: MaskedRows, kind: str) -> torch.Tensor:
        if self._all(rows, kind):
            return rows.mask[:, None, None]
        size: int = self.size(kind)  # type: ignore[assignment]
        standing, row = torch.arange(rows.paths.shape[1], device=rows.paths.device), rows.positions[:, None]
        unread = standing <= row - size if kind == SLIDING else standing < row // size * size
        return rows.mask.masked_fill(unread, torch.finfo(rows.dtype).min)[:, None, None]


def narrowed(model: TransformersModel, size: int) -> TransformersModel:
    """The model with windows of `size` tokens, so that short hypotheses show what it does beyond its window: a copy with the same
    weights, since other threads may run the model meanwhile. Without windows, the model itself."""
    windows = Windows(model.model)
    names = {SIZES[kind] for kind in windows.kinds if windows.size(kind) is not None}
    if not names:
        return model
    other, weights = copy(model), (*model.model.parameters(), *model.model.buffers())
    other.model = deepcopy(model.model, {id(each): each for each in weights})
    config = Windows(other.model).config
    for name in names:
        setattr(config, name, size)
    return other
