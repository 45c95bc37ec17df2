"""LanguageModelRunner: a language model that reads along, token by token, with the hypotheses of another model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from .runner import Row, Runner, Sentence
from .steps.choose import step_for

if TYPE_CHECKING:
    from ..models.transformers import TransformersModel


class LanguageModelRunner:
    """Runs the language model's rows for the rows of the model. Slots of the one are known by slots of the other."""

    def __init__(self, model: TransformersModel) -> None:
        self.model = model
        self.runner = Runner(model, step_for(model))
        self._slots: dict[Sentence, dict[int, int]] = {}  # by the model's slot
        self._reached: dict[Sentence, dict[int, torch.Tensor]] = {}  # log-probability of each continuation, whole prefix included

    @torch.inference_mode()
    def start(self, sentences: Sequence[Sentence]) -> None:
        prompt = self.model.read(()).payload
        with self.runner.lock:
            admitted = self.runner.admit([prompt] * len(sentences))
        for sentence, own in zip(sentences, admitted, strict=True):
            sentence.beside = own
            self._slots[sentence], self._reached[sentence] = {}, {}

    @torch.inference_mode()
    def release(self, sentence: Sentence) -> None:
        self.runner.release(_beside(sentence))
        del self._slots[sentence], self._reached[sentence]

    @torch.inference_mode()
    def logprobs(self, rows: Sequence[Row], slots: Sequence[int]) -> torch.Tensor:
        """Its log-probabilities of the next token, (rows, vocabulary), for rows that the model has put into `slots`."""
        own_rows = []
        for sentence, parent, token, position in rows:
            own, length = _beside(sentence), position - sentence.offset
            if length == 0:
                own_rows.append((own, own.prompt_slot, own.start, own.offset))
            else:
                own_rows.append((own, self._slots[sentence][parent], token, own.offset + length))
        with self.runner.lock:
            own_slots, logits = self.runner.step(own_rows)
            logprobs = torch.log_softmax(logits.float(), -1).clamp_(max=0)
        for row, slot, own_slot in zip(rows, slots, own_slots, strict=True):
            self._slots[row[0]][slot] = own_slot
        return logprobs

    @torch.inference_mode()
    def past(self, rows: Sequence[Row], slots: Sequence[int], logprobs: torch.Tensor) -> torch.Tensor:
        """Its log-probability of each row's whole prefix, (rows, 1)."""
        past = torch.stack(
            [
                logprobs.new_zeros(()) if position == sentence.offset else self._reached[sentence][parent][token]
                for sentence, parent, token, position in rows
            ]
        )[:, None]
        for row, slot, reached in zip(rows, slots, past + logprobs, strict=True):
            self._reached[row[0]][slot] = reached
        return past


def _beside(sentence: Sentence) -> Any:
    return sentence.beside
