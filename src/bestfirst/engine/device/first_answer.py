"""The first answer of a new session must be worth what the model itself says: no kernel is trusted unseen."""

from __future__ import annotations

import torch

from ...models.transformers import TransformersModel
from ...search import Result
from ..engine import Job


@torch.inference_mode()
def check(model: TransformersModel, job: Job, result: Result) -> None:
    """RuntimeError unless it is."""
    prompt = job.source.payload
    answer = result.hypotheses[0] if result.hypotheses else result.partial
    if answer is None or not answer.tokens:
        return
    given = torch.tensor([[*prompt.tokens, *answer.tokens]], device=model.model.device)
    logits = model.logits(prompt, given[:, :-1])[0, len(prompt.tokens) - 1 :].float()
    logprobs, edits = logits.log_softmax(-1), job.edits
    if edits is not None and edits.process is not None:
        rows = enumerate((logits if edits.raw else logprobs).split(1))
        edited = torch.cat([edits.process(job.index, answer.tokens[:t], row) for t, row in rows])
        logprobs = edited.log_softmax(-1) if edits.raw else edited
    own = float(logprobs.gather(1, given[0, len(prompt.tokens) :, None]).double().sum())
    precise = model.model.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    if not abs(own - answer.logprob) <= (1e-3 if precise else 0.1) * (1 + len(answer.tokens)):
        raise RuntimeError(f"an answer's log-probability is {answer.logprob:.4f} by its kernels, {own:.4f} by the model")
