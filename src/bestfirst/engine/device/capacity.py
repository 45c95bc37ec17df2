"""Capacity: how much of it jobs need on the device, and how much there is."""

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
from .rules import heat_of
from .state import Shape, bytes_each

_log = logging.getLogger(__name__)

MOST_INPUTS = 2048  # in flight
MOST_WIDE = 64  # with wide beams: while the next are searched, thousands of answers of the ones before are made
ROOMS = (4, 32, 256)  # inputs that a session is made for where no more wait
MOST_NODES = 1 << 24
MOST_MEMORY = 0.4  # of what is free on the device
NODES_EACH = 512  # and 24 times the beam: room for an input's search, on average; if it does not do, inputs make room


class Capacity:
    """What jobs on a model need, whether it runs by `modules` of its own or by kernels that take their place."""

    def __init__(self, model: TransformersModel, modules: OwnModules | None) -> None:
        self.model = model
        self.modules = modules
        self._drafts: tuple[Decoding | None, DraftModels | None] = (None, None)

    def drafts(self, job: Job) -> DraftModels | None:
        """Who drafts for a job, if anybody does on the device."""
        decoding = job.decoding
        if decoding.draft is None or (job.edits is not None and job.edits.callback is not None):
            return None
        if decoding is not self._drafts[0]:  # nearly always those of the job before
            self._drafts = (decoding, drafts_for(self.modules, decoding))
            if self._drafts[1] is None and decoding.draft != "none":
                _log.info("no drafts: the device has none for this model, drafter and strategy, and is faster than the host with")
        return self._drafts[1]

    def step(self, drafts: DraftModels | None) -> type[DeviceStep]:
        """What runs a forward pass."""
        return DeviceStep if self.modules is None else CapturedStep if drafts is None else DraftedStep

    def start(self, job: Job) -> tuple[int, ...]:
        """What outputs start from where that is the same for all; a language model's start from their own prompts."""
        tokens: tuple[int, ...] = job.source.payload.tokens
        return tokens if self.model.encoder_decoder else (0,)

    def source(self, job: Job) -> int:
        """How many tokens of an input are read."""
        prompt = job.source.payload
        return int(prompt.length) if self.model.encoder_decoder else max(1, len(prompt.tokens) - 1)

    def needs(self, jobs: Sequence[Job]) -> Shape:
        """The least room that these jobs can be decoded in."""
        settings = {id(job.decoding): job.decoding for job in jobs}.values()
        k, prompt = max(int(each.plan.k) for each in settings), self.start(jobs[0])
        lengths = max(job.n_max for job in jobs) + len(prompt) + 1
        width = min(k + max(len(each.ending(self.model.eos)) for each in settings), self.model.vocabulary)
        source, most = max(map(self.source, jobs)), max(each.nbest for each in settings)
        edits = [job.edits for job in jobs if job.edits is not None]
        code, given = max((len(each.code) // 4 for each in edits), default=0), max((len(each.given) for each in edits), default=0)
        trie = max((len(each.allowed.tokens) for each in settings if isinstance(each.allowed, Trie)), default=0)
        times = 1 if self.drafts(jobs[0]) is None else 2
        banned, keep = bool(self.model.banned), any(each.plan.finished == "keep" for each in settings)
        heated = any(heat_of(each.objective) for each in settings)
        return Shape(k, most, 1, source, lengths, 0, width, len(prompt), banned, code, given, trie, times, keep, heated)

    def alike(self, jobs: Sequence[Job]) -> list[Job]:
        """Those that can be in one session with the first: it has a trie or none, and one drafter or none."""
        free, drafts = jobs[0].decoding.allowed is None, self.drafts(jobs[0])
        return [job for job in jobs if (job.decoding.allowed is None) is free and self.drafts(job) == drafts]

    def roomy(self, jobs: Sequence[Job], inputs: int, like: Shape | None = None) -> Shape:
        """Room for so many at a time, or as many as the memory allows, and for inputs that are a little longer; for those that
        had room in a session `like` that."""
        needs = self.needs(jobs)
        if like is not None:
            needs = replace(needs, source=max(needs.source, like.source), lengths=max(needs.lengths, like.lengths))
        longer = 16 if needs.wide and needs.lengths <= 16 else 64
        shape = replace(needs, source=-(-needs.source // 32) * 32, lengths=-(-needs.lengths // longer) * longer)
        shape = replace(shape, trie=power(needs.trie) if needs.trie else 0)
        if needs.code:
            shape = replace(shape, code=max(256, power(needs.code)), given=power(needs.given) if needs.given else 0)
        drafts = self.drafts(jobs[0])
        own = self.modules and (drafts or self.modules)
        token = DeviceBart.bytes_of_a_token(self.model.model) if own is None else own.bytes_of_a_token
        each, node = bytes_each(shape, token)
        room = free_memory(self.model.model.device) * MOST_MEMORY
        alive = min(shape.k * (needs if shape.wide else shape).lengths, NODES_EACH + 24 * shape.k)
        if shape.wide:  # few such inputs fill a step: all that are in flight have room for all of their search
            inputs = min(inputs, MOST_WIDE, max(1, int(room / (each + alive * node))))
        inputs = max(1, min(inputs, int(room / 2 / each)))
        nodes = inputs * alive * shape.times + self.step(drafts).buckets_for(shape, self.model.vocabulary)[-1]
        return replace(shape, inputs=inputs, nodes=int(min(nodes, (room - inputs * each) / node, MOST_NODES)))


def room_for(waiting: int) -> int:
    """Inputs that a session should take at a time; where a whole batch waits, more may come."""
    return next((room for room in ROOMS if waiting <= room), MOST_INPUTS)


def free_memory(device: torch.device) -> float:
    """Bytes, those that torch keeps for itself included."""
    if device.type != "cuda":
        return 1e9
    free, _ = torch.cuda.mem_get_info(device)
    return float(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
