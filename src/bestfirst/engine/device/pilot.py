"""Pilot: takes a decode onto the device where that can be done, and gives back what it could not do."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING, Any

import torch

from ...scheduler import Stats
from ...scheduler.scheduler import no_garbage_collection
from ...search import Result
from ..choose import untouched, weights
from .flight import BUCKETS, Entrant, Flight
from .state import Shape, bytes_each
from .weights import Weights

if TYPE_CHECKING:
    from ...decoding import Read, Task
    from ...models.transformers import TransformersModel

WINDOW = 1 << 15  # inputs that are read ahead and sorted by length
MOST_INPUTS = 2048  # in flight
MOST_MEMORY = 0.4  # of what is free on the device
NODES_EACH = 512  # and 24 times the beam: room for an input's search, on average; if it does not do, inputs make room
LARGEST_BEAM = 512


def takes(model: TransformersModel, task: Task) -> bool:
    """Whether a decode of this kind can run on the device: log-probability, best-first, `leave`, an architecture known here."""
    plan, score = task.plan, task.score
    return (
        plan.name == "best-first"
        and plan.stop.name == "answered"
        and plan.heuristic is None
        and plan.queue_capacity is None
        and plan.finished == "leave"
        and 1 <= task.nbest <= plan.k <= LARGEST_BEAM
        and task.max_calls is None
        and score.plain
        and score.value_only
        and model.encoder_decoder
        and not model.speech
        and Weights.takes(model.model)
        and untouched(model.model)
    )


class Pilot:
    """One decode. `left`: what has to be decoded elsewhere, once `run` is through; nothing, unless the device failed."""

    def __init__(self, model: TransformersModel, task: Task) -> None:
        self.model = model
        self.task = task
        self.left: list[Read] = []
        self.stats = Stats()

    def run(self, inputs: Iterator[Read]) -> Iterator[tuple[int, Result]]:
        """Decode; yields each input's number and result as it is done."""
        with no_garbage_collection():
            while window := list(islice(inputs, WINDOW)):
                waiting = {each[0]: each for each in window}
                try:
                    for index, result in self._decode(window):
                        del waiting[index]
                        yield index, result
                except ValueError:
                    self.model.flight = None
                    raise
                except Exception as error:  # memory, a compiler or a driver that refuses: the searches can be run elsewhere
                    self.model.flight = None
                    warnings.warn(
                        f"decoding on the device failed ({type(error).__name__}: {str(error).strip().split(chr(10))[0]}): "
                        "falling back to a slower path. Results are the same.",
                        stacklevel=2,
                    )
                    self.left = [*waiting.values(), *inputs]
                    return

    def _decode(self, window: Sequence[Read]) -> Iterator[tuple[int, Result]]:
        """Of a window, the longest inputs are let in first."""
        entrants = [Entrant(index, source, self.task.n_max(source)) for index, _, source in window]
        if any(entrant.n_max < 1 for entrant in entrants):
            raise ValueError(f"max_length must be at least 1, got {min(entrant.n_max for entrant in entrants)}")
        entrants.sort(key=lambda entrant: len(entrant.source.payload.source))
        flight = self._flight(entrants)
        for entrant, result in flight.run(entrants):
            if not flight.trusted:
                self._check(entrant, result)
                flight.trusted = True
            yield entrant.index, result
        self.stats.rows += flight.rows
        self.stats.steps += flight.steps
        self.stats.model_seconds += flight.seconds
        self.stats.in_flight = max(self.stats.in_flight, flight.most_in_flight)
        self.stats.cache_tokens = max(self.stats.cache_tokens, flight.most_tokens)

    def _check(self, entrant: Entrant, result: Result) -> None:
        """The first answer of a new flight must be worth what the model itself says: no kernel is trusted unseen."""
        prompt = entrant.source.payload
        answer = result.hypotheses[0] if result.hypotheses else result.partial
        if answer is None or not answer.tokens:
            return
        with torch.inference_mode():
            given = torch.tensor([[*prompt.tokens, *answer.tokens]], device=self.model.model.device)
            logits = self.model.logits(prompt, given[:, :-1])[0, len(prompt.tokens) - 1 :].float()
            own = float(logits.log_softmax(-1).gather(1, given[0, len(prompt.tokens) :, None]).double().sum())
        precise = self.model.model.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
        if not abs(own - answer.logprob) <= (1e-3 if precise else 0.1) * (1 + len(answer.tokens)):
            raise RuntimeError(f"an answer's log-probability is {answer.logprob:.4f} by its kernels, {own:.4f} by the model")

    def _flight(self, window: Sequence[Entrant]) -> Flight:
        """The flight of the last decode, if there is room in it and the weights are the same; else a new one."""
        seen = weights(self.model.model)
        kept: tuple[Any, Flight] | None = self.model.flight
        wanted = self._shape(window)
        if kept is not None and kept[0] == seen and kept[1].shape.fits(wanted):
            return kept[1]
        self.model.flight = None
        del kept
        inputs = wanted.inputs
        while True:
            try:
                flight = Flight(self.model, self._shape(window, inputs))
                break
            except torch.OutOfMemoryError:  # fewer at a time
                if inputs == 1:
                    raise
                inputs = ceil(inputs / 2)
                torch.cuda.empty_cache()
        self.model.flight = (seen, flight)
        return flight

    def _shape(self, window: Sequence[Entrant], most: int = MOST_INPUTS) -> Shape:
        """Room for the inputs of a window, or for as many of them as the memory allows; a little more, to serve again."""
        k, prompt = int(self.task.plan.k), window[-1].source.payload.tokens
        longest = max(entrant.n_max for entrant in window) + len(prompt)
        inputs = min(most, 1 << (len(window) - 1).bit_length())
        source = -(-len(window[-1].source.payload.source) // 32) * 32
        lengths = -(-(longest + 1) // 64) * 64
        width = min(k + len(self.model.eos), self.model.model.config.get_text_config(decoder=True).vocab_size)
        shape = Shape(k, self.task.nbest, self.task.accept_truncated, inputs, source, lengths, 0, width, prompt)
        each, node = bytes_each(shape, Weights.bytes_of_a_token(self.model.model))
        room = free_memory(self.model.model.device) * MOST_MEMORY
        inputs = max(1, min(inputs, int(room / 2 / each)))
        nodes = int(min(inputs * min(k * longest, NODES_EACH + 24 * k) + BUCKETS[-1], (room - inputs * each) / node, 1 << 24))
        return Shape(k, self.task.nbest, self.task.accept_truncated, inputs, source, lengths, nodes, width, prompt)


def free_memory(device: torch.device) -> float:
    """Bytes, those that torch keeps for itself included."""
    if device.type != "cuda":
        return 1e9
    free, _ = torch.cuda.mem_get_info(device)
    return float(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
