"""CallLimits: how long an output may get and what ends it, from the stopping criteria that `generate` prepared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

Ends = Callable[[Sequence[tuple[int, ...]]], list[bool]]
"""Which of these outputs (all of one length) a stopping criterion ends."""


@dataclass(frozen=True)
class CallLimits:
    """The most tokens to generate, the tokens that end an output, and criteria beside these two."""

    n_max: int
    eos: frozenset[int]
    others: StoppingCriteriaList

    def ends(self, prompt: torch.Tensor) -> Ends:
        """Asks the other criteria about outputs after `prompt` (prompt length,), as Hugging Face asks them: prompt included."""

        def ask(outputs: Sequence[tuple[int, ...]]) -> list[bool]:
            tokens = torch.tensor(outputs, dtype=prompt.dtype, device=prompt.device)
            done: list[bool] = self.others(torch.cat([prompt.expand(len(outputs), -1), tokens], 1), None).tolist()
            return done

        return ask


def read_limits(criteria: Sequence[Any], config: Any, prompt_length: int) -> CallLimits:
    """Sort the criteria: the two that the search knows, and the others."""
    longest, others = config.max_length, StoppingCriteriaList()
    eos = config._eos_token_tensor
    known = frozenset() if eos is None else frozenset(eos.tolist())
    found: frozenset[int] = frozenset()
    for criterion in criteria:
        if isinstance(criterion, MaxLengthCriteria):
            longest = min(longest, criterion.max_length)
        elif isinstance(criterion, EosTokenCriteria) and set(criterion.eos_token_id.tolist()) <= known:
            found |= frozenset(criterion.eos_token_id.tolist())
        else:
            others.append(criterion)
    return CallLimits(longest - prompt_length, found, others)
