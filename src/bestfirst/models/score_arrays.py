"""Numbers: what models return, as numbers: lists, arrays and tensors become float64, are checked, and the best are found, by one
model or by the mean of several.

Tokens are chosen by the numbers as they are, for float64 keeps their order; what is added up is float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, NamedTuple

from ..search import BrokenLaw

SHORT = 512  # lists of so many numbers together are sorted sooner than they are made an array
FEW = 8  # rows
CLOSE = 1e-5  # rounding of log-probabilities
BLOCK = 64  # tokens of which only the best is looked at first


def numbers(row: Any, what: object, nan: bool = False) -> Any:
    """A row of whatever kind as float64, if it has one dimension and, but for `nan`, no NaN."""
    import numpy

    found = _array(row, what).astype(numpy.float64, copy=False)
    if not nan and numpy.isnan(found).any():
        raise ValueError(f"{what} contain NaN")
    return found


def _array(row: Any, what: object, dimensions: int = 1) -> Any:
    """An array of float32 or float64: half precision becomes float32, in which all of it fits."""
    import numpy

    if hasattr(row, "detach"):  # a tensor, of any dtype and on any device
        row = row.detach()
        row = (row.float() if row.dtype.itemsize < 4 else row).cpu().numpy()
    try:
        found = numpy.asarray(row if row is not None else "")
        if found.dtype != numpy.float32:
            found = found.astype(numpy.float32 if found.dtype == numpy.float16 else numpy.float64, copy=False)
    except (TypeError, ValueError):
        raise BrokenLaw(f"{what} must be a row of numbers, got {_kind(row)}") from None
    if found.ndim != dimensions:
        raise BrokenLaw(f"{what} must be one row, a number for each token, got an array of shape {found.shape}")
    return found


def _kind(row: Any) -> str:
    odd = next((value for value in row if not isinstance(value, (int, float))), None) if isinstance(row, (list, tuple)) else None
    name = "None" if row is None else type(row).__name__
    return name if odd is None else f"a {name} with {odd!r:.40}"


def few_rows(rows: int) -> Iterator[slice]:
    """Rows, so few at a time that what is made of them stays in a processor's cache."""
    return (slice(first, first + FEW) for first in range(0, rows, FEW))


def together(rows: Sequence[Any]) -> Any:
    """The rows of one model as one array, not to be written to: (rows, vocabulary), float32 or float64."""
    import numpy

    found = matrix(rows, "the model's scores")
    return numpy.stack([_array(row, "the model's scores") for row in rows]) if found is None else found


def matrix(rows: Sequence[Any], what: object) -> Any:
    """Rows of one kind and length as one array, (rows, vocabulary); None where they differ, or one is no row."""
    import numpy

    if len({type(row) for row in rows}) > 1:
        return None
    if isinstance(rows[0], (list, tuple)):
        try:
            found = numpy.array(rows, numpy.float64)
        except (TypeError, ValueError):
            return None  # the row that is none is found and named when each is read by itself
        return found if found.ndim == 2 else None
    shapes = {getattr(row, "shape", ()) for row in rows}
    if len(shapes) > 1 or len(shapes.pop()) != 1:
        return None
    if hasattr(rows[0], "detach"):
        import torch

        return _array(torch.stack(list(rows)), what, 2)
    return _array(_stacked(rows), what, 2)


def _stacked(rows: Sequence[Any]) -> Any:
    """As numpy's `stack`. Where they are rows of one array, one after another, it is looked at and not copied."""
    import numpy

    first = rows[0]
    alike = first.base is not None and all(row.base is first.base and row.strides == first.strides for row in rows)
    places = [row.__array_interface__["data"][0] for row in rows] if alike else []
    apart = places[1] - places[0] if len(places) > 1 else 0
    if not alike or places != [places[0] + i * apart for i in range(len(rows))]:
        return numpy.stack(rows)
    return numpy.lib.stride_tricks.as_strided(first, (len(rows), *first.shape), (apart, *first.strides), writeable=False)


