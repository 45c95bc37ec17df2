"""Collector: has the device make the results of finished inputs and transfers them while it works on others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, repeat
from math import prod
from typing import Any

import numpy as np
import torch

from ...search import Answer, Result
from ..engine import Job
from .admission import SMALL_BATCH
from .cuda_graphs import Graphs, Transfer, send
from .kernels.draft_rows import count_drafted
from .kernels.keep_rule import count_calls_kept
from .kernels.matmul import power
from .kernels.results import finish_inputs, write_answers
from .state import State

Shapes = tuple[tuple[int, ...], ...]


class Collector:
    """Queues the kernels that turn finished searches into results and free their nodes, without waiting for them. For a few
    inputs they are a CUDA graph: an interactive user would wait longer for the launches than for the work."""

    def __init__(self, state: State, graphs: Graphs) -> None:
        self.state = state
        self.graphs = graphs
        self._graph_buffers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by inputs: slots and output of a graph

    def __call__(self, jobs: Sequence[Job], done: Sequence[int]) -> Collected:
        """The results of jobs whose slots are `done`, on their way to the host. The kernels mark the slots as leaving."""
        shapes = self._shapes(many := len(done))
        slots, device = np.array(done), self.state.board.device
        if many > SMALL_BATCH:
            out = self._result_buffer(shapes)
            self._launch(send(slots, device), out, shapes)
        else:
            if many not in self._graph_buffers:
                self._graph_buffers[many] = torch.empty(many, dtype=torch.int32, device=device), self._result_buffer(shapes)
            place, out = self._graph_buffers[many]
            send(slots, device, place)
            self.graphs.run(("results", many), lambda: self._launch(place, out, shapes))
        return Collected(jobs, out, shapes, numbered=self.state.shape.trie > 0)

    def _shapes(self, many: int) -> Shapes:
        """One transfer: of each answer log-probability and score (two float64), and tokens; of each input its counts, lengths and
        trie items of its answers, and how many rows were drafted and accepted."""
        n, lengths = self.state.shape.n, self.state.shape.lengths
        return (many, n, 4), (many, n, lengths), (many, 3 + 2 * n), (many, 2)

    def _result_buffer(self, shapes: Shapes) -> torch.Tensor:
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
    """The results of some jobs, in transfer to the host. The first item of `results` blocks until they have arrived."""

    def __init__(self, jobs: Sequence[Job], out: torch.Tensor, shapes: Shapes, numbered: bool) -> None:
        self._jobs, self._shapes, self._numbered = jobs, shapes, numbered
        self._transfer = Transfer(out)
        self.results = self._results()

    def ready(self) -> bool:
        """Whether `results` would not block."""
        return self._transfer.ready()

    def _results(self) -> Iterator[tuple[Job, Result]]:
        flat = self._transfer.wait()
        ends = [*accumulate(map(prod, self._shapes))]
        values, tokens, numbers, drafts = (
            flat[end - prod(shape) : end].reshape(shape) for end, shape in zip(ends, self._shapes, strict=True)
        )
        found_lengths, items = np.split(numbers[:, 3:], 2, axis=1)
        worth: Any = values.view(np.float64).tolist()
        words = tokens[:, :, : max(1, abs(found_lengths).max())].tolist()
        numbered = items.tolist() if self._numbered else repeat(())
        results = map(result_of, self._jobs, numbers[:, :3].tolist(), found_lengths.tolist(), worth, words, numbered)
        if not drafts.any():
            yield from results
            return
        for (job, result), (drafted, accepted) in zip(results, drafts.tolist(), strict=True):
            result.drafted, result.accepted = drafted, accepted
            yield job, result


def result_of(
    job: Job, counts: list[int], lengths: list[int], worth: list[list[float]], tokens: list[list[int]], items: Sequence[int]
) -> tuple[Job, Result]:
    """A job's result from its numbers. `lengths`: of each answer, 0 where there is none, negative for the best hypothesis that
    did not finish. `worth`: log-probability and score of each. `items`: their numbers in the trie, -1 for none."""
    calls, rows, steps = counts
    answers = []
    for i, length in enumerate(lengths):  # runs for all inputs at the end of a decode: keep it cheap
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
