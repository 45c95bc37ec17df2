"""FewBest: the first tokens of some rows by one model; and the first by the mean of several, without all the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .numbers import best_of_each

CLOSE = 1e-5  # rounding of log-probabilities


class FewBest(NamedTuple):
    """What one model has to say of some rows: its first tokens and their log-probabilities, (rows, count), best first; logits
    (rows, vocabulary), where log-softmax takes the same off all of a row; and the states to go on from."""

    values: Any
    tokens: Any
    logits: Any
    states: list[Any]

    def logprobs(self, tokens: Any) -> Any:
        """Of any tokens, (rows, any)."""
        import numpy

        rows = numpy.arange(len(tokens))[:, None]
        return self.logits[rows, tokens].astype(numpy.float64) - self._taken_off

    def row(self, row: int) -> Any:
        """Of all tokens of a row."""
        import numpy

        return self.logits[row].astype(numpy.float64) - self._taken_off[row]

    @property
    def _taken_off(self) -> Any:
        import numpy

        first = numpy.take_along_axis(self.logits, self.tokens[:, :1], 1)
        return first.astype(numpy.float64) - self.values[:, :1]


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
        values = mean([part.logprobs(tokens) for part in parts])
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
                out += best_of_each(mean([part.row(row) for part in parts])[None], width)
    return out
