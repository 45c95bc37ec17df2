"""NativeEncoder: the encoders of Marian, BART, mBART, Pegasus and M2M100. Inputs stand one after another: nothing is padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from ..fused_bart import NORM_FIRST, embed_scale
from ..hooked import position_table
from ..linear import Linear
from ..pages import Pages
from . import kernels
from .arrays import Array, Workspace
from .parts import FeedForward, Norm, Product, Stream


class Layer:
    """One encoder layer's products."""

    def __init__(self, module: Any, pages: Pages) -> None:
        own = module.self_attn
        self.heads, self.scaling = own.num_heads, np.float32(own.scaling)
        self.qkv = Product(Linear.join(own.q_proj, own.k_proj, own.v_proj), pages)
        self.own_out = Product(Linear.join(own.out_proj), pages)
        self.forward = FeedForward(Linear.join(module.fc1), Linear.join(module.fc2), module.activation_fn, pages)


class NativeEncoder:
    """An encoder of token ids."""

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether it reads tokens (Whisper's hears)."""
        return model.config.model_type in NORM_FIRST and hasattr(model.get_encoder(), "embed_tokens")

    @torch.inference_mode()
    def __init__(self, model: Any, pages: Pages | None = None) -> None:
        encoder, pages = model.get_encoder(), pages or Pages()
        self.encoder = encoder
        self.layers = [Layer(module, pages) for module in encoder.layers]
        self.norm_first = NORM_FIRST[model.config.model_type]
        self.norms = [Norm(module) for module in self._norms()]
        self.embedding, self.embed_scale = encoder.embed_tokens, embed_scale(encoder)
        self.first_norm = getattr(encoder, "layernorm_embedding", None)
        self.positions = position_table(encoder, 64)
        self.width = len(self.layers[0].own_out.bias)
        self.workspace = Workspace(
            x=self.width, h=self.width, y=self.width, seen=self.width,
            qkv=3 * self.width, keys_values=2 * self.width, inner=max(len(layer.forward.up.bias) for layer in self.layers),
        )  # fmt: skip

    def _norms(self) -> Iterator[Any]:
        for layer in self.encoder.layers:
            yield from (layer.self_attn_layer_norm, layer.final_layer_norm)
        if self.norm_first:
            yield self.encoder.layer_norm

    @torch.inference_mode()
    def __call__(self, inputs: Sequence[Sequence[int]]) -> Array:
        """The encoder's output for all inputs' tokens, one input after another, (tokens, d), until the next call."""
        lengths = [len(tokens) for tokens in inputs]
        if max(lengths) > len(self.positions):
            self.positions = position_table(self.encoder, 2 * max(lengths))
        starts = np.array([0, *accumulate(lengths)])
        w = self.workspace.of(int(starts[-1]))
        w["x"].t.copy_(self._embed(inputs))
        stream = Stream(w["x"], w["h"], self.norms, self.norm_first)
        y, qkv, seen = w["y"], w["qkv"], w["seen"]
        for layer in self.layers:
            layer.qkv(stream.h, qkv)
            kernels.self_attention(qkv.n, layer.qkv.bias, starts, layer.heads, layer.scaling, seen.n)
            layer.own_out(seen, y)
            stream.add(y, layer.own_out.bias)
            layer.forward(stream.h, w["inner"], y)
            stream.add(y, layer.forward.bias)
        return stream.h

    def keys_values(self, tokens: int) -> Array:
        """Memory for a decoder layer's keys and values of so many tokens."""
        return self.workspace.of(tokens)["keys_values"]

    def _embed(self, inputs: Sequence[Sequence[int]]) -> torch.Tensor:
        x = self.embedding(torch.tensor([token for tokens in inputs for token in tokens]))
        if self.embed_scale != 1.0:
            x = x * self.embed_scale
        x = x + self.positions[torch.tensor([position for tokens in inputs for position in range(len(tokens))])]
        return x if self.first_norm is None else self.first_norm(x)
