"""Pilot: takes a decode onto the device where that can be done, and gives back what it could not do."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from math import ceil
from typing import TYPE_CHECKING

import torch

from ...scheduler import Stats
from ...scheduler.scheduler import no_garbage_collection
from ...search import Result
from ..steps.choose import Fingerprint, untouched
from .entry import Entrant
from .flight import BUCKETS, Flight
from .state import Shape, bytes_each
from .weights import Weights

if TYPE_CHECKING:
    from ...decoding import Read, Task
    from ...models.transformers import TransformersModel

BATCH = 512  # inputs that are read together
WINDOW = 1 << 15  # inputs that are read before it is decided how much room is needed
MOST_INPUTS = 2048  # in flight
MOST_NODES = 1 << 24
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
        self._inputs: Iterator[Read] = iter(())
        self._pending: dict[int, Read] = {}  # read, and not done yet
        self.stats = Stats()

    def run(self, inputs: Iterator[Read]) -> Iterator[tuple[int, Result]]:
        """Decode; yields each input's number and result as it is done."""
        self._inputs = inputs
        with no_garbage_collection():
            try:
                while batch := self._batch(BATCH):
                    yield from self._decode(batch)
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
                self.left = [*self._pending.values(), *inputs]

    def _batch(self, size: int) -> list[Entrant]:
        """The next inputs."""
        batch = []
        n_max, pending = self.task.n_max, self._pending
        for read in islice(self._inputs, size):
            index, _, source = read
            limit = n_max(source)
            if limit < 1:
                raise ValueError(f"max_length must be at least 1, got {limit}")
            pending[index] = read
            batch.append(Entrant(index, source, limit))
        return batch

    def _decode(self, batch: list[Entrant]) -> Iterator[tuple[int, Result]]:
        """This batch and all that follow, as long as they fit into the flight."""
        flight = self._kept(batch)
        if flight is None:  # look at more inputs before it is decided how much room they need
            batch += self._batch(WINDOW)
            flight = self._new(batch)
        for entrant, result in flight.run(self._batches(flight, batch)):
            if not flight.trusted:
                self._check(entrant, result)
                flight.trusted = True
            del self._pending[entrant.index]
            yield entrant.index, result
        self.stats.rows += flight.rows
        self.stats.steps += flight.steps
        self.stats.model_seconds += flight.seconds
        self.stats.in_flight = max(self.stats.in_flight, flight.most_in_flight)
        self.stats.cache_tokens = max(self.stats.cache_tokens, flight.most_tokens)

    def _batches(self, flight: Flight, batch: list[Entrant]) -> Iterator[list[Entrant]]:
        while batch and flight.shape.fits(self._needs(batch)):
            yield batch
            batch = self._batch(BATCH)
        self._inputs = chain((self._pending.pop(entrant.index) for entrant in batch), self._inputs)

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

    def _kept(self, batch: Sequence[Entrant]) -> Flight | None:
        """The flight of the last decode, if the weights are the same and there is room in it."""
        kept: tuple[Fingerprint, Flight] | None = self.model.flight
        if kept is not None and kept[0].holds(self.model.model) and kept[1].shape.fits(self._needs(batch)):
            return kept[1]
        self.model.flight = None
        return None

    def _new(self, entrants: Sequence[Entrant]) -> Flight:
        inputs = MOST_INPUTS
        while True:
            try:
                flight = Flight(self.model, self._roomy(entrants, inputs))
                break
            except torch.OutOfMemoryError:  # fewer at a time
                if inputs == 1:
                    raise
                inputs = ceil(inputs / 2)
                torch.cuda.empty_cache()
        self.model.flight = (Fingerprint(self.model.model), flight)
        return flight

    def _needs(self, entrants: Sequence[Entrant]) -> Shape:
        """The least room that these inputs can be decoded in."""
        k, prompt = int(self.task.plan.k), entrants[0].source.payload.tokens
        lengths = max(entrant.n_max for entrant in entrants) + len(prompt) + 1
        width = min(k + len(self.model.eos), self.model.model.get_output_embeddings().weight.shape[0])
        source = max(len(entrant.source.payload.source) for entrant in entrants)
        return Shape(k, self.task.nbest, self.task.accept_truncated, 1, source, lengths, 0, width, prompt)

    def _roomy(self, entrants: Sequence[Entrant], most: int) -> Shape:
        """Room for as many of these at a time as the memory allows, and for inputs that are a little longer."""
        needs = self._needs(entrants)
        inputs = min(most, 1 << (len(entrants) - 1).bit_length())
        shape = replace(needs, source=-(-needs.source // 32) * 32, lengths=-(-needs.lengths // 64) * 64)
        each, node = bytes_each(shape, Weights.bytes_of_a_token(self.model.model))
        room = free_memory(self.model.model.device) * MOST_MEMORY
        inputs = max(1, min(inputs, int(room / 2 / each)))
        nodes = inputs * min(shape.k * shape.lengths, NODES_EACH + 24 * shape.k) + BUCKETS[-1]
        return replace(shape, inputs=inputs, nodes=int(min(nodes, (room - inputs * each) / node, MOST_NODES)))


def free_memory(device: torch.device) -> float:
    """Bytes, those that torch keeps for itself included."""
    if device.type != "cuda":
        return 1e9
    free, _ = torch.cuda.mem_get_info(device)
    return float(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
