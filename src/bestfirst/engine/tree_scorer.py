"""TreeScorer: scores hypotheses of many searches on one Hugging Face model, a row a hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from time import perf_counter

import torch

from ..constraints import allowed_after
from ..models import Source
from ..models.transformers import TransformersModel
from ..scoring import Score
from ..search import Hypothesis, Successors
from ..settings import Budget
from .language_model import LanguageModelRunner
from .runner import Row, Runner, Sentence
from .scorer import check_vocabulary
from .steps.choose import step_for, warn_of_recomputing
from .steps.operations import only, top

Process = Callable[[Sequence[Hypothesis], torch.Tensor], torch.Tensor]
"""Changes the log-probabilities (rows, vocabulary) that follow a batch of hypotheses, as Hugging Face's processors do."""


class TreeScorer:
    """`start` admits inputs, `expand` is one forward pass. A hypothesis' state is (sentence, slot); a root's slot is 0 before it
    is scored.

    `process` may be set to what changes log-probabilities before the best are chosen; with `normalized` unset it gets the
    model's scores as they are, as in Hugging Face's greedy search.
    """

    process: Process | None = None
    normalized = True
    exact = True

    def __init__(self, model: TransformersModel, score: Score) -> None:
        self.model = model
        self.score = score
        self.eos = model.eos
        self.runner = Runner(model, step_for(model))
        lm = score.language_model
        self.beside = None if lm is None else LanguageModelRunner(lm)  # type: ignore[arg-type]
        self._attends = "attention" in score.needs
        if self._attends:
            self.runner.watch()
        self._coverage: dict[Sentence, dict[int, torch.Tensor]] = {}  # by slot, attention each source token has got so far
        self._banned = torch.tensor(model.banned, device=self.runner.device) if model.banned else None
        self._top_seconds = 0.0
        self._measured: Budget | None = None

    @property
    def shares_context(self) -> bool:
        return self.runner.decoder.name != "recompute"

    @property
    def model_seconds(self) -> float:
        """In the encoder, in forward passes, and in finding the best tokens."""
        return self.runner.seconds + self._top_seconds

    def budget(self) -> Budget:
        if self._measured is None:
            self._measured = self.runner.budget()
        return self._measured

    def cache_tokens(self) -> int:
        return self.runner.cache_tokens()

    def advice(self, root: Hypothesis, n_max: int) -> str | None:
        return None

    def text(self, source: Source, tokens: Sequence[int]) -> str | None:
        return self.model.text(source.payload, tokens)

    @torch.inference_mode()
    def start(self, roots: Sequence[tuple[Hypothesis, Source]]) -> None:
        if not self.shares_context:
            warn_of_recomputing(self.model)
        sentences = self.runner.admit([source.payload for _, source in roots])
        for (root, _), sentence in zip(roots, sentences, strict=True):
            root.state = (sentence, 0)
            self._coverage[sentence] = {}
        if self.beside is not None:
            self.beside.start(sentences)

    @torch.inference_mode()
    def release(self, root: Hypothesis) -> None:
        sentence = root.state[0]
        self.runner.release(sentence)
        del self._coverage[sentence]
        if self.beside is not None:
            self.beside.release(sentence)

    # -- one forward pass ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def expand(self, batch: Sequence[Hypothesis], width: float) -> list[Successors]:
        rows = [_row(y) for y in batch]
        if not self.runner.decoder.by_place:
            return self._expand(batch, rows, width)
        order = sorted(range(len(rows)), key=lambda i: rows[i][0].place)
        found = self._expand([batch[i] for i in order], [rows[i] for i in order], width)
        out: list[Successors] = [None] * len(batch)  # type: ignore[list-item]
        for i, successors in zip(order, found, strict=True):
            out[i] = successors
        return out

    def _expand(self, batch: Sequence[Hypothesis], rows: Sequence[Row], width: float) -> list[Successors]:
        slots, logits = self.runner.step(rows)
        for y, row, slot in zip(batch, rows, slots, strict=True):
            y.state = (row[0], slot)
        begun = perf_counter()
        best, tokens, own = self._best(batch, rows, slots, logits.float(), int(min(width, logits.shape[1])))
        unusual = (best[:, 1:] == best[:, :-1]).any(1) | ~best[:, -1].isfinite() | ~(best[:, 0] < inf)
        lists = best.tolist(), tokens.tolist(), None if own is None else own.tolist(), unusual.tolist()
        self._top_seconds += perf_counter() - begun
        successors = _successors(batch, *lists)
        return self._with_endings(rows, slots, successors) if self._attends else successors

    def _best(
        self, batch: Sequence[Hypothesis], rows: Sequence[Row], slots: Sequence[int], logits: torch.Tensor, width: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Increments and tokens of the best extensions, (rows, width), and their log-probabilities where these differ.

        As Hugging Face does it: log-softmax, then what is banned or processed. The score comes last, and top-k after it.
        """
        allowed = allowed_after(batch, self.eos)
        if allowed is not None:
            for tokens in allowed:
                if tokens is not None:
                    check_vocabulary(tokens, logits.shape[1])
            most = max(logits.shape[1] if tokens is None else len(tokens) for tokens in allowed)
            width = min(width, max(1, most))
        if self.score.plain and self.process is None:
            return *self.runner.decoder.best(logits, width, self._banned, allowed), None
        logits = logits.contiguous()
        logprobs = torch.log_softmax(logits, -1).clamp_(max=0) if self.normalized else logits
        if self._banned is not None:
            logprobs[:, self._banned] = -inf
        if self.process is not None:
            logprobs = self.process(batch, logprobs)
        if allowed is not None:
            logprobs = only(logprobs, allowed)
        best, tokens = top(self._increments(rows, slots, logprobs), width)
        return best, tokens, None if self.score.plain else logprobs.gather(1, tokens)

    def _increments(self, rows: Sequence[Row], slots: Sequence[int], logprobs: torch.Tensor) -> torch.Tensor:
        if self.beside is None:
            return self.score.increment(logprobs)
        aux = self.beside.logprobs(rows, slots)
        if aux.shape != logprobs.shape:
            raise ValueError(
                f"the language model's vocabulary has {aux.shape[1]} tokens, the model's {logprobs.shape[1]}: "
                "they must be the same"
            )
        needs_past = "language_model_past" in self.score.needs
        past = {"past": self.beside.past(rows, slots, aux)} if needs_past else {}
        increments = self.score.increment(logprobs, aux, **past)
        return torch.where(logprobs == -inf, -inf, increments)

    def _with_endings(self, rows: Sequence[Row], slots: Sequence[int], successors: list[Successors]) -> list[Successors]:
        """What finishing adds for a score that looks at attention: known only when a hypothesis ends."""
        out = []
        for row, slot, attention, found in zip(rows, slots, self.runner.attention(rows), successors, strict=True):
            sentence, parent, _, position = row
            before = 0.0 if position == sentence.offset else self._coverage[sentence][parent]
            self._coverage[sentence][slot] = before + attention
            out.append(found._replace(ending=float(self.score.ending(before + attention))))
        return out


def _row(y: Hypothesis) -> Row:
    if y.parent is None:
        sentence: Sentence = y.state[0]
        return sentence, sentence.prompt_slot, sentence.start, sentence.offset
    sentence, parent = y.parent.state
    return sentence, parent, y.token, sentence.offset + y.length


def _successors(
    batch: Sequence[Hypothesis],
    best: list[list[float]],
    tokens: list[list[int]],
    logprobs: list[list[float]] | None,
    unusual: list[bool],
) -> list[Successors]:
    """Impossible tokens left out, ties in order of tokens. `unusual`: rows where there may be such."""
    out = []
    for i, (values, ids) in enumerate(zip(best, tokens, strict=True)):
        own = None if logprobs is None else logprobs[i]
        if not unusual[i]:
            out.append(Successors(values, ids, own))
            continue
        if any(value != value or value == inf for value in values):
            raise ValueError(f"the scores after {list(batch[i].tokens)} are not finite: check the model's weights and dtype")
        kept = sorted((-v, token, j) for j, (v, token) in enumerate(zip(values, ids, strict=True)) if v != -inf)
        own = None if own is None else [own[j] for _, _, j in kept]
        out.append(Successors([-v for v, _, _ in kept], [token for _, token, _ in kept], own))
    return out
