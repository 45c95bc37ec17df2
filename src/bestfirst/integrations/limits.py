"""CallLimits: the maximum length, EOS tokens and other stopping criteria of a call. `Candidates`: the search that calls the
user's own stopping criteria as Hugging Face's beam search does."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

from ..search import AnyOrderSearch, Hypothesis, Result, Successors, WholeLevels


@dataclass(frozen=True)
class CallLimits:
    """The maximum number of new tokens, the EOS tokens, and all other stopping criteria."""

    n_max: int
    eos: frozenset[int]
    others: StoppingCriteriaList

    def ends(self, prompt: torch.Tensor, outputs: Sequence[tuple[int, ...]]) -> list[bool]:
        """Whether the other criteria, called as Hugging Face does, end each of these equally long outputs after `prompt`."""
        tokens = torch.tensor(outputs, dtype=prompt.dtype, device=prompt.device)
        done: list[bool] = self.others(torch.cat([prompt.expand(len(outputs), -1), tokens], 1), None).tolist()
        return done


def read_limits(criteria: Sequence[Any], config: Any, prompt_length: int) -> CallLimits:
    """Split the criteria into maximum length and EOS, which the search handles itself, and all others, also of subclasses."""
    longest, others = config.max_length, StoppingCriteriaList()
    known, eos = frozenset(eos_tokens(config)), frozenset[int]()
    for criterion in criteria:
        if type(criterion) is MaxLengthCriteria:
            longest = min(longest, criterion.max_length)
        elif type(criterion) is EosTokenCriteria and criterion.eos_token_id is config._eos_token_tensor:
            eos = known
        elif type(criterion) is EosTokenCriteria and (ends := frozenset(criterion.eos_token_id.tolist())) <= known:
            eos |= ends
        else:
            others.append(criterion)
    return CallLimits(longest - prompt_length, eos, others)


def eos_tokens(config: Any) -> list[int]:
    """The EOS tokens of a config. Read from `eos_token_id` where possible: reading the tensor waits for its device."""
    if config._eos_token_tensor is None:
        return []
    eos = config.eos_token_id
    return [eos] if isinstance(eos, int) else [*map(int, eos)] if isinstance(eos, list) else config._eos_token_tensor.tolist()


class Candidates(WholeLevels):
    """A level-by-level search that calls the user's stopping criteria before a beam is entered, as Hugging Face does.

    Of all one-token extensions of a level the best `width` are candidates; the criteria are called once on all of them. Those
    that they end are finished, like those that end in EOS. Where more than `width` - k end at once, fewer than k go on.
    """

    def __init__(
        self, search: AnyOrderSearch, ended: set[tuple[int, ...]], width: int, ends: Callable[[list[tuple[int, ...]]], list[bool]]
    ) -> None:
        """`search` treats outputs in `ended` as finished. `ends` calls the criteria; outputs that they end go into `ended`."""
        super().__init__([search])
        self.search = search
        self.width: float = width
        self._ended = ended
        self._ends = ends

    def _next_level(self, scored: dict[Hypothesis, Successors]) -> list[Hypothesis]:
        """Call the criteria, and commit the candidates to the search."""
        candidates = [
            (-(z.value + value), z.tokens, token, z)
            for z, successors in scored.items()
            for value, token in zip(successors.values, successors.tokens, strict=True)
        ]
        best = heapq.nsmallest(int(self.width), candidates)
        outputs = [(*prefix, token) for _, prefix, token, _ in best]
        self._ended.update(output for output, ended in zip(outputs, self._ends(outputs), strict=True) if ended)
        for z, (values, tokens, logprobs, ending) in scored.items():
            n = sum(parent is z for *_, parent in best)  # successors are sorted, so the candidates among them are the first n
            self.search.commit(z, Successors(values[:n], tokens[:n], None if logprobs is None else logprobs[:n], ending))
        return self.search.frontier(self.level_rows)

    def result(self) -> Result:
        return self.search.result()
