"""The first answers of a new session must be worth what the model itself says: no kernel is trusted unseen."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from ...models.transformers import TransformersModel
from ...search import Answer, Result
from ..engine import Job


@torch.inference_mode()
def check(model: TransformersModel, job: Job, result: Result) -> None:
    """RuntimeError unless they are, the first, the last and the one in the middle; and all are different and in order."""
    answers = result.hypotheses
    scores = [answer.score for answer in answers]
    if len({answer.tokens for answer in answers}) < len(answers) or scores != sorted(scores, reverse=True):
        raise RuntimeError("answers come twice, or not in order")
    some: list[Any] = [*{0: None, len(answers) // 2: None, len(answers) - 1: None}] if answers else []
    for answer in [answers[i] for i in some] or [result.partial]:
        if answer is not None and answer.tokens:
            with suppress(torch.OutOfMemoryError):  # too long to be run from scratch beside all that is in flight
                _check(model, job, answer)


def _check(model: TransformersModel, job: Job, answer: Answer) -> None:
    prompt = job.source.payload
    given = torch.tensor([[*prompt.tokens, *answer.tokens]], device=model.model.device)
    logits = model.logits(prompt, given[:, :-1])[0, len(prompt.tokens) - 1 :].float()
    logprobs, edits = logits.log_softmax(-1), job.edits
    if edits is not None and edits.process is not None:
        rows = enumerate((logits if edits.raw else logprobs).split(1))
        edited = torch.cat([edits.process(job.index, answer.tokens[:t], row) for t, row in rows])
        logprobs = edited.log_softmax(-1) if edits.raw else edited
    own = float(logprobs.gather(1, given[0, len(prompt.tokens) :, None]).double().sum())
    precise = model.model.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    n, coarse = len(answer.tokens), torch.finfo(model.model.dtype).eps * float(logits.abs().max())  # how far apart logits are
    if not abs(own - answer.logprob) <= (1e-3 if precise else 0.1) * (1 + n) + (0 if precise else 2 * coarse * n**0.5):
        raise RuntimeError(f"an answer's log-probability is {answer.logprob:.4f} by its kernels, {own:.4f} by the model")
