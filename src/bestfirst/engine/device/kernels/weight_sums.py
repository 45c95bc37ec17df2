# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""WeightSums: one number for all weights on a GPU, by one launch, as fast as its memory is read."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from ..cuda_graphs import Graphs, Transfer

PIECE, BLOCK = 1 << 14, 1 << 11  # integers that one program weighs, and those that it reads at a time


@triton.jit
def weigh(places, sizes, starts, total, INTEGER: tl.constexpr, PIECE: tl.constexpr, BLOCK: tl.constexpr):
    """Each integer times an odd number of 64 bits for its place: no change of one is lost, nor, but by chance, one of several."""
    piece = tl.program_id(0)
    place = tl.load(places + piece).to(tl.pointer_type(INTEGER))
    size = tl.load(sizes + piece)
    start = tl.load(starts + piece)
    lanes = tl.arange(0, BLOCK)
    found = tl.zeros([BLOCK], tl.int64)
    i = 0
    while i < PIECE:
        at = i + lanes
        numbers = tl.load(place + at, mask=at < size, other=0).to(tl.int64)
        mixed = (start + at + 1) * -7046029254386353131
        mixed = (mixed ^ (mixed >> 29)) * -4658895280553007687
        found += numbers * ((mixed ^ (mixed >> 32)) | 1)
        i += BLOCK
    tl.atomic_add(total, tl.sum(found, 0))


class WeightSums:
    """Of flat tensors of integers of one kind on one device, which stay where they are."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        self._weights = weights  # what lies in these places is still theirs
        self._kind = {4: tl.int32, 1: tl.uint8}[weights[0].element_size()]
        firsts = [np.arange(0, len(each), PIECE) for each in weights]
        lengths = [len(each) for each in weights]
        before = np.cumsum([0, *lengths[:-1]])
        columns = (
            [each.data_ptr() + first * each.element_size() for each, first in zip(weights, firsts, strict=True)],
            [np.minimum(length - first, PIECE) for length, first in zip(lengths, firsts, strict=True)],
            [start + first for start, first in zip(before, firsts, strict=True)],
        )
        self._table = torch.from_numpy(np.stack([np.concatenate(column) for column in columns])).to(weights[0].device)
        self._total = torch.zeros(1, dtype=torch.int64, device=self._table.device)
        self._number = Transfer(self._total)
        self._graphs = Graphs(self._table.device)

    @torch.inference_mode()  # where it may be written to, in whatever mode it was made
    def __call__(self) -> Transfer:
        """The number, on its way to the host; it is there until this is called again."""
        with torch.cuda.device_of(self._total):
            self._graphs.run("weigh", self._weigh)
            return self._number.restart()

    def _weigh(self) -> None:
        self._total.zero_()
        weigh[(self._table.shape[1],)](*self._table, self._total, INTEGER=self._kind, PIECE=PIECE, BLOCK=BLOCK)
