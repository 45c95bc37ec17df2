"""Score rows that models return (lists, arrays, tensors): conversion, checks, and top-k, also of the mean of several models.

Top-k runs in the dtype of the scores, since conversion to float64 keeps their order; the values returned, which the search sums
up, are float64. Ties go to the smaller token id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, NamedTuple

from ..search import BrokenLaw

SORTED_AS_LISTS = 512  # up to this many numbers in all, sorting lists is faster than converting them to an array
ROWS_PER_BLOCK = 8
MEAN_ROUNDING = 1e-5  # margin for the rounding of the mean of several models
BLOCK_TOKENS = 64  # tokens per block in the first pass of top-k, which only looks at the maximum of each block


def as_float64(row: Any, label: object, nan: bool = False) -> Any:
    """A row of any kind as a float64 array (vocabulary,). BrokenLaw if it is not one row of numbers; ValueError if it contains
    NaN, unless `nan` allows that. `label` names the row in the message."""
    import numpy

    found = _as_array(row, label).astype(numpy.float64, copy=False)
    if not nan and numpy.isnan(found).any():
        raise ValueError(f"{label} contain NaN")
    return found


def _as_array(row: Any, label: object, dimensions: int = 1) -> Any:
    """A float32 or float64 array with this many dimensions; half precision becomes float32, which represents it exactly."""
    import numpy

    if hasattr(row, "detach"):  # a torch tensor of any dtype on any device; torch need not be installed
        row = row.detach()
        row = (row.float() if row.dtype.itemsize < 4 else row).cpu().numpy()
    try:
        found = numpy.asarray(row if row is not None else "")
        if found.dtype != numpy.float32:
            found = found.astype(numpy.float32 if found.dtype == numpy.float16 else numpy.float64, copy=False)
    except (TypeError, ValueError):
        raise BrokenLaw(f"{label} must be a row of numbers, got {_describe(row)}") from None
    if found.ndim != dimensions:
        raise BrokenLaw(f"{label} must be one row, a number for each token, got an array of shape {found.shape}")
    return found


def _describe(row: Any) -> str:
    """The type of an invalid row for an error message, with its first element that is not a number."""
    odd = next((value for value in row if not isinstance(value, (int, float))), None) if isinstance(row, (list, tuple)) else None
    name = "None" if row is None else type(row).__name__
    return name if odd is None else f"a {name} with {odd!r:.40}"


def row_blocks(rows: int) -> Iterator[slice]:
    """Slices over `rows` rows, of `ROWS_PER_BLOCK` each, so that intermediate results stay in the CPU cache."""
    return (slice(first, first + ROWS_PER_BLOCK) for first in range(0, rows, ROWS_PER_BLOCK))


def stack_rows(rows: Sequence[Any]) -> Any:
    """The rows of one model as one read-only array (rows, vocabulary), float32 or float64. BrokenLaw for an invalid row."""
    import numpy

    found = stack_alike(rows, "the model's scores")
    return numpy.stack([_as_array(row, "the model's scores") for row in rows]) if found is None else found


def stack_alike(rows: Sequence[Any], label: object) -> Any:
    """Rows of the same type and length as one array (rows, vocabulary); None if they differ, or one is not a row."""
    import numpy

    if len({type(row) for row in rows}) > 1:
        return None
    if isinstance(rows[0], (list, tuple)):
        try:
            found = numpy.array(rows, numpy.float64)
        except (TypeError, ValueError):
            return None  # the caller converts the rows one by one, which names the invalid one
        return found if found.ndim == 2 else None
    shapes = {getattr(row, "shape", ()) for row in rows}
    if len(shapes) > 1 or len(shapes.pop()) != 1:
        return None
    if hasattr(rows[0], "detach"):
        import torch

        return _as_array(torch.stack(list(rows)), label, 2)
    return _as_array(_stack_arrays(rows), label, 2)


def _stack_arrays(rows: Sequence[Any]) -> Any:
    """Like `numpy.stack`, but a view without a copy if the arrays are equally spaced rows of one array. Read-only."""
    import numpy

    first = rows[0]
    same_base = first.base is not None and all(row.base is first.base and row.strides == first.strides for row in rows)
    addresses = [row.__array_interface__["data"][0] for row in rows] if same_base else []
    stride = addresses[1] - addresses[0] if len(addresses) > 1 else 0
    if not same_base or addresses != [addresses[0] + i * stride for i in range(len(rows))]:
        return numpy.stack(rows)
    return numpy.lib.stride_tricks.as_strided(first, (len(rows), *first.shape), (stride, *first.strides), writeable=False)


def top_k_rows(rows: Sequence[Any], labels: Sequence[object], width: float) -> list[tuple[list[float], list[int]]]:
    """`top_k_matrix` for rows of any kinds, in one pass if all are alike. `labels` name the rows in error messages."""
    if all(isinstance(row, (list, tuple)) for row in rows) and sum(map(len, rows)) <= SORTED_AS_LISTS:
        return [top_k_list(row, label, width) for row, label in zip(rows, labels, strict=True)]
    if (scores := stack_alike(rows, labels[0])) is not None:
        return top_k_matrix(scores, width)
    return [top_k_matrix(_as_array(row, label)[None], width)[0] for row, label in zip(rows, labels, strict=True)]


def top_k_matrix(scores: Any, width: float) -> list[tuple[list[float], list[int]]]:
    """The top `width` scores and their tokens for each row of (rows, vocabulary), best first, ties by smaller token; -inf is left
    out. A row that contains NaN gives ([nan], [0]). The width-th largest block maximum is a lower bound on the width-th largest
    score, so only scores that reach it are sorted."""
    import numpy

    rows, size = scores.shape
    width = int(min(width, size))
    whole = size - size % BLOCK_TOKENS
    maxima = scores[:, :whole].reshape(rows, BLOCK_TOKENS, -1).max(1)  # blocks are strided: any partition of the tokens will do
    if whole < size:
        maxima = numpy.concatenate([maxima, scores[:, whole:].max(1, keepdims=True)], 1)
    blocks = maxima.shape[1]
    if blocks < width:
        least = numpy.partition(scores, size - width, axis=1)[:, size - width]
    else:
        least = numpy.partition(maxima, blocks - width, axis=1)[:, blocks - width]
    possible = numpy.maximum(least, numpy.finfo(scores.dtype).min)  # excludes -inf
    with numpy.errstate(invalid="ignore"):
        reach = numpy.flatnonzero(scores >= possible[:, None])  # numpy's `nonzero` of a matrix is many times slower
    where, tokens = numpy.divmod(reach, size)
    values = scores[where, tokens].astype(numpy.float64)
    order = numpy.lexsort((-values, where))  # stable: equal scores stay in token order
    values, tokens = values[order], tokens[order]
    ends = numpy.searchsorted(where, numpy.arange(rows + 1)).tolist()
    broken = set(numpy.flatnonzero(numpy.isnan(maxima).any(1)).tolist())
    out = []
    for row in range(rows):
        cut = slice(ends[row], min(ends[row] + width, ends[row + 1]))
        out.append(([float("nan")], [0]) if row in broken else (values[cut].tolist(), tokens[cut].tolist()))
    return out


def top_k_list(row: Sequence[float], label: object, width: float) -> tuple[list[float], list[int]]:
    """`top_k_matrix` for one short row of plain numbers, without numpy."""
    try:
        values = [float(value) for value in row]
    except (TypeError, ValueError):
        raise BrokenLaw(f"{label} must be a row of numbers, got {_describe(row)}") from None
    if any(value != value for value in values):
        return [float("nan")], [0]
    best = sorted((-value, token) for token, value in enumerate(values) if value != -inf)[: int(min(width, len(values)))]
    return [-value for value, _ in best], [token for _, token in best]


class FewBest(NamedTuple):
    """One model's output for some rows: top tokens and their log-probabilities (rows, count), best first; all logits (rows,
    vocabulary), which differ from log-probabilities by a constant per row; and the next states."""

    values: Any
    tokens: Any
    logits: Any
    states: list[Any]

    def logprobs(self, rows: Any, tokens: Any) -> Any:
        """The log-probabilities of these tokens of these rows (numpy fancy indices)."""
        import numpy

        first = numpy.take_along_axis(self.logits, self.tokens[:, :1], 1)[:, 0]
        normalizer = first.astype(numpy.float64) - self.values[:, 0]
        return self.logits[rows, tokens].astype(numpy.float64) - normalizer[rows]


def top_k_of_mean(parts: Sequence[FewBest], weights: Sequence[float], width: int) -> list[tuple[list[float], list[int]]]:
    """The top `width` tokens of each row by the weighted mean of the models' probabilities, and the logarithms of those means.

    A token outside every model's top list is at most as likely as the mean of the lists' last entries: the threshold algorithm
    (Fagin et al. 2001). Rows for which that bound does not settle the top `width` are computed over the whole vocabulary."""
    import numpy

    log_weights = numpy.log(weights)

    def mean(logs: Sequence[Any]) -> Any:
        total = logs[0] + log_weights[0]
        for logprobs, log_weight in zip(logs[1:], log_weights[1:], strict=True):
            total = numpy.logaddexp(total, logprobs + log_weight)
        return numpy.minimum(total, 0)

    tokens = numpy.concatenate([part.tokens for part in parts], 1)
    with numpy.errstate(invalid="ignore"):  # tokens at -inf in all models, or NaN
        values = mean([part.logprobs(numpy.arange(len(tokens))[:, None], tokens) for part in parts])
        unseen = mean([part.values[:, -1].astype(numpy.float64) for part in parts])
        order = numpy.lexsort((tokens, -values))
        tokens, values = numpy.take_along_axis(tokens, order, 1), numpy.take_along_axis(values, order, 1)
        new = numpy.ones(tokens.shape, bool)
        # A token from several models' lists has equal values: its copies are adjacent.
        new[:, 1:] = tokens[:, 1:] != tokens[:, :-1]
        last = numpy.argmax(new.cumsum(1) == width, 1)
        certain = values[numpy.arange(len(values)), last] > unseen + MEAN_ROUNDING
    out = []
    for row, is_certain in enumerate(certain.tolist()):
        if is_certain:
            kept = new[row, : last[row] + 1]
            out.append((values[row, : last[row] + 1][kept].tolist(), tokens[row, : last[row] + 1][kept].tolist()))
        else:
            with numpy.errstate(invalid="ignore"):
                out += top_k_matrix(mean([part.logprobs(row, slice(None)) for part in parts])[None], width)
    return out
