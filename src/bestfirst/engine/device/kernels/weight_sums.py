"""WeightSums: a checksum of all weights on a GPU in one launch, at memory bandwidth."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from ..cuda_graphs import Graphs, Transfer

PIECE, BLOCK = 1 << 14, 1 << 11  # integers per program, and per load


@triton.jit
def add_weighted(places, sizes, starts, total, INTEGER: tl.constexpr, PIECE: tl.constexpr, BLOCK: tl.constexpr):
    """Add up one piece: each integer times an odd 64-bit factor derived from its position, so a single changed integer always
    changes the sum, and several miss it only by chance."""
    piece = tl.program_id(0)
    pointer = tl.load(places + piece).to(tl.pointer_type(INTEGER))
    size = tl.load(sizes + piece)
    start = tl.load(starts + piece)
    lanes = tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], tl.int64)
    i = 0
    while i < PIECE:
        at = i + lanes
        numbers = tl.load(pointer + at, mask=at < size, other=0).to(tl.int64)
        factor = (start + at + 1) * -7046029254386353131
        factor = (factor ^ (factor >> 29)) * -4658895280553007687
        sums += numbers * ((factor ^ (factor >> 32)) | 1)
        i += BLOCK
    tl.atomic_add(total, tl.sum(sums, 0))


class WeightSums:
    """Checksum over flat integer tensors of one dtype and device, which must stay where they are."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        self._weights = weights  # keeps the memory behind the pointers alive
        self._dtype = {4: tl.int32, 1: tl.uint8}[weights[0].element_size()]
        piece_starts = [np.arange(0, len(each), PIECE) for each in weights]
        lengths = [len(each) for each in weights]
        offsets = np.cumsum([0, *lengths[:-1]])
        columns = (
            [tensor.data_ptr() + first * tensor.element_size() for tensor, first in zip(weights, piece_starts, strict=True)],
            [np.minimum(length - first, PIECE) for length, first in zip(lengths, piece_starts, strict=True)],
            [start + first for start, first in zip(offsets, piece_starts, strict=True)],
        )
        self._table = torch.from_numpy(np.stack([np.concatenate(column) for column in columns])).to(weights[0].device)
        self._total = torch.zeros(1, dtype=torch.int64, device=self._table.device)
        self._transfer = Transfer(self._total)
        self._graphs = Graphs(self._table.device)

    @torch.inference_mode()  # here tensors can be written to whichever mode they were made in
    def __call__(self) -> Transfer:
        """Start the sum and its transfer to the host. The transfer is valid until the next call."""
        with torch.cuda.device_of(self._total):
            self._graphs.run("weigh", self._weigh)
            return self._transfer.restart()

    def _weigh(self) -> None:
        self._total.zero_()
        add_weighted[(self._table.shape[1],)](*self._table, self._total, INTEGER=self._dtype, PIECE=PIECE, BLOCK=BLOCK)
