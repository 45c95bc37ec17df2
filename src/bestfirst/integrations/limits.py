"""CallLimits: the maximum length, EOS tokens and other stopping criteria of a call. `Candidates`: the search that calls the
user's own stopping criteria as Hugging Face's beam search does."""

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


class Candidates:
    """A level-by-level search that calls the user's stopping criteria before a beam is entered, as Hugging Face does.

    Of all one-token extensions of a level the best `width` are candidates; the criteria are called once on all of them. Those
    that they end are finished, like those that end in EOS. Where more than `width` - k end at once, fewer than k go on.
    """

    whole_levels = True

    def __init__(
        self, search: AnyOrderSearch, ended: set[tuple[int, ...]], width: int, ends: Callable[[list[tuple[int, ...]]], list[bool]]
    ) -> None:
        """`search` treats outputs in `ended` as finished. `ends` calls the criteria; outputs that they end go into `ended`."""
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
        """Up to `m` hypotheses of the current level that are not scored yet; empty when the search is over."""
        if not self._level:
            self._level = self.search.frontier(self.level_rows)
        return [y for y in self._level if y not in self._scored][:m]

    def commit(self, y: Hypothesis, successors: Successors) -> None:
        """Keep the successors of `y`; once a whole level is scored, call the criteria and commit the level to the search."""
        self._scored[y] = successors
        self.rows += 1
        if len(self._scored) < len(self._level):
            return
        best = self._best_candidates()
        outputs = [(*z.tokens, token) for _, z, token in best]
        self._ended.update(output for output, ended in zip(outputs, self._ends(outputs), strict=True) if ended)
        for z, (values, tokens, logprobs, ending) in self._scored.items():
            n = sum(parent is z for _, parent, _ in best)  # successors are sorted, so the candidates among them are the first n
            self.search.commit(z, Successors(values[:n], tokens[:n], None if logprobs is None else logprobs[:n], ending))
        self._level, self._scored = [], {}

    def _best_candidates(self) -> list[tuple[float, Hypothesis, int]]:
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
