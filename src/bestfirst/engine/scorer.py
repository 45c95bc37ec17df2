"""EngineScorer: scores hypotheses of many searches on one Hugging Face model, a row a hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import torch

from ..models.scorer import Source
from ..search import Hypothesis, Successors
from .runner import Runner, Sentence
from .top import top

if TYPE_CHECKING:
    from ..models.transformers import TransformersModel
    from ..scoring import Score

Process = Callable[[Sequence[Hypothesis], torch.Tensor], torch.Tensor]
"""Changes the log-probabilities (rows, vocabulary) that follow a batch of hypotheses, as Hugging Face's processors do."""


class EngineScorer:
    """The engine's side of the seam: `start` admits inputs, `expand` is one forward pass.

    A hypothesis' state is (sentence, slot), and the language model's slot where the score has one; a root's slot is 0 before it
    is scored.
    """

    def __init__(self, model: TransformersModel, score: Score, width: float, process: Process | None = None) -> None:
        self.model = model
        self.score = score
        self.width = width
        self.process = process
        self.eos = model.eos
        self.runner = Runner(model)
        self._banned = torch.tensor(model.banned, device=self.runner.device) if model.banned else None
        self._plain = score.plain and process is None

    def read(self, raw: Any) -> Source:
        return self.model.read(raw)

    def text(self, source: Source, tokens: Sequence[int]) -> str | None:
        return self.model.text(source.payload, tokens)

    @torch.inference_mode()
    def start(self, roots: Sequence[tuple[Hypothesis, Source]]) -> None:
        for (root, _), sentence in zip(roots, self.runner.admit([source.payload for _, source in roots]), strict=True):
            root.state = (sentence, 0)

    @torch.inference_mode()
    def release(self, root: Hypothesis) -> None:
        self.runner.release(root.state[0])

    @torch.inference_mode()
    def expand(self, batch: Sequence[Hypothesis]) -> list[Successors]:
        rows: list[tuple[Sentence, int, int, int]] = []
        for y in batch:
            if y.parent is None:
                sentence = y.state[0]
                rows.append((sentence, sentence.prompt_slot, sentence.start, sentence.offset))
            else:
                sentence, parent = y.parent.state
                rows.append((sentence, parent, y.token, sentence.offset + y.length))
        slots, logits = self.runner.step(rows)
        for y, row, slot in zip(batch, rows, slots, strict=True):
            y.state = (row[0], slot)
        return self._successors(batch, logits.float())

    def _successors(self, batch: Sequence[Hypothesis], logits: torch.Tensor) -> list[Successors]:
        """The best extensions of each row: log-softmax first, then what is banned or processed, then top-k."""
        width = int(min(self.width, logits.shape[1]))
        if self._plain:
            total = logits.logsumexp(-1, keepdim=True)
            if self._banned is not None:
                logits[:, self._banned] = -inf
            best, tokens = top(logits, width)
            best = (best - total).clamp_(max=0)
            return self._lists(batch, best, tokens, None)
        logprobs = torch.log_softmax(logits, -1).clamp_(max=0)
        if self._banned is not None:
            logprobs[:, self._banned] = -inf
        if self.process is not None:
            logprobs = self.process(batch, logprobs)
        best, tokens = top(self.score.increment(logprobs), width)
        return self._lists(batch, best, tokens, None if self.score.plain else logprobs.gather(1, tokens))

    @staticmethod
    def _lists(
        batch: Sequence[Hypothesis], best: torch.Tensor, tokens: torch.Tensor, logprobs: torch.Tensor | None
    ) -> list[Successors]:
        """Tensors to successors: impossible tokens left out, ties in order of tokens."""
        odd = ((best[:, 1:] == best[:, :-1]).any(1) | ~best[:, -1].isfinite() | best[:, 0].isnan()).tolist()
        plain = [None] * len(batch) if logprobs is None else logprobs.tolist()
        out = []
        for y, values, ids, own, unusual in zip(batch, best.tolist(), tokens.tolist(), plain, odd, strict=True):
            if unusual:
                if any(value != value for value in values):
                    raise ValueError(f"the model's scores after {list(y.tokens)} are not numbers (NaN): check its weights and dtype")
                kept = sorted((-v, i, j) for j, (v, i) in enumerate(zip(values, ids, strict=True)) if v != -inf)
                values, ids = [-v for v, _, _ in kept], [i for _, i, _ in kept]
                own = own and [own[j] for _, _, j in kept]
            out.append(Successors(values, ids, own))
        return out
