"""Landing: inputs that are done, their results on the way from the device to the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...search import Answer, Result
from .answers import settle
from .entry import Entrant
from .mail import Mail
from .products import power
from .state import State

if TYPE_CHECKING:
    from ...models.transformers import TransformersModel


class Landing:
    """Some inputs that are done, marked as leaving. Made without waiting for the device; the first of `results` waits."""

    def __init__(self, model: TransformersModel, state: State, entrants: Sequence[Entrant], slots: torch.Tensor) -> None:
        self._model = model
        self._entrants = entrants
        shape, many = state.shape, len(slots)
        # One transfer: of each answer its value and tokens, of each input its counts.
        self._shapes = (many, shape.n, 2), (many, shape.n, shape.lengths), (many, 3 + shape.n)
        out = torch.empty(sum(map(prod, self._shapes)), dtype=torch.int32, device=slots.device)
        values, tokens, numbers = out.split([prod(shape) for shape in self._shapes])
        settle[(many,)](
            slots, state.value, state.entry, state.node, state.count, state.token, state.paths, state.node_token, state.deepest,
            state.limit, state.rows, state.steps, state.answers, state.answer_value, state.status,
            numbers, values.view(torch.float64), tokens, shape.n, shape.k, shape.lengths, shape.successors, len(shape.prompt),
            KP=power(shape.k), LP=power(shape.lengths), num_warps=4,
        )  # fmt: skip
        self._mail = Mail(out)
        self.results = self._results()

    def here(self) -> bool:
        return self._mail.here()

    def _results(self) -> Iterator[tuple[Entrant, Result]]:
        parts = np.split(self._mail.wait(), np.cumsum([prod(shape) for shape in self._shapes])[:-1])
        values, tokens, numbers = (part.reshape(shape) for part, shape in zip(parts, self._shapes, strict=True))
        lengths = numbers[:, 3:].tolist()
        worth = values.view(np.float64)[:, :, 0].tolist()
        words = tokens[:, :, : max(1, abs(numbers[:, 3:]).max())].tolist()
        for each in zip(self._entrants, numbers[:, :3].tolist(), lengths, worth, words, strict=True):
            yield each[0], self.result(*each)

    def result(
        self, entrant: Entrant, counts: list[int], lengths: list[int], values: list[float], tokens: list[list[int]]
    ) -> Result:
        """A length is negative where it is that of the best hypothesis that did not finish, 0 where there is no answer."""
        text, payload = self._model.text, entrant.source.payload
        answers = []
        for length, value, words in zip(lengths, values, tokens, strict=True):
            if length:
                y = tuple(words[: abs(length)])
                answers.append(Answer(y, value, value, text(payload, y)))
        calls, rows, steps = counts
        if lengths[0] > 0:
            return Result(answers, calls, rows, steps, 0, True, "complete")
        partial = answers[0] if answers else Answer((), 0.0, 0.0, text(payload, ()))
        return Result([], calls, rows, steps, 0, True, "incomplete", None, partial)
