"""Capacity: the `Shape` that jobs need on the device, and the one to allocate given the free memory."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch

from ...constraints.trie import Trie
from ...models.transformers import TransformersModel
from ...settings import Decoding
from ..engine import Job
from .device_bart import DeviceBart
from .device_step import CapturedStep, DeviceStep
from .drafted_step import DraftedStep, DraftModels, drafts_for
from .kernels.matmul import power
from .modules.own_modules import OwnModules
from .rules import temperature_bits
from .state import Shape, bytes_per_input_and_node

_log = logging.getLogger(__name__)

MOST_INPUTS = 2048  # in flight
MOST_WIDE = 64  # with wide beams: while the next are searched, thousands of answers of the previous ones are made
ROOMS = (4, 32, 256)  # inputs that a session is made for where no more wait
MOST_NODES = 1 << 24
MOST_MEMORY = 0.4  # part of the free device memory that a session may take
NODES_EACH = 512  # plus 24 times the beam: nodes of an input on average; when they run out, inputs are evicted


class Capacity:
    """What jobs on a model need. `modules`: the model's own modules as the device runs them; None if kernels replace them."""

    def __init__(self, model: TransformersModel, modules: OwnModules | None) -> None:
        self.model = model
        self.modules = modules
        self._drafts: tuple[Decoding | None, DraftModels | None] = (None, None)

    def drafts(self, job: Job) -> DraftModels | None:
        """The models that draft for this job on the device; None if it asks for no draft or the device has none for it."""
        decoding = job.decoding
        if decoding.draft is None or (job.edits is not None and job.edits.callback is not None):
            return None
        if decoding is not self._drafts[0]:  # nearly always the settings of the previous job
            self._drafts = (decoding, drafts_for(self.modules, decoding))
            if self._drafts[1] is None and decoding.draft != "none":
                _log.info("no drafts: the device has none for this model, drafter and strategy, and is faster than the host with")
        return self._drafts[1]

    def step_class(self, drafts: DraftModels | None) -> type[DeviceStep]:
        """The class that runs a forward pass."""
        return DeviceStep if self.modules is None else CapturedStep if drafts is None else DraftedStep

    def prompt(self, job: Job) -> tuple[int, ...]:
        """The prompt that all outputs start from. (0,) for language models, whose prompts differ and count as source."""
        tokens: tuple[int, ...] = job.source.payload.tokens
        return tokens if self.model.encoder_decoder else (0,)

    def source_tokens(self, job: Job) -> int:
        """How many tokens of an input are encoded or prefilled."""
        prompt = job.source.payload
        return int(prompt.length) if self.model.encoder_decoder else max(1, len(prompt.tokens) - 1)

    def needs(self, jobs: Sequence[Job]) -> Shape:
        """The smallest shape that these jobs can be decoded in."""
        settings = {id(job.decoding): job.decoding for job in jobs}.values()
        k, prompt = max(int(each.plan.k) for each in settings), self.prompt(jobs[0])
        lengths = max(job.n_max for job in jobs) + len(prompt) + 1
        width = min(k + max(len(each.ending(self.model.eos)) for each in settings), self.model.vocabulary)
        source, most = max(map(self.source_tokens, jobs)), max(each.nbest for each in settings)
        edits = [job.edits for job in jobs if job.edits is not None]
        code, given = max((len(each.code) // 4 for each in edits), default=0), max((len(each.given) for each in edits), default=0)
        trie = max((len(each.allowed.tokens) for each in settings if isinstance(each.allowed, Trie)), default=0)
        times = 1 if self.drafts(jobs[0]) is None else 2
        banned, keep = bool(self.model.banned), any(each.plan.finished == "keep" for each in settings)
        heated = any(temperature_bits(each.objective) for each in settings)
        return Shape(k, most, 1, source, lengths, 0, width, len(prompt), banned, code, given, trie, times, keep, heated)

    def compatible(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs that can run in a session for the first, with it or after it: all have a trie or none has, and they have the
        same draft models."""
        unconstrained, drafts = jobs[0].decoding.allowed is None, self.drafts(jobs[0])
        return [job for job in jobs if (job.decoding.allowed is None) is unconstrained and self.drafts(job) == drafts]

    def shape_for(self, jobs: Sequence[Job], inputs: int, previous: Shape | None = None) -> Shape:
        """A shape for `inputs` at a time, or as many as fit into memory, with reserve for longer inputs; no shorter than
        `previous`."""
        needs = self.needs(jobs)
        if previous is not None:
            needs = replace(needs, source=max(needs.source, previous.source), lengths=max(needs.lengths, previous.lengths))
        multiple = 16 if needs.wide and needs.lengths <= 16 else 64
        shape = replace(needs, source=-(-needs.source // 32) * 32, lengths=-(-needs.lengths // multiple) * multiple)
        shape = replace(shape, trie=power(needs.trie) if needs.trie else 0)
        if needs.code:
            shape = replace(shape, code=max(256, power(needs.code)), given=power(needs.given) if needs.given else 0)
        drafts = self.drafts(jobs[0])
        weights = self.modules and (drafts or self.modules)
        token = DeviceBart.bytes_of_a_token(self.model.model) if weights is None else weights.bytes_of_a_token
        per_input, per_node = bytes_per_input_and_node(shape, token)
        memory = free_memory(self.model.model.device) * MOST_MEMORY
        alive = min(shape.k * (needs if shape.wide else shape).lengths, NODES_EACH + 24 * shape.k)
        if shape.wide:  # few such inputs fill a step: reserve all nodes that they can use
            inputs = min(inputs, MOST_WIDE, max(1, int(memory / (per_input + alive * per_node))))
        inputs = max(1, min(inputs, int(memory / 2 / per_input)))
        nodes = inputs * alive * shape.times + self.step_class(drafts).buckets_for(shape, self.model.vocabulary)[-1]
        return replace(shape, inputs=inputs, nodes=int(min(nodes, (memory - inputs * per_input) / per_node, MOST_NODES)))


def inputs_for(waiting: int) -> int:
    """How many inputs at a time a session should take if so many wait. A whole batch may be followed by more."""
    return next((inputs for inputs in ROOMS if waiting <= inputs), MOST_INPUTS)


def free_memory(device: torch.device) -> float:
    """Free bytes, those that torch's allocator caches included."""
    if device.type != "cuda":
        return 1e9
    available, _ = torch.cuda.mem_get_info(device)
    return float(available + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
