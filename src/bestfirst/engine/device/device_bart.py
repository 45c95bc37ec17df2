"""A BART-like model as kernels run it: weights joined where that saves a matmul, decoder layers, and an encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from ..steps.bart import looks_like_bart, normed, read_bart
from ..steps.bart_weights import BartLayer, BartSide
from ..steps.step_check import encoder_agrees
from .cuda_graphs import overlapping
from .kernels.attention_kernels import attend
from .kernels.matmul import DeviceLinear, add_and_norm, power


@dataclass
class Packed:
    """Inputs, concatenated without padding: each token with its position in its input and that input's number; where each input
    starts, and its length. The first `used` tokens count. All are int32 tensors on the device."""

    tokens: torch.Tensor
    places: torch.Tensor
    inputs: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    used: torch.Tensor


Attention = Callable[[torch.Tensor, int, Any], torch.Tensor]  # (normed rows, layer index, layer) -> attention, not yet projected


class DeviceLayer:
    """Weights of one layer of the decoder or encoder; query, key and value projections are fused."""

    def __init__(self, layer: BartLayer) -> None:
        own, cross = layer.own, layer.cross
        self.scaling = own.scaling
        self.qkv, self.own_out = DeviceLinear.join(own.query, own.key, own.value), DeviceLinear.join(own.out)
        if cross is not None:
            self.cross_q, self.cross_out = DeviceLinear.join(cross.query), DeviceLinear.join(cross.out)
        self.fc1, self.fc2 = DeviceLinear.join(layer.fc1, activation=layer.activation), DeviceLinear.join(layer.fc2)
        self.fc2.may_split = True
        self.own_norm, self.cross_norm, self.norm = layer.own_norm, layer.cross_norm, layer.norm


class DeviceSide:
    """The layers of an encoder or a decoder."""

    def __init__(self, side: BartSide, positions: int) -> None:
        self.heads, self.size, self.norm_first = side.layers[0].own.heads, side.layers[0].own.size, side.norm_first
        self.layers = [DeviceLayer(layer) for layer in side.layers]
        self.embedding, self.embed_scale = side.embedding, side.embed_scale
        self.positions = side.positions.up_to(positions).detach().contiguous()
        self.first_norm, self.last_norm = side.first_norm, side.last_norm

    def run(self, x: torch.Tensor, used: torch.Tensor, own: Attention, cross: Attention | None = None) -> torch.Tensor:
        """All layers on embedded rows. `own` and `cross`: self-attention and cross-attention without their output projections."""
        x = y = normed(x, self.first_norm)
        if self.norm_first:
            y = normed(x, self.layers[0].own_norm)
        for index, layer in enumerate(self.layers):
            norms = [layer.own_norm, layer.norm] if cross is None else [layer.own_norm, layer.cross_norm, layer.norm]
            if self.norm_first:
                norms = [*norms[1:], self.layers[index + 1].own_norm if index + 1 < len(self.layers) else self.last_norm]
            x, y = add_and_norm(x, layer.own_out(own(y, index, layer), used), norms[0], self.norm_first)
            if cross is not None:
                x, y = add_and_norm(x, layer.cross_out(cross(y, index, layer), used), norms[1], self.norm_first)
            x, y = add_and_norm(x, layer.fc2(layer.fc1(y, used), used), norms[-1], self.norm_first)
        return y if self.norm_first else normed(y, self.last_norm)


class DeviceEncoder(DeviceSide):
    """Encodes inputs of any lengths together, unpadded: matmuls see all tokens, each token attends to its own input only."""

    def __call__(self, given: Packed) -> torch.Tensor:
        """Hidden states (tokens, d)."""
        x = torch.add(self.positions[given.places], F.embedding(given.tokens, self.embedding), alpha=self.embed_scale)
        return self.run(x, given.used, lambda y, _, layer: self._attend(layer.qkv(y, given.used), layer, given))

    def _attend(self, qkv: torch.Tensor, layer: DeviceLayer, given: Packed) -> torch.Tensor:
        """Full self-attention within each input."""
        tokens, width = len(qkv), qkv.shape[1] // 3
        out = torch.empty(tokens, width, dtype=qkv.dtype, device=qkv.device)
        size, unused = width // self.heads, given.inputs
        attend[(tokens, self.heads)](
            given.used, qkv, 3 * width, qkv[:, width:], 3 * width, 0, unused, given.inputs, unused, unused,
            given.starts, given.lengths, out, layer.scaling, 0, self.heads, size,
            OWN=False, FIRST=qkv.dtype != torch.float32, DP=power(size), BLOCK=16, num_warps=1, **overlapping(qkv.device),
        )  # fmt: skip
        return out

    def encode_one(self, tokens: list[int]) -> torch.Tensor:
        """Hidden states of one input, (tokens, d)."""
        device, n = self.embedding.device, len(tokens)
        numbers = [tokens, list(range(n)), [0] * n, [0], [n], [n]]
        return self(Packed(*(torch.tensor(each, dtype=torch.int32, device=device) for each in numbers)))


class DeviceBart(DeviceSide):
    """A whole model: decoder, LM head and encoder. Fused projections are copies; embeddings are the model's own tensors."""

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether this is a model of that architecture."""
        return looks_like_bart(model) and hasattr(model.get_encoder(), "embed_tokens")

    @staticmethod
    def bytes_of_a_token(model: Any) -> int:
        """Size of a token's keys and values in all layers."""
        layers = model.get_decoder().layers
        return len(layers) * 2 * int(layers[0].self_attn.embed_dim) * model.dtype.itemsize

    def __init__(self, model: Any, positions: int, source_positions: int) -> None:
        weights = read_bart(model)
        super().__init__(weights.decoder, positions)
        cross_layers = [layer.cross for layer in weights.decoder.layers if layer.cross is not None]
        self.cross = DeviceLinear.join(*(part for cross in cross_layers for part in (cross.key, cross.value)))
        self.head = DeviceLinear.join(weights.head)
        self.head.aligned = True
        self.vocabulary = len(self.head.weight)
        if self.vocabulary > len(weights.decoder.embedding):
            raise TypeError(f"the embeddings of {type(model).__name__} lack some of its tokens")
        self.width = self.heads * self.size  # hidden size
        self.device, self.dtype = self.embedding.device, self.embedding.dtype
        if weights.encoder is None:
            raise TypeError(f"the encoder of {type(model).__name__} is not built as this architecture's are")
        self.encoder = DeviceEncoder(weights.encoder, source_positions)
        if not encoder_agrees(self.encoder.encode_one, model):
            raise RuntimeError(f"the encoder of {type(model).__name__} does not give here what it gives by itself")

    def can_read(self, model: Any) -> bool:
        """Whether no access here is out of bounds for this model, even if copied weights are stale: its embeddings are the same
        tensors, and it has no more tokens."""
        sides = ((self, model.get_decoder()), (self.encoder, model.get_encoder()))
        pairs = [(mine.embedding, side.embed_tokens.weight) for mine, side in sides]
        same = all(mine.shape == theirs.shape and mine.data_ptr() == theirs.data_ptr() for mine, theirs in pairs)
        return same and len(model.get_output_embeddings().weight) == self.vocabulary

    def room(self, tokens: int, source: bool) -> torch.Tensor:
        """A KV cache for so many tokens, of inputs or of nodes: (tokens, layers * 2 * d)."""
        return torch.empty(tokens, len(self.layers) * 2 * self.width, dtype=self.dtype, device=self.device)

    def source_keys(self, hidden: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
        """Cross-attention keys and values of all layers for encoder output (tokens, d): (tokens, layers * 2 * d)."""
        return self.cross(hidden, used)
