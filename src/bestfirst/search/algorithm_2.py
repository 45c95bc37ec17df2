"""Algorithm 2, to be read beside the paper: as it is printed, and mended. `h` is 0, the score is a sum of increments.

Printed, it is not beam search, for two reasons (`tests/search/test_algorithm_2.py` has how often each one shows):

1. `stop` peeks at the queue before the test `pops >= k`, so that a finished hypothesis which is off the beam may be returned.
   It is an answer only if there is a slot for it (`with_a_slot_check`).
2. A slot at its own length is not enough: in Algorithm 1 a finished hypothesis needs one at every later length, and one of these
   may be full already. The prune of Theorem 4.4, presented as a saving, is what refuses it (`keep`).

`keep` and `leave` are Algorithm 2 under the two rules for finished hypotheses. Nothing runs them but tests: `StrictSearch` and
`AnyOrderSearch` score the same prefixes in the same order, and can do more.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf

Tokens = tuple[int, ...]
NextScores = Callable[[Tokens], Sequence[float]]
"""What each token, by its number, adds to the score of a prefix; -inf where it cannot follow."""
Queue = list[tuple[float, int, Tokens]]
"""A heap of (-s, |y|, y): the comparator of Table 1 for best-first search, smallest first; equals by their tokens."""
Answers = list[tuple[Tokens, float]]


def as_printed(model: NextScores, k: int, n_max: int, eos: int = 0) -> tuple[Tokens, float] | None:
    """Algorithm 2 with Table 1's column for best-first beam search, line by line. Not beam search."""
    queue: Queue = [(0.0, 0, ())]  # 1, 2
    pops: Counter[int] = Counter()  # 3
    while queue and queue[0][2][-1:] != (eos,):  # 4: stop(Q) iff Q.peek().last() = EOS
        cost, length, y = heapq.heappop(queue)  # 5
        if pops[length] >= k or length > n_max:  # 6
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
    """The first error mended: a finished hypothesis is an answer only if there is a slot left at its own length."""
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
    """Both errors mended: a finished hypothesis takes a slot of every later length, and what a full length left behind is gone.

    Returns the n best answers, and the expanded prefixes, in order.
    """
    queue: Queue = [(0.0, 0, ())]
    pops: Counter[int] = Counter()
    floor = -1  # the longest length of which k were popped
    answers: Answers = []
    expanded: list[Tokens] = []
    while queue and len(answers) < n:
        cost, length, y = heapq.heappop(queue)
        if length <= floor:
            continue
        finished = y[-1:] == (eos,)
        for taken in range(length, n_max + 1) if finished else [length]:
            pops[taken] += 1
            if pops[taken] == k:
                floor = max(floor, taken)
        if finished:
            answers.append((y, -cost))
        elif length < n_max:
            expanded.append(y)
            push_children(queue, model, cost, y)
    return answers, expanded


def leave(model: NextScores, k: int, n_max: int, n: int = 1, eos: int = 0) -> tuple[Answers, list[Tokens]]:
    """Today's rule: expand if fewer than k unfinished ones of this length were popped, accept if fewer than k at all.

    Returns the n best answers, and the expanded prefixes, in order.
    """
    queue: Queue = [(0.0, 0, ())]
    unfinished: Counter[int] = Counter()
    popped: Counter[int] = Counter()
    answers: Answers = []
    expanded: list[Tokens] = []

    def dead(length: int) -> bool:
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
    """Lines 12 to 15 of Algorithm 2."""
    for token, increment in enumerate(model(y)):
        if increment > -inf:
            heapq.heappush(queue, (cost - increment, len(y) + 1, (*y, token)))
