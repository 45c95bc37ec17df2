"""Algorithm 2 of the paper, line by line: as printed, and corrected. Here h = 0 and the score is a sum of increments.

As printed it is not beam search, for two reasons (`tests/search/test_algorithm_2.py` counts how often each one shows):

1. `stop` peeks at the queue before the test `pops >= k`, so it may return a finished hypothesis that is already off the beam.
   A finished hypothesis is an answer only if there is a slot for it (`with_a_slot_check`).
2. A slot at its own length is not enough: in Algorithm 1 a finished hypothesis needs a slot at every later length as well, and
   one of these lengths may already be full. The prune of Theorem 4.4, which the paper presents as a saving, rejects it (`keep`).

`keep` and `leave` are the corrected Algorithm 2 under the two rules for finished hypotheses. Only tests run this module:
`StrictSearch` and `AnyOrderSearch` score the same prefixes in the same order, and have more features.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf

Tokens = tuple[int, ...]
NextScores = Callable[[Tokens], Sequence[float]]
"""For a prefix, what each token adds to its score, indexed by token; -inf where the token cannot follow."""
Queue = list[tuple[float, int, Tokens]]
"""A heap of (-score, |y|, y), smallest first: the comparator (1) of Table 1 for best-first search. Ties: by tokens."""
Answers = list[tuple[Tokens, float]]


def as_printed(model: NextScores, k: int, n_max: int, eos: int = 0) -> tuple[Tokens, float] | None:
    """Algorithm 2 with the choice points of Table 1's column for best-first beam search. Numbers are the paper's lines."""
    queue: Queue = [(0.0, 0, ())]  # 1, 2
    pops: Counter[int] = Counter()  # 3
    while queue and queue[0][2][-1:] != (eos,):  # 4, choice point (2): stop(Q) iff Q.peek().last() = EOS
        cost, length, y = heapq.heappop(queue)  # 5
        if pops[length] >= k or length > n_max:  # 6, choice point (3)
            continue  # 7
        pops[length] += 1  # 8
        if y[-1:] == (eos,):  # 9
            heapq.heappush(queue, (cost, length + 1, (*y, eos)))  # 10
        else:  # 11
            push_children(queue, model, cost, y)  # 12 to 15
    if not queue:
        return None
    cost, _, y = heapq.heappop(queue)  # 16
    return y, -cost


def with_a_slot_check(model: NextScores, k: int, n_max: int, eos: int = 0) -> tuple[Tokens, float] | None:
    """The first error corrected: a finished hypothesis is an answer only if there is a slot left at its own length."""
    queue: Queue = [(0.0, 0, ())]
    pops: Counter[int] = Counter()
    while queue:
        cost, length, y = heapq.heappop(queue)
        if pops[length] >= k:
            continue
        pops[length] += 1
        if y[-1:] == (eos,):
            return y, -cost
        if length < n_max:
            push_children(queue, model, cost, y)
    return None


def keep(model: NextScores, k: int, n_max: int, n: int = 1, eos: int = 0) -> tuple[Answers, list[Tokens]]:
    """Both errors corrected, finished hypotheses as in Algorithm 1: each takes a slot at its own and at every later length.

    Hypotheses no longer than a full length are dropped (Theorem 4.4). Returns the n best answers, and the expanded prefixes.
    """
    queue: Queue = [(0.0, 0, ())]
    pops: Counter[int] = Counter()
    floor = -1  # the longest full length: k of its slots are taken
    answers: Answers = []
    expanded: list[Tokens] = []
    while queue and len(answers) < n:
        cost, length, y = heapq.heappop(queue)
        if length <= floor:
            continue
        finished = y[-1:] == (eos,)
        for slot in range(length, n_max + 1) if finished else [length]:
            pops[slot] += 1
            if pops[slot] == k:
                floor = max(floor, slot)
        if finished:
            answers.append((y, -cost))
        elif length < n_max:
            expanded.append(y)
            push_children(queue, model, cost, y)
    return answers, expanded


def leave(model: NextScores, k: int, n_max: int, n: int = 1, eos: int = 0) -> tuple[Answers, list[Tokens]]:
    """The rule of today's toolkits: expand if fewer than k unfinished hypotheses of this length were popped before, accept a
    finished one if fewer than k of any kind were. Returns the n best answers, and the expanded prefixes in order.
    """
    queue: Queue = [(0.0, 0, ())]
    unfinished: Counter[int] = Counter()
    popped: Counter[int] = Counter()  # finished ones included
    answers: Answers = []
    expanded: list[Tokens] = []

    def dead(length: int) -> bool:
        """Whether every continuation of a hypothesis of this length falls off a beam before it could be accepted."""
        for longer in range(length + 1, n_max + 1):
            if unfinished[longer] >= k:
                return True
            if popped[longer] < k:
                return False  # a continuation may still finish there
        return True

    while queue and len(answers) < n:
        cost, length, y = heapq.heappop(queue)
        popped[length] += 1
        if y[-1:] == (eos,):
            if popped[length] <= k:
                answers.append((y, -cost))
            continue
        unfinished[length] += 1
        if unfinished[length] <= k and length < n_max and not dead(length):
            expanded.append(y)
            push_children(queue, model, cost, y)
    return answers, expanded


def push_children(queue: Queue, model: NextScores, cost: float, y: Tokens) -> None:
    """Lines 12 to 15 of Algorithm 2: push every one-token extension of y."""
    for token, increment in enumerate(model(y)):
        if increment > -inf:
            heapq.heappush(queue, (cost - increment, len(y) + 1, (*y, token)))
