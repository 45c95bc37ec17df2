"""Landing: inputs that are done, their results on the way from the device to the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...search import Answer, Result
from .answers import settle
from .sizes import power
from .state import State

if TYPE_CHECKING:
    from ...models.scorer import Source
    from ...models.transformers import TransformersModel


@dataclass(slots=True)
class Entrant:
    """An input: its number, what the model reads, and the most tokens of its output."""

    index: int
    source: Source
    n_max: int


def sent(numbers: np.ndarray, device: torch.device) -> torch.Tensor:
    """Integers for the device. The host does not wait until they are there: what is sent from ordinary memory, it would."""
    mine = torch.empty(numbers.shape, dtype=torch.int32, pin_memory=device.type == "cuda")
    mine.numpy()[:] = numbers
    return mine.to(device, non_blocking=True)


class Mail:
    """A tensor that is on its way to the host, behind all that was queued on the device before."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._event: Any = None
        if not tensor.is_cuda:
            self._tensor = tensor.clone()
            return
        self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._tensor.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def here(self) -> bool:
        return self._event is None or bool(self._event.query())

    def wait(self) -> Any:
        """The tensor as an array."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor.numpy()


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
