"""CallLimits: how long an output may get and what ends it, from the stopping criteria that `generate` prepared; and the search
that asks those of the user's own."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

from ..search import AnyOrderSearch, Hypothesis, Result, Successors


@dataclass(frozen=True)
class CallLimits:
    """The most tokens to generate, the tokens that end an output, and criteria beside these two."""

    n_max: int
    eos: frozenset[int]
    others: StoppingCriteriaList

    def ends(self, prompt: torch.Tensor, outputs: Sequence[tuple[int, ...]]) -> list[bool]:
        """Which outputs of one length after `prompt` (prompt length,) the other criteria end, asked as Hugging Face asks them."""
        tokens = torch.tensor(outputs, dtype=prompt.dtype, device=prompt.device)
        done: list[bool] = self.others(torch.cat([prompt.expand(len(outputs), -1), tokens], 1), None).tolist()
        return done


def read_limits(criteria: Sequence[Any], config: Any, prompt_length: int) -> CallLimits:
    """Sort the criteria: the two that the search knows, and the others."""
    longest, others = config.max_length, StoppingCriteriaList()
    known, found = frozenset(eos_tokens(config)), frozenset[int]()
    for criterion in criteria:
        if isinstance(criterion, MaxLengthCriteria):
            longest = min(longest, criterion.max_length)
        elif isinstance(criterion, EosTokenCriteria) and criterion.eos_token_id is config._eos_token_tensor:
            found = known
        elif isinstance(criterion, EosTokenCriteria) and (ends := frozenset(criterion.eos_token_id.tolist())) <= known:
            found |= ends
        else:
            others.append(criterion)
    return CallLimits(longest - prompt_length, found, others)


def eos_tokens(config: Any) -> list[int]:
    """What ends an output. `generate` has it as a tensor too, on a device, which would be waited for."""
    if config._eos_token_tensor is None:
        return []
    eos = config.eos_token_id
    return [eos] if isinstance(eos, int) else [*map(int, eos)] if isinstance(eos, list) else config._eos_token_tensor.tolist()


class Candidates:
    """A search with Hugging Face's step for stopping criteria of the user's own: level by level, asking before a beam is entered.

    Of all one-token extensions of a level only the best `width` are looked at; the criteria are asked about these, in one go.
    Those that they end are finished, like those that end in EOS. Where more than `width` - k end at once, fewer than k go on.
    """

    whole_levels = True

    def __init__(
        self, search: AnyOrderSearch, ended: set[tuple[int, ...]], width: int, ends: Callable[[list[tuple[int, ...]]], list[bool]]
    ) -> None:
        """In `search` outputs end that are among `ended`; `ends` says which of some are to."""
        self.search = search
        self._ended = ended
        self.root = self.search.root
        self.level_rows = self.search.level_rows
        self.rows = 0
        self.width: float = width
        self._ends = ends
        self._level: list[Hypothesis] = []
        self._scored: dict[Hypothesis, Successors] = {}

    def frontier(self, m: int) -> list[Hypothesis]:
        """Up to `m` hypotheses of the present level that are not scored yet; empty when the search is over."""
        if not self._level:
            self._level = self.search.frontier(self.level_rows)
        return [y for y in self._level if y not in self._scored][:m]

    def commit(self, y: Hypothesis, successors: Successors) -> None:
        """Take what was scored; the last of a level has the criteria asked and all children pushed."""
        self._scored[y] = successors
        self.rows += 1
        if len(self._scored) < len(self._level):
            return
        best = self._best()
        outputs = [(*z.tokens, token) for _, z, token in best]
        self._ended.update(output for output, ended in zip(outputs, self._ends(outputs), strict=True) if ended)
        for z, (values, tokens, logprobs, ending) in self._scored.items():
            n = sum(parent is z for _, parent, _ in best)  # siblings come best first
            self.search.commit(z, Successors(values[:n], tokens[:n], None if logprobs is None else logprobs[:n], ending))
        self._level, self._scored = [], {}

    def _best(self) -> list[tuple[float, Hypothesis, int]]:
        candidates = [
            (z.value + value, z, token)
            for z, successors in self._scored.items()
            for value, token in zip(successors.values, successors.tokens, strict=True)
        ]
        return heapq.nsmallest(int(self.width), candidates, key=lambda each: (-each[0], each[1].tokens, each[2]))

    def result(self) -> Result:
        return self.search.result()

    def dismantle(self) -> None:
        self.search.dismantle()
