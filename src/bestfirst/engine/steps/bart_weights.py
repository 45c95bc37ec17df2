"""BartWeights: what Marian, BART, mBART, Pegasus, M2M100, NLLB and Whisper's decoder are made of, said once.

Arrays as the model holds them, and the few things that they do not tell. Each way to compute a step takes them from here, and
adds its own layout (joined, transposed, tiled). Nothing here computes anything: the arrays may be of any library.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

NORM_FIRST = {"marian": False, "bart": False, "mbart": True, "pegasus": True, "m2m_100": True, "whisper": True}
"""The architectures, and where a layer normalises, before or after its attention: the one thing its weights do not tell."""


@dataclass(frozen=True)
class Affine:
    """x W^T + b: weight (outputs, inputs), bias (outputs,) or None."""

    weight: Any
    bias: Any


@dataclass(frozen=True)
class LayerNorm:
    """A layer normalisation: weight and bias (d,)."""

    weight: Any
    bias: Any
    eps: float


@dataclass(frozen=True)
class BartAttention:
    """Attention of `heads` heads, `size` numbers each; queries are multiplied with `scaling`."""

    query: Affine
    key: Affine
    value: Affine
    out: Affine
    heads: int
    size: int
    scaling: float


@dataclass(frozen=True)
class BartLayer:
    """A layer, each block with the norm before or after it; one of an encoder has no `cross`."""

    own: BartAttention
    own_norm: LayerNorm
    cross: BartAttention | None
    cross_norm: LayerNorm | None
    fc1: Affine
    fc2: Affine
    activation: Any  # a function of arrays
    norm: LayerNorm
    activation_name: str = ""  # as configs call it


@dataclass(frozen=True)
class BartSide:
    """An encoder or a decoder. What enters the first layer: embedding * embed_scale + position, normalised by `first_norm`."""

    layers: tuple[BartLayer, ...]
    norm_first: bool
    embedding: Any  # (vocabulary, d)
    embed_scale: float
    positions: Any  # its `up_to(n)`: the embeddings of n positions or more, (positions, d), or of all there are
    first_norm: LayerNorm | None
    last_norm: LayerNorm | None

    @property
    def width(self) -> int:
        """d: numbers in a row."""
        return int(self.embedding.shape[1])

    def norms(self) -> Iterator[LayerNorm]:
        """Those of the layers and the last, in the order in which a row comes to them."""
        for layer in self.layers:
            yield from (norm for norm in (layer.own_norm, layer.cross_norm, layer.norm) if norm is not None)
        if self.last_norm is not None:
            yield self.last_norm


@dataclass(frozen=True)
class BartWeights:
    """A whole model. `encoder`: None where it is not one of token ids (Whisper's hears), or not built as these models' are."""

    encoder: BartSide | None
    decoder: BartSide
    head: Affine
