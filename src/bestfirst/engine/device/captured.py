# ruff: noqa: N803  capitals are sizes
"""CapturedStep and Reading: the step and the admission of a model that runs by its own modules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..engine import Job
from .admission import Admission
from .launch import send
from .own_modules import OwnModules
from .products import power
from .rows import place
from .rules import Rules
from .step import DeviceStep
from .tree_attention import TreeRows

if TYPE_CHECKING:
    from ...models.reader import Prompt


class Reading(Admission):
    """Prompts of a language model are read as they are, but for their last token, which the root's own row brings; what an
    encoder made of inputs is told to the decoder."""

    weights: OwnModules

    def lengths(self, prompts: Sequence[Prompt]) -> list[int]:
        return [len(prompt.tokens) - 1 for prompt in prompts] if self.weights.language_model else super().lengths(prompts)

    def tokens_of(self, prompts: Sequence[Prompt], many: int) -> np.ndarray:
        if not self.weights.language_model:
            return np.zeros(many, np.int32)
        return np.fromiter(chain.from_iterable(prompt.tokens[:-1] for prompt in prompts), np.int32, many)

    def hidden_of(self, prompts: Sequence[Prompt]) -> torch.Tensor | None:
        if self.weights.language_model:
            return None
        if (found := super().hidden_of(prompts)) is not None:
            return found
        hidden, lengths = self.encode(prompts)
        return torch.cat([each[:n] for each, n in zip(hidden, lengths, strict=True)])

    def __call__(self, jobs: Sequence[Job], slots: Sequence[int], rules: Sequence[Rules]) -> None:
        super().__call__(jobs, slots, rules)
        if self.weights.language_model:
            given = send(np.array([slots, [job.source.payload.tokens[-1] for job in jobs]]), self.weights.device)
            roots = given[0].long() + self.state.shape.nodes * self.state.shape.successors  # may be beyond 32 bits
            self.state.token.index_copy_(0, roots, given[1])

    def read(self, tokens: Any, place: Any, number: Any, cell: Any, starts: Any, lengths: Any, used: Any, hidden: Any) -> None:
        if not len(place):
            return
        if self.weights.language_model:
            self.weights.read_prompts(tokens.long(), place.long(), number, starts, used, cell.long(), self.state.source)
        else:
            self.weights.read_hidden(hidden, cell.long(), self.state.source)


class CapturedStep(DeviceStep):
    """The model's own modules on the rows of a step."""

    admission = Reading
    burst = 1
    buckets = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640, 768, 1024, 1536, 2048)
    weights: OwnModules

    def rows(self, most: int) -> None:
        super().rows(most)
        self.weights.reach(self.state.shape.lengths, self.state.shape.source)
        self.row_token, self.row_position = (torch.zeros(most, dtype=torch.long, device=self.weights.device) for _ in range(2))

    def decoder(self, R: int) -> torch.Tensor:
        st, shape = self.state, self.state.shape
        place[(R,)](
            self.row_node, self.row_input, self.row_length, self.row_entry,
            st.counters, st.token, st.paths, st.node_token, st.node_input, st.hashes,
            st.source_length, self.row_token, self.row_position, shape.lengths, shape.successors,
            BEHIND=self.weights.language_model, LP=power(shape.lengths), num_warps=2,
        )  # fmt: skip
        return self.logits(R)

    def logits(self, R: int) -> torch.Tensor:
        """Of the first R rows, whose tokens and positions are known."""
        st = self.state
        rows = TreeRows(
            st.counters, self.row_node, self.row_input, self.row_length, st.paths, st.first, st.grant,
            st.source_start, st.source_length, st.shape.source, st.shape.picks,
        )  # fmt: skip
        return self.weights.logits(self.row_token[:R], self.row_position[:R], rows, st.memory, st.source)
