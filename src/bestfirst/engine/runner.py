"""Runner: one Hugging Face model with its tree and sources. Inputs are admitted, rows are run, inputs are released."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from .choose import decoder_for
from .sources import Sources
from .tree import Tree

if TYPE_CHECKING:
    from ..models.transformers import Prompt, TransformersModel


class Sentence:
    """One input in flight: its place among the sources, its prompt, and every slot its search has taken."""

    __slots__ = ("beside", "offset", "place", "prompt_slot", "slots", "start")

    def __init__(self, place: int, prompt: Sequence[int]) -> None:
        self.place = place
        self.start = prompt[-1]  # the token that the empty hypothesis ends in
        self.offset = len(prompt) - 1  # its position
        self.prompt_slot = 0  # where the token before it lies
        self.slots: list[int] = []
        self.beside: Sentence | None = None  # the same input, at the language model beside the model


class Runner:
    """Runs rows of many inputs on one model. A row is (sentence, slot of the token before, token, its position)."""

    def __init__(self, model: TransformersModel) -> None:
        self.model = model
        self.decoder = decoder_for(model)
        parameter = next(model.model.parameters())
        self.device = parameter.device
        self.tree = Tree(parameter.device, parameter.dtype)
        self.sources = Sources(parameter.device, parameter.dtype)
        self._places: list[Sentence] = []

    def admit(self, prompts: Sequence[Prompt]) -> list[Sentence]:
        """Take inputs in: run the encoder on all of them, and fill the tree with their prompts."""
        if self.model.encoder_decoder:
            places = self._encode(prompts)
        else:
            places = range(len(self._places), len(self._places) + len(prompts))
        sentences = [Sentence(place, prompt.tokens) for place, prompt in zip(places, prompts, strict=True)]
        self._places += sentences
        self._read_prompts(sentences, prompts)
        return sentences

    def _encode(self, prompts: Sequence[Prompt]) -> range:
        hidden, lengths = self.model.encode(prompts)
        mask = torch.arange(hidden.shape[1], device=self.device) < torch.tensor(lengths, device=self.device)[:, None]
        return self.sources.add(self.decoder.encode(hidden, mask.long()), lengths)

    def _read_prompts(self, sentences: list[Sentence], prompts: Sequence[Prompt]) -> None:
        """Fill the tree with every prompt but for its last token, which the root's own row will bring."""
        table, counts = [], []
        for sentence, prompt in zip(sentences, prompts, strict=True):
            if len(prompt.tokens) == 1:
                continue
            sentence.slots = self.tree.allocate(len(prompt.tokens) - 1)
            parent = 0
            for position, slot in enumerate(sentence.slots):
                table.append((prompt.tokens[position], position, slot, parent, sentence.place))
                parent = slot
            sentence.prompt_slot = parent
            counts.append(len(sentence.slots))
        if table:
            self.decoder.step(self.tree.prompt_rows(table, counts), self.tree, self.sources)

    def step(self, rows: Sequence[tuple[Sentence, int, int, int]]) -> tuple[list[int], torch.Tensor]:
        """One forward pass. Returns each row's slot, and logits (rows, vocabulary). Rows of a sentence stand together."""
        slots = self.tree.allocate(len(rows))
        table, counts = [], []
        before: Sentence | None = None
        for (sentence, parent, token, position), slot in zip(rows, slots, strict=True):
            table.append((token, position, slot, parent, sentence.place))
            sentence.slots.append(slot)
            if sentence is before:
                counts[-1] += 1
            else:
                counts.append(1)
                before = sentence
        return slots, self.decoder.step(self.tree.rows(table, counts), self.tree, self.sources)

    def release(self, sentence: Sentence) -> None:
        """Let an input go: its slots and its place are free; the last input moves to that place."""
        self.tree.release(sentence.slots)
        last = self.sources.remove(sentence.place) if self.model.encoder_decoder else len(self._places) - 1
        self._places[last].place = sentence.place
        self._places[sentence.place] = self._places[last]
        self._places.pop()
