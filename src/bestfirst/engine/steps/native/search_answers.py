"""Search answers: what a compiled search has found, ranked by score, length and tokens. Of a progress, `q`, and a search, `h`."""

from __future__ import annotations

from typing import Any

from . import search_plan as s
from .kernels import compiled
from .memory_views import doubles, ints
from .search_nodes import token_of, tokens_before


@compiled()
def norm(h: Any, what: int, length: int) -> float:
    """What values of this length are divided by."""
    return doubles(h[s.NORMS_AT], (2, h[s.N_MAX] + 2))[what, length]


@compiled()
def length_of(q: Any, h: Any, i: int) -> int:
    """The i-th answer's."""
    parent = ints(q[s.ANSWERS_AT], (i + 1, 2))[i, 0]
    return ints(h[s.NODES_AT], (h[s.NODES], 5))[parent, s.LENGTH] + 1


@compiled()
def score_of(q: Any, h: Any, i: int) -> float:
    return doubles(q[s.ANSWER_VALUES_AT], (i + 1,))[i] / norm(h, s.SCORE, length_of(q, h, i))


@compiled()
def precedes(q: Any, h: Any, i: int, worth: float, length: int, parent: int, token: int) -> bool:
    """Whether the i-th answer comes before what is worth so much, of this length, and ends in `token` after `parent`."""
    score, own = score_of(q, h, i), length_of(q, h, i)
    if score != worth:
        return score > worth
    if own != length:
        return own < length
    whence = ints(q[s.ANSWERS_AT], (i + 1, 2))[i]
    return tokens_before(h, whence[0], token_of(h, whence[0], whence[1]), parent, token)


@compiled()
def answers_before(q: Any, h: Any, worth: float, length: int, y: int) -> int:
    """How many answers precede what is worth so much, of this length, with the tokens of `y`."""
    node = ints(h[s.NODES_AT], (h[s.NODES], 5))[y]
    count = 0
    while count < q[s.FOUND] and precedes(q, h, count, worth, length, node[s.PARENT], node[s.TOKEN]):
        count += 1
    return count


@compiled()
def add_answer(q: Any, h: Any, value: float, length: int, parent: int, j: int) -> None:
    """The j-th child of `parent`, to its place."""
    at, token = q[s.FOUND], token_of(h, parent, j)
    worth = value / norm(h, s.SCORE, length)
    values, whence = doubles(q[s.ANSWER_VALUES_AT], (at + 1,)), ints(q[s.ANSWERS_AT], (at + 1, 2))
    while at > 0 and not precedes(q, h, at - 1, worth, length, parent, token):
        values[at], whence[at, 0], whence[at, 1] = values[at - 1], whence[at - 1, 0], whence[at - 1, 1]
        at -= 1
    values[at], whence[at, 0], whence[at, 1] = value, parent, j
    q[s.FOUND] += 1
