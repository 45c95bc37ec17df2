"""Landing: inputs that are done, their results on the way from the device to the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


@dataclass
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
    """Tensors that are on their way to the host, behind all that was queued on the device before."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._event: Any = None
        if not tensors[0].is_cuda:
            self._tensors = [tensor.clone() for tensor in tensors]
            return
        self._tensors = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
        for mine, tensor in zip(self._tensors, tensors, strict=True):
            mine.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def here(self) -> bool:
        return self._event is None or bool(self._event.query())

    def wait(self) -> list[Any]:
        """The tensors as arrays."""
        if self._event is not None:
            self._event.synchronize()
        return [tensor.numpy() for tensor in self._tensors]


class Landing:
    """Some inputs that are done. Made without waiting for the device; the first of `results` waits."""

    def __init__(self, model: TransformersModel, state: State, entrants: Sequence[Entrant], slots: torch.Tensor) -> None:
        self._model = model
        self._entrants = entrants
        shape, device, many = state.shape, slots.device, len(slots)
        numbers = torch.empty(many, 3 + shape.n, dtype=torch.int32, device=device)
        values = torch.empty(many, shape.n, dtype=torch.float64, device=device)
        tokens = torch.empty(many, shape.n, shape.lengths, dtype=torch.int32, device=device)
        settle[(many,)](
            slots, state.value, state.entry, state.node, state.count, state.token, state.paths, state.node_token, state.deepest,
            state.limit, state.rows, state.steps, state.answers, state.answer_value,
            numbers, values, tokens, shape.n, shape.k, shape.lengths, shape.successors, len(shape.prompt),
            KP=power(shape.k), LP=power(shape.lengths), num_warps=4,
        )  # fmt: skip
        self._mail = Mail(numbers, values, tokens)
        self.results = self._results()

    def here(self) -> bool:
        return self._mail.here()

    def _results(self) -> Iterator[tuple[Entrant, Result]]:
        numbers, values, tokens = self._mail.wait()
        lengths = numbers[:, 3:]
        words = tokens[:, :, : max(1, abs(lengths).max())].tolist()
        rows = zip(self._entrants, numbers[:, :3].tolist(), lengths.tolist(), values.tolist(), words, strict=True)
        for entrant, *found in rows:
            yield entrant, self.result(entrant, *found)

    def result(
        self, entrant: Entrant, counts: list[int], lengths: list[int], values: list[float], tokens: list[list[int]]
    ) -> Result:
        """A length is negative where it is that of the best hypothesis that did not finish, 0 where there is no answer."""
        text, payload = self._model.text, entrant.source.payload
        answers = []
        for length, value, words in zip(lengths, values, tokens, strict=True):
            if length != 0:
                y = tuple(words[: abs(length)])
                answers.append(Answer(y, value, value, text(payload, y)))
        calls, rows, steps = counts
        if lengths[0] > 0:
            return Result(answers, calls, rows, steps, exact=True, status="complete")
        partial = answers[0] if answers else Answer((), 0.0, 0.0, text(payload, ()))
        return Result([], calls, rows, steps, exact=True, status="incomplete", partial=partial)
