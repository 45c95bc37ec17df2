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


# -- read from Hugging Face's modules ------------------------------------------------------------------------------------


def looks_like_bart(model: Any) -> bool:
    """Whether this looks like one of these models."""
    return model.config.model_type in NORM_FIRST and hasattr(model.get_decoder(), "layers")


def read_bart(model: Any) -> BartWeights:
    """The weights of a model that looks like one, where they lie."""
    try:
        encoder = _side(model.get_encoder())
    except AttributeError:
        encoder = None
    head, bias = _affine(model.get_output_embeddings()), getattr(model, "final_logits_bias", None)
    return BartWeights(encoder, _side(model.get_decoder()), head if bias is None else Affine(head.weight, bias[0]))


def _side(module: Any) -> BartSide:
    from .positions import PositionTable

    return BartSide(
        layers=tuple(_layer(layer) for layer in module.layers),
        norm_first=NORM_FIRST[module.config.model_type],
        embedding=module.embed_tokens.weight.detach(),
        embed_scale=_embed_scale(module),
        positions=PositionTable(module),
        first_norm=_norm(getattr(module, "layernorm_embedding", None)),
        last_norm=_norm(getattr(module, "layer_norm", None)),
    )


def _layer(module: Any) -> BartLayer:
    cross = getattr(module, "encoder_attn", None)
    own_norm, norm = _norm(module.self_attn_layer_norm), _norm(module.final_layer_norm)
    if own_norm is None or norm is None:
        raise AttributeError(f"{type(module).__name__} lacks a norm")
    return BartLayer(
        own=_attention(module.self_attn),
        own_norm=own_norm,
        cross=None if cross is None else _attention(cross),
        cross_norm=None if cross is None else _norm(module.encoder_attn_layer_norm),
        fc1=_affine(module.fc1),
        fc2=_affine(module.fc2),
        activation=module.activation_fn,
        norm=norm,
    )


def _attention(module: Any) -> BartAttention:
    query, key, value, out = (_affine(part) for part in (module.q_proj, module.k_proj, module.v_proj, module.out_proj))
    return BartAttention(query, key, value, out, module.num_heads, module.head_dim, float(module.scaling))


def _affine(module: Any) -> Affine:
    return Affine(module.weight.detach(), None if module.bias is None else module.bias.detach())


def _norm(module: Any) -> LayerNorm | None:
    return None if module is None else LayerNorm(module.weight.detach(), module.bias.detach(), float(module.eps))


def _embed_scale(module: Any) -> float:
    """An embedding module's own scale, or that of the side; Whisper has one that it does not use."""
    if module.config.model_type == "whisper":
        return 1.0
    return float(getattr(module.embed_tokens, "embed_scale", getattr(module, "embed_scale", 1.0)))
