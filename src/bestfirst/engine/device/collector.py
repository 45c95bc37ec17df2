"""Collector: results of inputs that are done, made on the device and fetched from it while it works on others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, repeat
from math import prod
from typing import Any

import numpy as np
import torch

from ...search import Answer, Result
from ..engine import Job
from .admission import FEW
from .cuda_graphs import Graphs, Transfer, send
from .kernels.draft_rows import count_drafted
from .kernels.keep_rule import count_calls_kept
from .kernels.matmul import power
from .kernels.results import finish_inputs, write_answers
from .state import State

Shapes = tuple[tuple[int, ...], ...]


class Collector:
    """Has the device make the results of inputs that are done, and take their nodes back, without waiting for it. Of a few inputs
    that is one graph: an interactive user would wait longer for the launches than for the work."""

    def __init__(self, state: State, graphs: Graphs) -> None:
        self.state = state
        self.graphs = graphs
        self._rooms: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # where graphs find the slots, and put what they made

    def __call__(self, jobs: Sequence[Job], done: Sequence[int]) -> Collected:
        """The results of jobs that have these slots, which are marked as leaving."""
        shapes = self._shapes(many := len(done))
        slots, device = np.array(done), self.state.board.device
        if many > FEW:
            out = self._room(shapes)
            self._launch(send(slots, device), out, shapes)
        else:
            if many not in self._rooms:
                self._rooms[many] = torch.empty(many, dtype=torch.int32, device=device), self._room(shapes)
            place, out = self._rooms[many]
            send(slots, device, place)
            self.graphs.run(("results", many), lambda: self._launch(place, out, shapes))
        return Collected(jobs, out, shapes, numbered=self.state.shape.trie > 0)

    def _shapes(self, many: int) -> Shapes:
        """One transfer: of each answer its value, score and tokens, of each input its counts."""
        n, lengths = self.state.shape.n, self.state.shape.lengths
        return (many, n, 4), (many, n, lengths), (many, 3 + 2 * n), (many, 2)

    def _room(self, shapes: Shapes) -> torch.Tensor:
        return torch.empty(sum(map(prod, shapes)), dtype=torch.int32, device=self.state.board.device)

    def _launch(self, slots: torch.Tensor, out: torch.Tensor, shapes: Shapes) -> None:
        state, shape, many = self.state, self.state.shape, len(slots)
        out.zero_()
        values, tokens, numbers, drafts = out.split([prod(each) for each in shapes])
        if shape.times > 1:
            count_drafted[(many,)](
                slots, state.node, state.count, state.deepest, state.guessed, state.drafted, drafts, shape.lengths,
                KP=power(shape.k), num_warps=1,
            )  # fmt: skip
        sizes = {"KP": power(shape.k), "LP": power(shape.lengths)}
        finish_inputs[(many,)](
            slots, state.value, state.entry, state.tie, state.node, state.count, state.deepest, state.limit, state.rules,
            state.caps, state.norm, state.gain, state.bars, state.rows, state.steps, state.answers, state.kept, state.status,
            numbers, shape.n, shape.lengths, shape.prompt,
            MANY=shape.many, KQ=power(shape.k + 1), **sizes, num_warps=4 if shape.k <= 512 else 16,
        )  # fmt: skip
        if shape.keep:
            count_calls_kept[(many,)](
                slots, state.value, state.entry, state.tie, state.node, state.count, state.deepest, state.limit, state.rules,
                state.caps, state.norm, state.gain, state.bars, numbers, shape.n, shape.lengths, shape.prompt, **sizes,
                num_warps=4 if shape.k <= 512 else 16,
            )  # fmt: skip
        write_answers[(many, shape.n)](
            slots, state.value, state.entry, state.token, state.paths, state.node_token, state.cooled, state.deepest, state.rules,
            state.caps, state.norm, state.gain, state.answers, state.node_place, state.trie_items,
            numbers, values.view(torch.float64), tokens, shape.n, shape.lengths, shape.successors, shape.prompt,
            TRIE=shape.trie > 0, HEATED=shape.heated, **sizes, num_warps=1,
        )  # fmt: skip
        state.reclaim()


class Collected:
    """The results of some jobs, on their way to the host; the first of `results` waits."""

    def __init__(self, jobs: Sequence[Job], out: torch.Tensor, shapes: Shapes, numbered: bool) -> None:
        self._jobs, self._shapes, self._numbered = jobs, shapes, numbered
        self._answers = shapes[0][1]
        self._transfer = Transfer(out)
        self.results = self._results()

    def here(self) -> bool:
        """Whether the first of the results would come at once."""
        return self._transfer.here()

    def _results(self) -> Iterator[tuple[Job, Result]]:
        whole = self._transfer.wait()
        ends = [*accumulate(map(prod, self._shapes))]
        values, tokens, numbers, drafts = (
            whole[end - prod(shape) : end].reshape(shape) for end, shape in zip(ends, self._shapes, strict=True)
        )
        found, items = numbers[:, 3 : 3 + self._answers], numbers[:, 3 + self._answers :]
        worth: Any = values.view(np.float64).tolist()
        words = tokens[:, :, : max(1, abs(found).max())].tolist()
        numbered = items.tolist() if self._numbered else repeat(())
        made = map(result_of, self._jobs, numbers[:, :3].tolist(), found.tolist(), worth, words, numbered)
        if not drafts.any():
            yield from made
            return
        for (job, result), (drafted, accepted) in zip(made, drafts.tolist(), strict=True):
            result.drafted, result.accepted = drafted, accepted
            yield job, result


def result_of(
    job: Job, counts: list[int], lengths: list[int], worth: list[list[float]], tokens: list[list[int]], items: Sequence[int]
) -> tuple[Job, Result]:
    """A length is negative where it is that of the best hypothesis that did not finish, 0 where there is no answer."""
    calls, rows, steps = counts
    answers = []
    for i, length in enumerate(lengths):  # of all inputs in a row, at the end of a decode: nothing dearer
        if length:
            value, score = worth[i]
            answers.append(Answer(tuple(tokens[i][: abs(length)]), score, value))
    if items and job.decoding.allowed is not None:
        for answer, item in zip(answers, items, strict=False):
            answer.item = item if item >= 0 else None
    exact = job.decoding.plan.exact
    if lengths[0] > 0:
        return job, Result(answers, calls, rows, steps, exact=exact, status="complete")
    best = answers[0] if answers else Answer((), 0.0, 0.0)
    return job, Result([], calls, rows, steps, exact=exact, status="incomplete", partial=best)
