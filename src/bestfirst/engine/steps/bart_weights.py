"""BartWeights: the weights of Marian, BART, mBART, Pegasus, M2M100, NLLB and of Whisper's decoder, independent of any library.

Holds the arrays as the model stores them, and the few settings that arrays do not tell. Each implementation of a step takes its
weights from here and adds a layout of its own (fused, transposed, tiled). Nothing here computes: arrays may be torch or numpy.
`read_folder` reads them from a folder's config and safetensors files without torch and transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from ...models.folder import FilesDiffer, ModelNotFound, NeedsTransformers, WeightFiles
from .step_rows import Positions

NORM_FIRST = {"marian": False, "bart": False, "mbart": True, "pegasus": True, "m2m_100": True, "whisper": True}
"""Supported architectures, and whether their layers are pre-norm (True) or post-norm: the one property weights do not show."""


@dataclass(frozen=True)
class Affine:
    """x W^T + b: weight (outputs, inputs); bias (outputs,) or None."""

    weight: Any
    bias: Any


@dataclass(frozen=True)
class LayerNorm:
    """A layer normalisation: weight and bias are (d,)."""

    weight: Any
    bias: Any
    eps: float


@dataclass(frozen=True)
class BartAttention:
    """The projections of multi-head attention: `heads` heads of `size` numbers each; queries are multiplied by `scaling`."""

    query: Affine
    key: Affine
    value: Affine
    out: Affine
    heads: int
    size: int
    scaling: float


@dataclass(frozen=True)
class BartLayer:
    """One encoder or decoder layer. Each block has a norm, before or after it (`NORM_FIRST`). Encoder layers have no `cross`."""

    own: BartAttention
    own_norm: LayerNorm
    cross: BartAttention | None
    cross_norm: LayerNorm | None
    fc1: Affine
    fc2: Affine
    activation: Any  # a function of arrays; None when read from files
    norm: LayerNorm
    activation_name: str = ""  # `activation_function` of the config


@dataclass(frozen=True)
class BartSide:
    """An encoder or a decoder. The first layer's input is embedding * embed_scale + position, through `first_norm` if any."""

    layers: tuple[BartLayer, ...]
    norm_first: bool
    embedding: Any  # (vocabulary, d)
    embed_scale: float
    positions: Any  # `Positions`: `up_to(n)` has the embeddings of at least n positions, (positions, d), or of all there are
    first_norm: LayerNorm | None
    last_norm: LayerNorm | None

    @property
    def width(self) -> int:
        """d, the size of the residual stream."""
        return int(self.embedding.shape[1])

    def norms(self) -> Iterator[LayerNorm]:
        """The norms of all layers and the last norm, in the order in which a forward pass applies them."""
        for layer in self.layers:
            yield from (norm for norm in (layer.own_norm, layer.cross_norm, layer.norm) if norm is not None)
        if self.last_norm is not None:
            yield self.last_norm


@dataclass(frozen=True)
class BartWeights:
    """A whole model. `encoder` is None if it takes no token ids (Whisper: audio), or is not built like these models' encoders."""

    encoder: BartSide | None
    decoder: BartSide
    head: Affine


class JoinedLayer:
    """A layer whose projections are made by `product(*parts)`: one for all `Affine`s that take the same input (`Linear`)."""

    def __init__(self, layer: BartLayer, product: Callable[..., Any]) -> None:
        own, cross = layer.own, layer.cross
        self.heads, self.size, self.scaling = own.heads, own.size, own.scaling
        self.qkv, self.own_out = product(own.query, own.key, own.value), product(own.out)
        if cross is not None:
            self.cross_q, self.cross_out = product(cross.query), product(cross.out)
            self.cross_kv = product(cross.key, cross.value)
        self.fc1, self.fc2 = product(layer.fc1), product(layer.fc2)
        self.activation, self.activation_name = layer.activation, layer.activation_name
        self.own_norm, self.cross_norm, self.norm = layer.own_norm, layer.cross_norm, layer.norm


# -- from a folder's files -------------------------------------------------------------------------------------------------

EPSILON = 1e-5  # of every norm: these models' configs have no setting for it
LEARNED, OFFSET = ("bart", "mbart"), 2  # position embeddings are learned; the first OFFSET rows of the table are unused
NORMED = ("bart", "mbart")  # embeddings are normalised before the first layer


def read_folder(config: Mapping[str, Any], tensors: WeightFiles) -> BartWeights:
    """The weights of a Marian, BART, mBART, Pegasus or M2M100 model. Raises ModelNotFound or FilesDiffer if config and tensors
    disagree, NeedsTransformers for a variant that is not known here.
    """
    name = "model.shared.weight"
    shared = tensors[name] if name in tensors else None  # noqa: SIM401  `WeightFiles` is not a mapping
    reader = FolderReader(config, tensors)
    encoder, decoder = reader.side("encoder", shared), reader.side("decoder", shared)
    bias = tensors["final_logits_bias"].reshape(-1) if "final_logits_bias" in tensors else None
    return BartWeights(encoder, decoder, Affine(reader.head(decoder.embedding), bias))


