"""NativeBart: the step of `FusedBart` with all that lies between its matrix products compiled (`kernels`). float32, on a CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..bart import FusedBart
from ..memory import Pages
from ..sources import Sources
from ..tree import Rows, Tree
from . import kernels, tiles
from .allowed import allowed_top
from .encoder import NativeEncoder
from .parts import Array, NativeLayer, ResidualStream, Workspace, native_norms

if TYPE_CHECKING:
    from ....models.transformers import Prompt, TransformersModel

MULTIPLE = 16  # of rows: what the product with the vocabulary works through at a time; a step's last few are filled up


class NativeBart(FusedBart):
    """A step of a BART-like decoder. Where its attention is asked for, the step is `FusedBart`'s."""

    name = "native"
    by_place = False

    @staticmethod
    def takes(model: Any) -> bool:
        return FusedBart.takes(model) and model.device.type == "cpu" and model.dtype == torch.float32

    @torch.inference_mode()
    def __init__(self, model: Any) -> None:
        super().__init__(model)
        pages = Pages()
        self.native = [NativeLayer(layer, pages) for layer in self.layers]
        self.norms = native_norms(self.side)
        self.width = d = self.side.width
        inner = max(len(layer.fc1.weight) for layer in self.layers)
        self.workspace = Workspace(x=d, h=d, y=d, q=d, seen=d, qkv=3 * d, inner=inner)
        bias = self.head.bias
        self.head_bias = None if bias is None or not bias.any() else bias[:, None]
        self.head_rows = self.head.weight.contiguous().numpy()
        self._transposed = torch.empty(0)
        self._logits = torch.empty(0)
        self.encoder = None if self.weights.encoder is None else NativeEncoder(self.weights.encoder, pages)

    def take_in(self, model: TransformersModel, prompts: Sequence[Prompt], sources: Sources) -> list[int]:
        if self.encoder is None or any(prompt.hidden is not None for prompt in prompts):
            return super().take_in(model, prompts, sources)
        self.encoder.check([prompt.source for prompt in prompts])
        lengths = [len(prompt.source) for prompt in prompts]
        layer = self.layers[0]
        places = sources.reserve(lengths, len(self.layers), layer.heads, layer.size)
        for first, last in batches(lengths):
            hidden = self.encoder([prompt.source for prompt in prompts[first:last]])
            starts = np.array([0, *accumulate(lengths[first:last])])
            keys_values = self.encoder.keys_values(len(hidden.t))
            for index, native in enumerate(self.native):
                native.cross_kv(hidden, keys_values)
                kernels.put(keys_values.n, native.cross_kv.bias, starts, places[first], sources.layers[index].numpy())
        return list(places)

    def step(self, rows: Rows, tree: Tree, sources: Sources) -> torch.Tensor:
        if self.watching:
            return super().step(rows, tree, sources)
        rows.check(len(self.side.embedding), len(self.side.positions.up_to(rows.paths.shape[1])), tree, sources)
        w = self.workspace.of(len(rows))
        w["x"].t.copy_(self.embed(rows))
        stream = ResidualStream(w["x"], w["h"], self.norms, self.side.norm_first)
        y, q, qkv, seen = w["y"], w["q"], w["qkv"], w["seen"]
        slots, positions, places = rows.slots.numpy(), rows.positions.numpy(), rows.sentences.numpy()
        paths, lengths = tree.paths.numpy(), np.array(sources.lengths)
        for index, layer in enumerate(self.native):
            pool = tree.layer(index, self.width).view(-1, 2 * self.width).numpy()
            layer.qkv(stream.h, qkv)
            kernels.own_attention(qkv.n, layer.qkv.bias, pool, paths, slots, positions, layer.heads, layer.scaling, seen.n)
            layer.own_out(seen, y)
            stream.add(y, layer.own_out.bias)
            layer.cross_q(stream.h, q)
            kernels.cross_attention(
                q.n, layer.cross_q.bias, sources.layers[index].numpy(), lengths, places, layer.scaling, seen.n
            )
            layer.cross_out(seen, y)
            stream.add(y, layer.cross_out.bias)
            layer.forward(stream.h, w["inner"], y)
            stream.add(y, layer.forward.bias)
        return self._vocabulary(stream.h)

    def _vocabulary(self, h: Array) -> torch.Tensor:
        """The last product, (rows, vocabulary) as a view of (vocabulary, rows): that way round it is up to a half faster."""
        n, tokens = len(h.t), len(self.head.weight)
        tiled = tiles.suit(self.width) and torch.get_num_threads() == 1
        columns = n if n < MULTIPLE and not tiled else -(-n // MULTIPLE) * MULTIPLE
        if columns * self.width > self._transposed.numel():
            self._transposed = torch.zeros(2 * columns * self.width)
            self._logits = torch.empty(2 * columns * tokens)
        turned, logits = self._transposed[: columns * self.width], self._logits[: columns * tokens].view(tokens, columns)
        if tiled:
            tiles.pack(h.n, self.width, turned.numpy())
            tiles.by_rows(self.head_rows, turned.numpy(), tiles.ZEROS, logits.numpy())
        else:
            transposed = turned.view(self.width, columns)
            transposed[:, :n] = h.t.t()
            torch.mm(self.head.weight, transposed, out=logits)
        if self.head_bias is not None:
            logits += self.head_bias
        return logits[:, :n].t()

    def best(
        self, logits: torch.Tensor, width: int, banned: torch.Tensor | None, allowed: Sequence[np.ndarray | None] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if logits.stride(0) != 1:
            return super().best(logits, width, banned, allowed)
        n, (vocabulary, columns) = len(logits), (logits.shape[1], logits.stride(1))
        values, tokens = np.empty((n, width), np.float32), np.empty((n, width), np.int64)
        whole = logits.as_strided((vocabulary, columns), (columns, 1)).numpy()  # as `_vocabulary` laid it out
        forbidden = NOTHING if banned is None else banned.numpy()
        if allowed is None:
            kernels.top(whole, forbidden, values, tokens)
        else:
            every = np.arange(vocabulary, dtype=np.int32)
            lists = [every if each is None else each for each in allowed]
            ends = np.cumsum([len(each) for each in lists])
            allowed_top(whole, forbidden, np.concatenate(lists).astype(np.int32), ends, values, tokens)
        return torch.from_numpy(values), torch.from_numpy(tokens)


NOTHING = np.empty(0, np.int64)


def batches(lengths: Sequence[int], tokens: int = 1024) -> Iterator[tuple[int, int]]:
    """Inputs one after another, as (first, last + 1): so many tokens together that products are fast and stay in the cache."""
    first = total = 0
    for i, length in enumerate(lengths):
        if total and total + length > tokens:
            yield first, i
            first, total = i, 0
        total += length
    if total:
        yield first, len(lengths)
