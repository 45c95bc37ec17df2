"""Admission: puts inputs into slots. Their tokens are packed without padding and encoded, and their searches begin, by one
transfer and one CUDA graph. `Reading` does so for a model that runs by its own modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from math import inf
from typing import Any

import numpy as np
import torch

from ...models.reader import PackedPrompt, Prompt
from ..engine import Job
from .cuda_graphs import Graphs, send
from .device_bart import Packed
from .kernels.answers import RULES
from .kernels.beams import start_inputs
from .kernels.matmul import power
from .modules.own_modules import OwnModules
from .rules import Rules
from .state import State

SMALL_BATCH, MAX_BATCH = 4, 512  # inputs admitted together, at most; a graph for either. `SMALL_BATCH` holds for results, too
MAX_TOKENS = 1 << 15  # tokens encoded together, unless one input alone has more
MIN_TOKENS = 256  # smallest token capacity of a graph
FIELDS = 4 + RULES.value  # of an input: slot, n_max, source length, start of its source, rules


def runs(rules: Sequence[Rules]) -> Iterator[tuple[int, int, Rules]]:
    """(first, end, rules) of each run of identical rules."""
    first = 0
    for i in range(1, len(rules) + 1):
        if i == len(rules) or rules[i] is not rules[first]:
            yield first, i, rules[first]
            first = i


def packed_range(prompts: Sequence[Prompt]) -> slice | None:
    """The range of these prompts in their pack's arrays, if they share one and are consecutive there, as they mostly are."""
    first = prompts[0]
    if not isinstance(first, PackedPrompt):
        return None
    end = first.start
    for prompt in prompts:
        if not isinstance(prompt, PackedPrompt) or prompt.pack is not first.pack or prompt.start != end:
            return None
        end += prompt.length
    return slice(first.start, end)