def best_of_rows(rows: Sequence[Any], whats: Sequence[object], width: float) -> list[tuple[list[float], list[int]]]:
    """The best tokens of each row, whatever the rows are: in one go where they are of one kind."""
    if all(isinstance(row, (list, tuple)) for row in rows) and sum(map(len, rows)) <= SHORT:
        return [best_of_list(row, what, width) for row, what in zip(rows, whats, strict=True)]
    if (scores := matrix(rows, whats[0])) is not None:
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
    maxima = scores[:, :whole].reshape(rows, BLOCK, -1).max(1)  # which tokens make a block does not matter
    if whole < size:
        maxima = numpy.concatenate([maxima, scores[:, whole:].max(1, keepdims=True)], 1)
    blocks = maxima.shape[1]
    if blocks < width:
        least = numpy.partition(scores, size - width, axis=1)[:, size - width]
    else:
        least = numpy.partition(maxima, blocks - width, axis=1)[:, blocks - width]
    possible = numpy.maximum(least, numpy.finfo(scores.dtype).min)  # so that -inf is not
    with numpy.errstate(invalid="ignore"):
        reach = numpy.flatnonzero(scores >= possible[:, None])  # of a matrix, numpy's `nonzero` is many times slower
    where, tokens = numpy.divmod(reach, size)
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


def best_of_list(row: Sequence[float], what: object, width: float) -> tuple[list[float], list[int]]:
    """As `best_of_each`, of one short row of plain numbers, without numpy."""
    try:
        values = [float(value) for value in row]
    except (TypeError, ValueError):
        raise BrokenLaw(f"{what} must be a row of numbers, got {_kind(row)}") from None
    if any(value != value for value in values):
        return [float("nan")], [0]
    best = sorted((-value, token) for token, value in enumerate(values) if value != -inf)[: int(min(width, len(values)))]
    return [-value for value, _ in best], [token for _, token in best]


class FewBest(NamedTuple):
    """What one model has to say of some rows: its first tokens and their log-probabilities, (rows, count), best first; logits
    (rows, vocabulary), where log-softmax takes the same off all of a row; and the states to go on from."""

    values: Any
    tokens: Any
    logits: Any
    states: list[Any]

    def logprobs(self, rows: Any, tokens: Any) -> Any:
        """Of some tokens of some rows."""
        import numpy

        first = numpy.take_along_axis(self.logits, self.tokens[:, :1], 1)[:, 0]
        taken_off = first.astype(numpy.float64) - self.values[:, 0]
        return self.logits[rows, tokens].astype(numpy.float64) - taken_off[rows]


def best_of_mean(parts: Sequence[FewBest], weights: Sequence[float], width: int) -> list[tuple[list[float], list[int]]]:
    """Of each row the `width` best by the weighted mean of probabilities, of equals the smaller token first, and the mean's
    logarithms. What is among no model's first is no likelier than the mean of their last: the threshold algorithm (Fagin et al.
    2001). Rows whose best are not certain by then are computed as a whole."""
    import numpy

    shares = numpy.log(weights)

    def mean(logs: Sequence[Any]) -> Any:
        found = logs[0] + shares[0]
        for each, share in zip(logs[1:], shares[1:], strict=True):
            found = numpy.logaddexp(found, each + share)
        return numpy.minimum(found, 0)

    tokens = numpy.concatenate([part.tokens for part in parts], 1)
    with numpy.errstate(invalid="ignore"):  # what is -inf everywhere, or NaN
        values = mean([part.logprobs(numpy.arange(len(tokens))[:, None], tokens) for part in parts])
        unseen = mean([part.values[:, -1].astype(numpy.float64) for part in parts])
        order = numpy.lexsort((tokens, -values))
        tokens, values = numpy.take_along_axis(tokens, order, 1), numpy.take_along_axis(values, order, 1)
        new = numpy.ones(tokens.shape, bool)
        new[:, 1:] = tokens[:, 1:] != tokens[:, :-1]  # one that several models have among their first stands side by side
        last = numpy.argmax(new.cumsum(1) == width, 1)
        certain = values[numpy.arange(len(values)), last] > unseen + CLOSE
    out = []
    for row, is_certain in enumerate(certain.tolist()):
        if is_certain:
            kept = new[row, : last[row] + 1]
            out.append((values[row, : last[row] + 1][kept].tolist(), tokens[row, : last[row] + 1][kept].tolist()))
        else:
            with numpy.errstate(invalid="ignore"):
                out += best_of_each(mean([part.logprobs(row, slice(None)) for part in parts])[None], width)
    return out