class FolderReader:
    """Reads one model's tensors, checking every shape against the config."""

    def __init__(self, config: Mapping[str, Any], tensors: WeightFiles) -> None:
        self.config = config
        self.kind = config["model_type"]
        self.tensors = tensors
        self.width = int(config["d_model"])
        self.positions = int(config["max_position_embeddings"])

    def side(self, name: str, shared: Any) -> BartSide:
        """The encoder or the decoder (`name`)."""
        root = f"model.{name}"
        embedding = self._embedding(root, shared)
        heads, layers = int(self.config[f"{name}_attention_heads"]), int(self.config[f"{name}_layers"])
        stored = len({each.split(".")[3] for each in self.tensors if each.startswith(f"{root}.layers.")})
        if layers != stored or layers < 1:
            raise FilesDiffer(f"its weights and config.json differ: there are {stored} layers in the {name}, not {layers}")
        if heads < 1:
            raise FilesDiffer(f"{name}_attention_heads in config.json must be at least 1, got {heads}")
        return BartSide(
            layers=tuple(self._layer(f"{root}.layers.{i}", heads, cross=name == "decoder") for i in range(layers)),
            norm_first=NORM_FIRST[self.kind],
            embedding=embedding,
            embed_scale=float(embedding.shape[1]) ** 0.5 if self.config["scale_embedding"] else 1.0,
            positions=self._positions(f"{root}.embed_positions.weight"),
            first_norm=self._norm(f"{root}.layernorm_embedding") if self.kind in NORMED else None,
            last_norm=self._norm(f"{root}.layer_norm") if NORM_FIRST[self.kind] else None,
        )

    def _embedding(self, root: str, shared: Any) -> Any:
        own = f"{root}.embed_tokens.weight"
        if own not in self.tensors:
            self._check("model.shared.weight", len(shared) if shared is not None else 0, self.width)
            return shared
        found = self._tensor(own, self.tensors.shape(own)[0], self.width)
        tied = self.config["tie_word_embeddings"] and self.config.get("share_encoder_decoder_embeddings", True)
        if tied and shared is not None and not np.array_equal(found, shared):
            raise NeedsTransformers("its embeddings are stored twice, and differ")
        return found

    def head(self, embedding: Any) -> Any:
        """The output projection's weights: the decoder's embeddings if tied, else its own."""
        name = "lm_head.weight"
        if not self.config["tie_word_embeddings"]:
            return self._tensor(name, len(embedding), self.width)
        if name in self.tensors and not np.array_equal(self.tensors[name], embedding):
            raise NeedsTransformers("its last weights are stored twice, and differ")
        return embedding

    def _layer(self, root: str, heads: int, cross: bool) -> BartLayer:
        d = self.width
        inner = self.tensors.shape(f"{root}.fc1.bias")[0]
        return BartLayer(
            own=self._attention(f"{root}.self_attn", heads),
            own_norm=self._norm(f"{root}.self_attn_layer_norm"),
            cross=self._attention(f"{root}.encoder_attn", heads) if cross else None,
            cross_norm=self._norm(f"{root}.encoder_attn_layer_norm") if cross else None,
            fc1=self._affine(f"{root}.fc1", inner, d),
            fc2=self._affine(f"{root}.fc2", d, inner),
            activation=None,
            norm=self._norm(f"{root}.final_layer_norm"),
            activation_name=str(self.config["activation_function"]),
        )

    def _attention(self, root: str, heads: int) -> BartAttention:
        query, key, value, out = (self._affine(f"{root}.{part}_proj", self.width, self.width) for part in ("q", "k", "v", "out"))
        size, rest = divmod(len(query.weight), heads)
        if rest:
            raise NeedsTransformers(f"its {len(query.weight)} numbers do not divide into {heads} heads")
        return BartAttention(query, key, value, out, heads, size, size**-0.5)

    def _affine(self, name: str, outputs: int, inputs: int) -> Affine:
        return Affine(self._tensor(f"{name}.weight", outputs, inputs), self._tensor(f"{name}.bias", outputs))

    def _norm(self, name: str) -> LayerNorm:
        return LayerNorm(self._tensor(f"{name}.weight", self.width), self._tensor(f"{name}.bias", self.width), EPSILON)

    def _tensor(self, name: str, *shape: int) -> Any:
        """A tensor that must have this shape: compiled kernels do not check shapes."""
        self._check(name, *shape)
        return self.tensors[name]

    def _check(self, name: str, *shape: int) -> None:
        stored = self.tensors.shape(name)
        if stored != shape:
            raise ModelNotFound(f"its weights and config.json differ: {name!r} is {stored}, config.json makes it {shape}")

    def _positions(self, name: str) -> Positions:
        width, most = self.width, self.positions  # closures must not keep this reader, and with it the mapped files, alive
        if self.kind == "m2m_100":
            padding = int(self.config["pad_token_id"])
            return Positions(lambda n: m2m100_sinusoids(n, width, padding))
        if self.kind not in LEARNED and name not in self.tensors:
            return Positions(lambda n: sinusoids(min(n, most), width))
        first = OFFSET if self.kind in LEARNED else 0
        table = self._tensor(name, self.positions + first, self.width)[first:]
        return Positions(lambda _: table)


def sinusoids(n: int, width: int) -> Any:
    """Marian's and Pegasus' position embeddings, (n, width): sines of the even dimensions, then cosines of the odd ones."""
    places = np.arange(width)
    angles = np.arange(n)[:, None] / np.power(10000, 2 * (places // 2) / width)
    return np.concatenate([np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])], 1).astype(np.float32)


def m2m100_sinusoids(n: int, width: int, padding: int) -> Any:
    """M2M100's position embeddings, (n, width), of the positions after the padding id: sines, then cosines."""
    half = width // 2
    each = np.exp(np.arange(half, dtype=np.float32) * np.float32(-log(10000) / (half - 1)))
    angles = np.arange(padding + 1, padding + 1 + n, dtype=np.float32)[:, None] * each
    return np.concatenate([np.sin(angles), np.cos(angles), np.zeros((n, width % 2), np.float32)], 1)
