"""Words: what an output has to contain, in any order, how much of it is still missing, and how users say it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Tokens = tuple[int, ...]
State = tuple[int, Tokens]
"""Which of the words have occurred, as bits; and the longest end of the output that may become one of the others."""


class Words:
    """Sets of token sequences; of each set one has to occur. They may overlap.

    `Words([[(4, 7)], [(5,), (6, 6)]])`: 4 7, and 5 or 6 6.
    """

    def __init__(self, sets: Sequence[Sequence[Sequence[int]]]) -> None:
        self.sets = tuple(tuple(dict.fromkeys(tuple(each) for each in some)) for some in sets)
        if not self.sets or not all(some and all(some) for some in self.sets):
            raise ValueError("a word that must occur needs at least one token")
        self.start: State = (0, ())
        self.most_helpful = len({token for some in self.sets for each in some for token in each})
        self._shortest = [min(map(len, some)) for some in self.sets]
        self._after: dict[tuple[State, int], State] = {}
        self._missing: dict[State, int] = {}
        self._helpful: dict[State, frozenset[int]] = {}

    def after(self, state: State, token: int) -> State:
        """The state one token later."""
        found = self._after.get((state, token))
        if found is None:
            found = self._after[state, token] = self._next(state, token)
        return found

    def _next(self, state: State, token: int) -> State:
        here, tokens = state[0], (*state[1], token)
        for i, some in enumerate(self.sets):
            if any(tokens[-len(each) :] == each for each in some):
                here |= 1 << i
        begun = max((len(part) for part, _, _ in self._begun(here, tokens)), default=0)
        return here, tokens[len(tokens) - begun :]

    def _begun(self, here: int, tokens: Tokens) -> list[tuple[Tokens, Tokens, int]]:
        """Beginnings of missing words that `tokens` ends with: the part that is there, the word, and its set."""
        return [
            (each[:n], each, i)
            for i, some in enumerate(self.sets)
            if not here >> i & 1
            for each in some
            for n in range(1, len(each))
            if tokens[-n:] == each[:n]
        ]

    def missing(self, state: State) -> int:
        """Tokens that are missing: of each set the fewest, less what one of them has already begun."""
        found = self._missing.get(state)
        if found is None:
            here, tokens = state
            whole = sum(n for i, n in enumerate(self._shortest) if not here >> i & 1)
            begun = [self._shortest[i] - len(each) + len(part) for part, each, i in self._begun(here, tokens)]
            found = self._missing[state] = whole - max([0, *begun])
        return found

    def helpful(self, state: State) -> frozenset[int]:
        """The tokens that begin a missing word, or go on with one."""
        found = self._helpful.get(state)
        if found is None:
            here, tokens = state
            first = {each[0] for i, some in enumerate(self.sets) if not here >> i & 1 for each in some}
            found = frozenset(first | {each[len(part)] for part, each, _ in self._begun(here, tokens)})
            self._helpful[state] = found
        return found

    def complete(self, state: State) -> bool:
        """Whether nothing is missing."""
        return state[0] == (1 << len(self.sets)) - 1

    def __repr__(self) -> str:
        return f"Words({[list(map(list, some)) for some in self.sets]})"


def words_of(given: Sequence[Any]) -> tuple[Any, ...]:
    """Each word as a tuple of its alternatives, texts or tuples of token ids. ValueError, naming it, for what is neither."""
    return tuple(_alternatives(each) for each in given)


def _alternatives(given: Any) -> tuple[Any, ...]:
    some = list(given) if isinstance(given, (list, tuple)) else [given]
    if some and all(isinstance(token, int) for token in some):
        some = [some]
    found = tuple(each if isinstance(each, str) else tuple(each) for each in some if isinstance(each, (str, list, tuple)))
    if not some or len(found) < len(some) or not all(found):
        raise ValueError(
            f"must_contain is a list of words, each a text, token ids, or a list of such for one of them, got {given!r}"
        )
    return found


def spelled(some: Sequence[Any], model: Any) -> list[Sequence[int]]:
    """The tokens of each alternative, as the model writes it first and behind a space."""
    found: list[Sequence[int]] = [each for each in some if not isinstance(each, str)]
    for text in (each for each in some if isinstance(each, str)):
        tokens = [each for each in model.targets([text, " " + text]) if each]
        if not tokens:
            raise ValueError(f"the model cannot write {text!r}, which must occur")
        found += tokens
    return found
