"""Weights of a BART-like model as the device uses them, joined where that saves a product; and its encoder, in few launches."""

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
    """Inputs, their tokens one after the other: each token with its place in its input and that input's number;
    where each input starts, and its length. The first `used` tokens count. All are integers of 32 bits on the device.
    """

    tokens: torch.Tensor
    places: torch.Tensor
    inputs: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    used: torch.Tensor


Attention = Callable[[torch.Tensor, int, Any], torch.Tensor]  # of rows, in a layer, and of which number that is


class DeviceLayer:
    """One layer of the decoder or encoder."""

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
        """What they make of embedded rows; `own` and `cross`: what rows read of each other, and of their input."""
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
    """Runs any number of inputs of any lengths at once: products see tokens, and each token looks at its own input only."""

    def __call__(self, given: Packed) -> torch.Tensor:
        """Hidden states (tokens, d)."""
        x = torch.add(self.positions[given.places], F.embedding(given.tokens, self.embedding), alpha=self.embed_scale)
        return self.run(x, given.used, lambda y, _, layer: self._attend(layer.qkv(y, given.used), layer, given))

    def _attend(self, qkv: torch.Tensor, layer: DeviceLayer, given: Packed) -> torch.Tensor:
        """Each token to all of its input."""
        tokens, width = len(qkv), qkv.shape[1] // 3
        out = torch.empty(tokens, width, dtype=qkv.dtype, device=qkv.device)
        size, unused = width // self.heads, given.inputs
        attend[(tokens, self.heads)](
            given.used, qkv, 3 * width, qkv[:, width:], 3 * width, 0, unused, given.inputs, unused, unused,
            given.starts, given.lengths, out, layer.scaling, 0, self.heads, size,
            OWN=False, FIRST=qkv.dtype != torch.float32, DP=power(size), BLOCK=16, num_warps=1, **overlapping(qkv.device),
        )  # fmt: skip
        return out

    def alone(self, tokens: list[int]) -> torch.Tensor:
        """Hidden states of one input, (tokens, d)."""
        device, n = self.embedding.device, len(tokens)
        numbers = [tokens, list(range(n)), [0] * n, [0], [n], [n]]
        return self(Packed(*(torch.tensor(each, dtype=torch.int32, device=device) for each in numbers)))


class DeviceBart(DeviceSide):
    """A whole model: its decoder, its head and its encoder."""

    @staticmethod
    def takes(model: Any) -> bool:
        return looks_like_bart(model) and hasattr(model.get_encoder(), "embed_tokens")

    @staticmethod
    def bytes_of_a_token(model: Any) -> int:
        """What its keys and values take, in all layers."""
        layers = model.get_decoder().layers
        return len(layers) * 2 * int(layers[0].self_attn.embed_dim) * model.dtype.itemsize

    def __init__(self, model: Any, positions: int, source_positions: int) -> None:
        weights = read_bart(model)
        super().__init__(weights.decoder, positions)
        crosses = [layer.cross for layer in weights.decoder.layers if layer.cross is not None]
        self.cross = DeviceLinear.join(*(part for cross in crosses for part in (cross.key, cross.value)))
        self.head = DeviceLinear.join(weights.head)
        self.head.aligned = True
        self.vocabulary = len(self.head.weight)
        self.width = self.heads * self.size  # numbers in a row
        self.device, self.dtype = self.embedding.device, self.embedding.dtype
        if weights.encoder is None:
            raise TypeError(f"the encoder of {type(model).__name__} is not built as this architecture's are")
        self.encoder = DeviceEncoder(weights.encoder, source_positions)
        if not encoder_agrees(self.encoder.alone, model):
            raise RuntimeError(f"the encoder of {type(model).__name__} does not give here what it gives by itself")

    def reads_for(self, model: Any) -> bool:
        """Whether this model's tokens can be read here, whatever else it may have become: its embeddings are what and where they
        were, and it has no more tokens."""
        sides = ((self, model.get_decoder()), (self.encoder, model.get_encoder()))
        pairs = [(mine.embedding, side.embed_tokens.weight) for mine, side in sides]
        same = all(mine.shape == its.shape and mine.data_ptr() == its.data_ptr() for mine, its in pairs)
        return same and len(model.get_output_embeddings().weight) == self.vocabulary

    def room(self, tokens: int, source: bool) -> torch.Tensor:
        """Keys and values of so many tokens, of inputs or of nodes, (tokens, layers * 2 * d)."""
        return torch.empty(tokens, len(self.layers) * 2 * self.width, dtype=self.dtype, device=self.device)

    def source_keys(self, hidden: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
        """Every layer's keys and values for the encoder's output (tokens, d), (tokens, layers * 2 * d)."""
        return self.cross(hidden, used)