class Admission:
    """Admits inputs whose encoder is part of the graph."""

    encode: Any = None  # the model's encoder, for prompts without hidden states, where the encoder is not part of the graph

    def __init__(self, state: State, weights: Any, graphs: Graphs) -> None:
        self.state = state
        self.weights: Any = weights
        self.graphs = graphs
        self._buffers: dict[Any, torch.Tensor] = {}  # inputs of graphs, at fixed addresses

    def __call__(self, jobs: Sequence[Job], slots: Sequence[int], rules: Sequence[Rules]) -> None:
        """Admit jobs to free slots. `rules`: the settings of each."""
        prompts = [job.source.payload for job in jobs]
        lengths = np.array(self.lengths(prompts), np.int32)
        tokens = int(lengths.sum())
        starts = np.cumsum(lengths, dtype=np.int32) - lengths
        places = np.arange(tokens, dtype=np.int32) - np.repeat(starts, lengths)
        # A graph has a fixed size: unused tokens go to a dummy cell behind all others.
        graph = self.weights.device.type == "cuda"
        inputs = (SMALL_BATCH if len(jobs) <= SMALL_BATCH else MAX_BATCH) if graph else len(jobs)
        room = max(MIN_TOKENS, power(tokens)) if graph else tokens
        numbers = np.zeros(2 + (2 + FIELDS) * inputs + 4 * room, dtype=np.int32)
        numbers[:2] = len(jobs), tokens
        caps = numbers[2 : 2 + 2 * inputs].view(np.float64)
        of_inputs = numbers[2 + 2 * inputs : 2 + (2 + FIELDS) * inputs].reshape(FIELDS, -1)
        of_inputs[:4, : len(jobs)] = slots, [job.n_max for job in jobs], lengths, starts
        for first, last, each in runs(rules):  # consecutive jobs mostly share theirs
            of_inputs[4:, first:last] = np.array(each.numbers, dtype=np.int32)[:, None]
            caps[first:last] = inf if each.reward is None else [each.reward * job.source.length for job in jobs[first:last]]
        of_tokens = numbers[2 + (2 + FIELDS) * inputs :].reshape(4, -1)
        of_tokens[3] = self.state.shape.inputs * self.state.shape.source
        of_tokens[1:, :tokens] = (
            places,
            np.repeat(np.arange(len(jobs), dtype=np.int32), lengths),
            np.repeat(of_inputs[0, : len(jobs)] * self.state.shape.source, lengths) + places,
        )
        hidden = self.hidden_of(prompts)
        if hidden is None:
            of_tokens[0, :tokens] = self.tokens_of(prompts, tokens)
        elif graph:
            known, hidden = hidden, self._buffer(("hidden", room), (room, *hidden.shape[1:]), hidden.dtype)
            hidden[: len(known)] = known
        self._send_edit_data(jobs, slots)
        given = send(numbers, self.weights.device, self._buffer((inputs, room), numbers.shape, torch.int32) if graph else None)
        self.graphs.run(("admission", inputs, room, hidden is None), lambda: self._enter(given, hidden, inputs))

    def lengths(self, prompts: Sequence[Prompt]) -> list[int]:
        """How many tokens of each input are encoded."""
        return [prompt.length for prompt in prompts]

    def tokens_of(self, prompts: Sequence[Prompt], many: int) -> np.ndarray:
        """All tokens to encode, concatenated: `many` of them."""
        if (span := packed_range(prompts)) is not None:
            return np.asarray(prompts[0].pack.source_ids[span])  # type: ignore[attr-defined]
        return np.fromiter(chain.from_iterable(prompt.source for prompt in prompts), np.int32, many)

    def hidden_of(self, prompts: Sequence[Prompt]) -> torch.Tensor | None:
        """The encoder output of these prompts, (tokens, d), if it is known."""
        if prompts[0].hidden is None:
            return None
        if (span := packed_range(prompts)) is not None:
            return prompts[0].pack.hidden[span]  # type: ignore[attr-defined]
        return torch.cat([prompt.hidden for prompt in prompts])

    def _send_edit_data(self, jobs: Sequence[Job], slots: Sequence[int]) -> None:
        """Write each input's own data of its logits edits to the device."""
        edited = [(slot, job.edits.given) for slot, job in zip(slots, jobs, strict=True) if job.edits is not None]
        width = max((len(given) for _, given in edited), default=0)
        if not width:
            return
        numbers = np.zeros((len(edited), 1 + width), dtype=np.int32)
        for row, (slot, given) in zip(numbers, edited, strict=True):
            row[0], row[1 : 1 + len(given)] = slot, given
        sent = send(numbers, self.weights.device)
        self.state.given[:, :width].index_copy_(0, sent[:, 0].long(), sent[:, 1:])

    def _buffer(self, name: Any, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The tensor of this name that a graph reads."""
        if name not in self._buffers:
            self._buffers[name] = torch.zeros(*shape, dtype=dtype, device=self.weights.device)
        return self._buffers[name]

    def _enter(self, given: torch.Tensor, hidden: torch.Tensor | None, inputs: int) -> None:
        """What the graph does: encode, then begin the searches. `given` holds two counts (inputs, tokens), the largest length
        reward of each input, its `FIELDS`, and of each token its id, place, input and cell."""
        many, used = given[:1], given[1:2]
        caps = given[2 : 2 + 2 * inputs].view(torch.float64)
        slots, limits, lengths, starts, *_ = numbers = given[2 + 2 * inputs : 2 + (2 + FIELDS) * inputs].view(FIELDS, -1)
        token, place, number, cell = given[2 + (2 + FIELDS) * inputs :].view(4, -1).unbind(0)
        self.read(Packed(token, place, number, starts, lengths, used), cell.long(), hidden)
        st, shape, rules = self.state, self.state.shape, numbers[4:]
        start_inputs[(len(slots),)](
            many, caps, slots, limits, lengths, rules,
            st.value, st.entry, st.tie, st.node, st.pushed, st.count, st.head, st.scored, st.child,
            st.status, st.deepest, st.limit, st.source_length, st.rules, st.caps, st.rows, st.steps, st.drafted,
            rules.stride(0), shape.lengths, shape.nodes * shape.successors, shape.prompt,
            KP=power(shape.k), LP=power(shape.lengths), num_warps=1,
        )  # fmt: skip

    def read(self, given: Packed, cells: torch.Tensor, hidden: torch.Tensor | None) -> None:
        """Write the inputs' cross-attention keys and values to their cells."""
        if hidden is None:
            hidden = self.weights.encoder(given)
        self.state.source.index_copy_(0, cells, self.weights.source_keys(hidden, given.used))


class Reading(Admission):
    """Admits inputs of a model that runs by its own modules. A language model's prompt is prefilled but for its last token, the
    root of the search, which its first row runs. An encoder-decoder's encoder output becomes cross-attention keys and values."""

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
        if (known := super().hidden_of(prompts)) is not None:
            return known
        hidden, lengths = self.encode(prompts)
        return torch.cat([each[:n] for each, n in zip(hidden, lengths, strict=True)])

    def __call__(self, jobs: Sequence[Job], slots: Sequence[int], rules: Sequence[Rules]) -> None:
        super().__call__(jobs, slots, rules)
        if self.weights.language_model:
            given = send(np.array([slots, [job.source.payload.tokens[-1] for job in jobs]]), self.weights.device)
            roots = given[0].long() + self.state.shape.nodes * self.state.shape.successors  # may be beyond 32 bits
            self.state.token.index_copy_(0, roots, given[1])

    def read(self, given: Packed, cells: torch.Tensor, hidden: torch.Tensor | None) -> None:
        if not len(cells):
            return
        if self.weights.language_model:
            self.weights.read_prompts(given, cells, self.state.source)
            self.state.source_tokens.index_copy_(0, cells, given.tokens)
        else:
            self.weights.read_hidden(hidden, cells, self.state.source)  # type: ignore[arg-type]
