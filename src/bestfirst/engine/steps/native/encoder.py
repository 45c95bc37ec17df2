"""NativeEncoder: the encoders of Marian, BART, mBART, Pegasus and M2M100. Inputs stand one after another: nothing is padded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np
import torch

from ..bart import FusedLayer, embedded
from ..bart_weights import BartSide
from ..memory import Pages
from ..tree import check_range
from . import kernels
from .parts import Array, NativeLayer, ResidualStream, Workspace, native_norms


class NativeEncoder:
    """An encoder of token ids."""

    @torch.inference_mode()
    def __init__(self, side: BartSide, pages: Pages | None = None) -> None:
        pages = pages or Pages()
        self.side = side
        self.layers = [NativeLayer(FusedLayer(layer), pages) for layer in side.layers]
        self.norms = native_norms(side)
        d, inner = side.width, max(len(layer.forward.up.bias) for layer in self.layers)
        self.workspace = Workspace(x=d, h=d, y=d, seen=d, qkv=3 * d, keys_values=2 * d, inner=inner)

    @torch.inference_mode()
    def __call__(self, inputs: Sequence[Sequence[int]]) -> Array:
        """The encoder's output for all inputs' tokens, one input after another, (tokens, d), until the next call.

        Inputs that `check` takes: kernels do not look.
        """
        lengths = [len(tokens) for tokens in inputs]
        starts = np.array([0, *accumulate(lengths)])
        w = self.workspace.of(int(starts[-1]))
        w["x"].t.copy_(self._embed(inputs))
        stream = ResidualStream(w["x"], w["h"], self.norms, self.side.norm_first)
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

    def check(self, inputs: Sequence[Sequence[int]]) -> None:
        """Raise ValueError, naming the value, for an input that it cannot take."""
        lengths = np.array([len(tokens) for tokens in inputs])
        positions = len(self.side.positions.up_to(int(lengths.max())))
        check_range("the number of an input's tokens", lengths, positions + 1, first=1)
        check_range("an input token's id", np.fromiter(chain.from_iterable(inputs), np.int64), len(self.side.embedding))

    def _embed(self, inputs: Sequence[Sequence[int]]) -> torch.Tensor:
        tokens = torch.tensor([token for tokens in inputs for token in tokens])
        positions = torch.tensor([position for tokens in inputs for position in range(len(tokens))])
        return embedded(self.side, tokens, positions, max(map(len, inputs)))
