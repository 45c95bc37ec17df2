# ruff: noqa: ANN001, ANN201, N803  a kernel's arguments are pointers and numbers; capitals are sizes
"""Results of inputs that are done: answers and what the certificate counts, on the way from the device to the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np
import torch
import triton
import triton.language as tl

from ...search import Answer, Result
from ..engine import Job
from .beams import ENDS, INF
from .launch import Transfer
from .rows import LEAVING
from .sizes import power
from .state import State


@triton.jit
def settle(
    slots, value, entry, node, count, token, paths, node_token, deepest, limit, beam, nbest, rows, steps, answers, answer_value,
    status, out, out_values, out_tokens, most, L, W, P, KP: tl.constexpr, LP: tl.constexpr,
):  # fmt: skip
    """An input's calls, rows, steps and the lengths of its n answers into `out`; these answers' values and tokens.

    Calls: the closed members that precede the n-th answer and are not hopeless (`Search.calls`).

    Hopeless is what is worth less than H[t] = max(B[t+1], min(A[t+1], H[t+1])), where B is the k-th unfinished value of a beam
    and A the k-th of all its members: the paper's Theorem 4.4, walked from the longest beam back.
    """
    i = tl.program_id(0)
    s = tl.load(slots + i)
    k = tl.load(beam + s)
    n = tl.load(nbest + s)
    lanes = tl.arange(0, 2 * KP)
    deep = tl.load(deepest + s)
    end = tl.load(limit + s)
    bar = tl.full([], -INF, tl.float64)
    bar_length = LP
    if tl.load(answers + (s * most + n - 1) * 2) >= 0:
        bar = tl.load(answer_value + s * most + n - 1)
        bar_length = tl.load(answers + (s * most + n - 1) * 2)
    calls = 0
    t = deep
    hope = tl.where(deep >= end, INF, -INF).to(tl.float64)
    while t >= 0:
        at = 2 * (s * L + t)
        unfinished = at.to(tl.int64) * KP
        finished = unfinished + KP
        m = tl.load(count + at)
        f = tl.load(count + at + 1)
        x_value = tl.load(value + unfinished + lanes, mask=lanes < m, other=-INF)
        x_node = tl.load(node + unfinished + lanes, mask=lanes < m, other=-1)
        counts = (x_node >= 0) & (x_value >= hope) & ((x_value > bar) | ((x_value == bar) & (t < bar_length)))
        calls += tl.where(t < end, tl.sum(counts.to(tl.int32), 0), 0)
        # The k-th of both lists together is the best over i of the lesser of the i-th unfinished and the (k - i)-th finished.
        u = tl.load(value + unfinished + lanes - 1, mask=(lanes > 0) & (lanes <= m), other=-INF)
        u = tl.where(lanes == 0, INF, u)
        v = tl.load(value + finished + k - 1 - lanes, mask=(lanes < k) & (k - 1 - lanes < f), other=-INF)
        v = tl.where(lanes == k, INF, v)
        kth = tl.max(tl.where(lanes <= k, tl.minimum(u, v), -INF), 0)
        last = tl.max(tl.where((lanes == k - 1) & (lanes < m), x_value, -INF), 0)
        hope = tl.maximum(last, tl.minimum(kth, hope))
        t -= 1
    tl.store(status + s, LEAVING)
    tl.store(out + i * (3 + most), calls - (P - 1))
    tl.store(out + i * (3 + most) + 1, tl.load(rows + s))
    tl.store(out + i * (3 + most) + 2, tl.load(steps + s))
    # Tokens: the parent's path, and the last one. Nothing finished: the first of the longest beam instead, its length negative.
    lengths = tl.arange(0, LP)
    a = 0
    while a < n:
        length = tl.load(answers + (s * most + a) * 2)
        sign = 1
        cell = (2 * (s * L + length) + 1).to(tl.int64) * KP + tl.load(answers + (s * most + a) * 2 + 1)
        if length < 0:
            sign = tl.where(a == 0, -1, 0)
            length = deep
            cell = (2 * (s * L + length)).to(tl.int64) * KP
        if sign != 0:
            e = tl.load(entry + cell)
            parent = tl.where(length > 0, e // W, 0)
            path = tl.load(paths + parent * L + lengths, mask=lengths < length, other=0)
            words = tl.load(node_token + path, mask=lengths < length, other=0)
            words = tl.where(lengths == length, tl.load(token + e) & (ENDS - 1), words)
            tl.store(out_tokens + (i * most + a) * L + lengths - P, words, mask=(lengths >= P) & (lengths <= length))
            tl.store(out_values + i * most + a, tl.load(value + cell))
        tl.store(out + i * (3 + most) + 3 + a, tl.where(sign == 0, 0, sign * (length - P + 1)))
        a += 1


class Collected:
    """The results of some jobs that are done, which are marked as leaving. Made without waiting for the device; the first of
    `results` waits."""

    def __init__(self, state: State, jobs: Sequence[Job], slots: torch.Tensor) -> None:
        self._jobs = jobs
        shape, many = state.shape, len(slots)
        # One transfer: of each answer its value and tokens, of each input its counts.
        self._shapes = (many, shape.n, 2), (many, shape.n, shape.lengths), (many, 3 + shape.n)
        out = torch.zeros(sum(map(prod, self._shapes)), dtype=torch.int32, device=slots.device)
        values, tokens, numbers = out.split([prod(shape) for shape in self._shapes])
        settle[(many,)](
            slots, state.value, state.entry, state.node, state.count, state.token, state.paths, state.node_token, state.deepest,
            state.limit, state.beam, state.nbest, state.rows, state.steps, state.answers, state.answer_value, state.status,
            numbers, values.view(torch.float64), tokens, shape.n, shape.lengths, shape.successors, shape.prompt,
            KP=power(shape.k), LP=power(shape.lengths), num_warps=4,
        )  # fmt: skip
        self._transfer = Transfer(out)
        self.results = self._results()

    def here(self) -> bool:
        """Whether the first of the results would come at once."""
        return self._transfer.here()

    def _results(self) -> Iterator[tuple[Job, Result]]:
        parts = np.split(self._transfer.wait(), np.cumsum([prod(shape) for shape in self._shapes])[:-1])
        values, tokens, numbers = (part.reshape(shape) for part, shape in zip(parts, self._shapes, strict=True))
        lengths = numbers[:, 3:].tolist()
        worth = values.view(np.float64)[:, :, 0].tolist()
        words = tokens[:, :, : max(1, abs(numbers[:, 3:]).max())].tolist()
        for each in zip(self._jobs, numbers[:, :3].tolist(), lengths, worth, words, strict=True):
            yield each[0], result_of(*each[1:])


def result_of(counts: list[int], lengths: list[int], values: list[float], tokens: list[list[int]]) -> Result:
    """A length is negative where it is that of the best hypothesis that did not finish, 0 where there is no answer."""
    found = zip(lengths, values, tokens, strict=True)
    answers = [Answer(tuple(words[: abs(length)]), value, value) for length, value, words in found if length]
    if lengths[0] > 0:
        return Result(answers, *counts, 0, True, "complete")
    return Result([], *counts, 0, True, "incomplete", None, answers[0] if answers else Answer((), 0.0, 0.0))
