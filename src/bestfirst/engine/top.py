"""top: the k largest of each row, faster than `torch.topk` on a large vocabulary."""

from __future__ import annotations

import torch

BLOCK = 64  # columns a block; with fewer than k blocks there is nothing to gain


def top(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As `x.topk(k)` for x (rows, columns). The k largest lie in the k blocks with the largest maxima: only these are sorted."""
    rows, columns = x.shape
    blocks = columns // BLOCK
    if x.device.type != "cpu" or blocks < 4 * k:
        return x.topk(k, -1)
    even = x[:, : blocks * BLOCK].view(rows, blocks, BLOCK)
    chosen = even.amax(-1).topk(k, -1).indices  # (rows, k)
    inside = even.gather(1, chosen[:, :, None].expand(-1, -1, BLOCK)).view(rows, k * BLOCK)
    where = (chosen[:, :, None] * BLOCK + torch.arange(BLOCK)).view(rows, k * BLOCK)
    if blocks * BLOCK < columns:
        inside = torch.cat([inside, x[:, blocks * BLOCK :]], 1)
        where = torch.cat([where, torch.arange(blocks * BLOCK, columns).expand(rows, -1)], 1)
    values, places = inside.topk(k, -1)
    return values, where.gather(1, places)
