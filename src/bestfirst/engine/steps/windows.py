"""Windows: layers that do not read all ancestors, but the latest few (Mistral, Gemma) or those of the same chunk (Llama 4)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .tree import MaskedRows

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
SIZES = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}
"""Kinds of layers as configs name them, and what sets how far each reads."""


class Windows:
    """What each layer of a decoder reads. Sizes are looked up in the config whenever they are needed, as the model does it."""

    def __init__(self, model: Any) -> None:
        self.config = model.config.get_text_config(decoder=True)
        kinds = getattr(self.config, "layer_types", None)
        self.named = kinds is not None  # whether the config says it of each layer
        self.kinds: list[str] = list(kinds or [SLIDING if self.size(SLIDING) else FULL])

    def size(self, kind: str) -> int | None:
        """How far layers of this kind read; None: as far as there is something."""
        name = SIZES.get(kind)
        size = getattr(self.config, name, None) if name and getattr(self.config, "use_sliding_window", True) else None
        return size if isinstance(size, int) else None

    def known(self) -> bool:
        """Whether these are kinds of attention that read ancestors alone."""
        return not set(self.kinds) - {FULL, SLIDING, CHUNKED}

    def of_layer(self, index: int) -> str:
        return self.kinds[index] if self.named else self.kinds[0]

    def masks(self, rows: MaskedRows, needless: bool) -> dict[str, torch.Tensor | None]:
        """For each kind of layer (rows, 1, 1, context): 0 where an ancestor is read, very negative elsewhere.

        None where all are read, if a mask is `needless` then.
        """
        needless = needless and rows.even
        return {kind: None if needless and self._all(rows, kind) else self._mask(rows, kind) for kind in set(self.kinds)}

    def _all(self, rows: MaskedRows, kind: str) -> bool:
        """Whether a window leaves out nothing."""
        size = self.size(kind)
        return size is None or rows.paths.shape[1] <= size

    def _mask(self, rows: MaskedRows, kind: str) -> torch.Tensor:
        if self._all(rows, kind):
            return rows.mask[:, None, None]
        size: int = self.size(kind)  # type: ignore[assignment]
        standing, row = torch.arange(rows.paths.shape[1], device=rows.paths.device), rows.positions[:, None]
        unread = standing <= row - size if kind == SLIDING else standing < row // size * size
        return rows.mask.masked_fill(unread, torch.finfo(rows.dtype).min)[:, None, None]


@contextmanager
def narrow(model: Any, size: int) -> Iterator[None]:
    """Windows of so few tokens while this lasts, so that hypotheses of a few tokens show what a model does beyond them."""
    windows = Windows(model)
    before = {SIZES[kind]: windows.size(kind) for kind in windows.kinds if windows.size(kind) is not None}
    try:
        for name in before:
            setattr(windows.config, name, size)
        yield
    finally:
        for name, value in before.items():
            setattr(windows.config, name, value)
