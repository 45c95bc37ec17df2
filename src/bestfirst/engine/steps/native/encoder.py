"""NativeEncoder: the encoders of Marian, BART, mBART, Pegasus and M2M100. Inputs stand one after another: nothing is padded."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import accumulate, chain
from typing import Any

import numpy as np

from ..bart_weights import BartSide
from ..memory import Pages
from ..rows import check_range
from . import calls as kernels
from .packed import room
from .parts import NativeLayer, ResidualStream, Workspace, embed, native_norms
from .whole import WholePass, deepest


class NativeEncoder:
    """An encoder of token ids."""

    def __init__(self, side: BartSide, pages: Pages | None = None, eight_bits: bool = False) -> None:
        pages = pages or Pages()
        self.side = side
        self.layers = [NativeLayer(layer, pages, eight_bits) for layer in side.layers]
        self.norms = native_norms(side)
        self.whole = WholePass(side, self.layers, self.norms) if WholePass.takes(side, self.layers, self.norms) else None
        d, inner = side.width, max(layer.forward.up.outputs for layer in self.layers)
        self.workspace = Workspace(x=d, h=d, y=d, seen=d, qkv=3 * d, inner=inner, room=room(deepest(self.layers)) // 4, scales=1)

    def again(self) -> NativeEncoder:
        """The same weights, with memory of its own to work in."""
        made = copy(self)
        made.workspace = self.workspace.again()
        made.whole = None if self.whole is None else self.whole.again()
        return made

    def __call__(self, inputs: Sequence[Sequence[int]]) -> Any:
        """The encoder's output for all inputs' tokens, one input after another, (tokens, d), until the next call.

        Inputs that `check` takes: kernels do not look.
        """
        lengths = [len(tokens) for tokens in inputs]
        starts = np.array([0, *accumulate(lengths)])
        tokens = np.fromiter(chain.from_iterable(inputs), np.int32, starts[-1])
        positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        w = self.workspace.of(int(starts[-1]))
        if self.whole is not None:
            return self.whole.encode(tokens, positions, max(lengths), starts, w)
        embed(self.side, tokens, positions, max(lengths), w["x"])
        stream = ResidualStream(w["x"], w["h"], self.norms, self.side.norm_first)
        y, qkv, seen = w["y"], w["qkv"], w["seen"]
        for layer in self.layers:
            layer.qkv(stream.h, qkv)
            kernels.self_attention(qkv, layer.qkv.bias, starts, layer.heads, layer.scaling, seen)
            layer.own_out(seen, y)
            stream.add(y, layer.own_out.bias)
            layer.forward(stream.h, w["inner"], y)
            stream.add(y, layer.forward.bias)
        return stream.h

    def check(self, inputs: Sequence[Sequence[int]]) -> None:
        """Raise ValueError, naming the value, for an input that it cannot take."""
        lengths = np.array([len(tokens) for tokens in inputs])
        positions = len(self.side.positions.up_to(int(lengths.max())))
        check_range("the number of an input's tokens", lengths, positions + 1, first=1)
        check_range("an input token's id", np.fromiter(chain.from_iterable(inputs), np.int64), len(self.side.embedding))
