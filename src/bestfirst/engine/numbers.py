"""Numbers: what models return, as numbers: lists, arrays and tensors become float64, are checked, and the best are found.

Tokens are chosen by the numbers as they are, for float64 keeps their order; what is added up is float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from ..search import BrokenLaw

SHORT = 512  # a list of so many numbers is sorted sooner than it is made an array
BLOCK = 64  # tokens of which only the best is looked at first


def numbers(row: Any, what: str, nan: bool = False) -> Any:
    """A row of whatever kind as float64, if it has one dimension and, but for `nan`, no NaN."""
    import numpy

    found = _array(row, what).astype(numpy.float64, copy=False)
    if not nan and numpy.isnan(found).any():
        raise ValueError(f"{what} contain NaN")
    return found


def _array(row: Any, what: str, dimensions: int = 1) -> Any:
    """An array of float32 or float64: half precision becomes float32, in which all of it fits."""
    import numpy

    if hasattr(row, "detach"):  # a tensor, of any dtype and on any device
        row = row.detach()
        row = (row.float() if row.dtype.itemsize < 4 else row).cpu().numpy()
    try:
        found = numpy.asarray(row)
        if found.dtype != numpy.float32:
            found = found.astype(numpy.float32 if found.dtype == numpy.float16 else numpy.float64, copy=False)
    except (TypeError, ValueError):
        raise BrokenLaw(f"{what} must be a row of numbers, got {_kind(row)}") from None
    if found.ndim != dimensions:
        raise BrokenLaw(f"{what} must be one row, a number for each token, got an array of shape {found.shape}")
    return found


def _kind(row: Any) -> str:
    odd = next((value for value in row if not isinstance(value, (int, float))), None) if isinstance(row, (list, tuple)) else None
    return type(row).__name__ if odd is None else f"a {type(row).__name__} with {odd!r:.40}"


def matrix(rows: Sequence[Any], whats: Sequence[str]) -> Any:
    """Rows of one kind and length as one array, (rows, vocabulary); None where they differ, or one is no row."""
    import numpy

    shapes = {getattr(row, "shape", None) for row in rows}
    if len(shapes) > 1 or len({type(row) for row in rows}) > 1:
        return None
    (shape,) = shapes
    if shape is None or len(shape) != 1:
        return None
    if hasattr(rows[0], "detach"):
        import torch

        return _array(torch.stack(list(rows)), whats[0], 2)
    return _array(numpy.stack(rows), whats[0], 2)


def best_of_rows(rows: Sequence[Any], whats: Sequence[str], width: float) -> list[tuple[list[float], list[int]]]:
    """The best tokens of each row, whatever the rows are: in one go where they are arrays or tensors of one kind."""
    if all(isinstance(row, (list, tuple)) and len(row) <= SHORT for row in rows):
        return [best_of_list(row, what, width) for row, what in zip(rows, whats, strict=True)]
    if (scores := matrix(rows, whats)) is not None:
        return best_of_each(scores, width)
    return [best_of_each(_array(row, what)[None], width)[0] for row, what in zip(rows, whats, strict=True)]


def best_of_each(scores: Any, width: float) -> list[tuple[list[float], list[int]]]:
    """Of each row of (rows, vocabulary): the `width` best scores and their tokens, best first, of equals the smaller token first;
    those at -inf are left out. Rows with NaN have a NaN first.

    The width-th best of the blocks' maxima is no better than the width-th best of all: only what reaches it is sorted.
    """
    import numpy

    rows, size = scores.shape
    width = int(min(width, size))
    whole = size - size % BLOCK
    maxima = scores[:, :whole].reshape(rows, -1, BLOCK).max(2)
    if whole < size:
        maxima = numpy.concatenate([maxima, scores[:, whole:].max(1, keepdims=True)], 1)
    blocks = maxima.shape[1]
    if blocks < width:
        least = numpy.partition(scores, size - width, axis=1)[:, size - width]
    else:
        least = numpy.partition(maxima, blocks - width, axis=1)[:, blocks - width]
    possible = numpy.maximum(least, numpy.finfo(scores.dtype).min)  # so that -inf is not
    with numpy.errstate(invalid="ignore"):
        where, tokens = numpy.nonzero(scores >= possible[:, None])
    values = scores[where, tokens].astype(numpy.float64)
    order = numpy.lexsort((-values, where))  # stable: tokens stay in order
    values, tokens = values[order], tokens[order]
    ends = numpy.searchsorted(where, numpy.arange(rows + 1)).tolist()
    broken = set(numpy.flatnonzero(numpy.isnan(maxima).any(1)).tolist())
    out = []
    for row in range(rows):
        cut = slice(ends[row], min(ends[row] + width, ends[row + 1]))
        out.append(([float("nan")], [0]) if row in broken else (values[cut].tolist(), tokens[cut].tolist()))
    return out


def best_of_list(row: Sequence[float], what: str, width: float) -> tuple[list[float], list[int]]:
    """As `best_of_each`, of one short row of plain numbers, without numpy."""
    try:
        values = [float(value) for value in row]
    except (TypeError, ValueError):
        raise BrokenLaw(f"{what} must be a row of numbers, got {_kind(row)}") from None
    if any(value != value for value in values):
        return [float("nan")], [0]
    best = sorted((-value, token) for token, value in enumerate(values) if value != -inf)[: int(min(width, len(values)))]
    return [-value for value, _ in best], [token for _, token in best]
