"""RequiredWordsSearch: beam search whose outputs must contain given words, with a beam for every number of missing tokens.

A hypothesis that begins a required word would lose to likelier ones that do not. So hypotheses compete only with those that miss
as many tokens: the beam of length t and *bank* r holds the k best of length t that miss r tokens (`RequiredWords.missing`), among
the children of all beams of length t - 1 (grid beam search, Hokamp and Liu, 2017; banks, Post and Vilar, 2018). EOS may follow
when nothing is missing; a finished hypothesis is an answer if fewer than k of its length and bank 0 precede it.

The search computes exactly this: level by level or, by a score that is its own bound, best first until n answers are certain. As
in Algorithm 2, a hypothesis that is popped after k of its beam is off the beam, whichever beams its rivals came from. Both orders
give the same answers, and those of this definition (`tests/search/test_banked.py`).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from .hypothesis import Hypothesis, Key, Successors
from .policy import BaseSearch
from .result import Answer, Result
from .table_1 import Strategy

Tokens = tuple[int, ...]


class WordsState(NamedTuple):
    """How much of the required words an output contains. Outputs of one state have the same continuations."""

    present: int  # which sets have occurred, as bits
    suffix: Tokens  # the longest suffix of the output that begins a sequence of a missing set
    missing: int  # tokens that are missing: the shortest sequence of each set, less what one of them has already begun
    helpful: frozenset[int]  # the tokens that begin or continue a sequence of a missing set


class RequiredWords:
    """Sets of token sequences; an output must contain one sequence of each set. Occurrences may overlap.

    `RequiredWords([[(4, 7)], [(5,), (6, 6)]])`: 4 7, and 5 or 6 6.
    """

    def __init__(self, sets: Sequence[Sequence[Sequence[int]]]) -> None:
        self.sets = tuple(tuple(dict.fromkeys(tuple(each) for each in some)) for some in sets)
        if not self.sets or not all(some and all(some) for some in self.sets):
            raise ValueError("a word that must occur needs at least one token")
        self.start = self._state(0, ())
        self.helpful_count = len({token for some in self.sets for each in some for token in each})
        self._after: dict[tuple[WordsState, int], WordsState] = {}

    def after(self, state: WordsState, token: int) -> WordsState:
        """The state one token later."""
        after = self._after.get((state, token))
        if after is None:
            after = self._after[state, token] = self._state(state.present, (*state.suffix, token))
        return after

    def _state(self, present: int, tokens: Tokens) -> WordsState:
        for i, some in enumerate(self.sets):
            if any(tokens[-len(each) :] == each for each in some):
                present |= 1 << i
        whole = end = saved = 0  # tokens of the shortest sequences; of the suffix; the most that is begun already
        helpful: set[int] = set()
        for some in (some for i, some in enumerate(self.sets) if not present >> i & 1):
            shortest = min(map(len, some))
            whole += shortest
            for each in some:
                begun = [n for n in range(len(each)) if tokens[len(tokens) - n :] == each[:n]]
                helpful |= {each[n] for n in begun}
                end, saved = max(end, begun[-1]), max(saved, shortest - len(each) + begun[-1])
        return WordsState(present, tokens[len(tokens) - end :], whole - saved, frozenset(helpful))

    def __repr__(self) -> str:
        return f"Words({[list(map(list, some)) for some in self.sets]})"


def alternatives_of(given: Any) -> tuple[Any, ...]:
    """A required word as its alternatives, texts or tuples of token ids. Raises ValueError for anything else."""
    some = list(given) if isinstance(given, (list, tuple)) else [given]
    if some and all(isinstance(token, int) for token in some):
        some = [some]
    found = tuple(each if isinstance(each, str) else tuple(each) for each in some if isinstance(each, (str, list, tuple)))
    if any(each in ("", ()) for each in found):
        raise ValueError(f"must_contain has an empty word, which says nothing; leave it out of {given!r}")
    if not some or len(found) < len(some):
        raise ValueError(
            f"must_contain is a list of words, each a text, token ids, or a list of such for one of them, got {given!r}"
        )
    return found


def token_sequences(some: Sequence[Any], model: Any) -> list[Sequence[int]]:
    """The tokens of each alternative. A text may stand at the beginning or follow a space, so both of its tokenizations count."""
    found: list[Sequence[int]] = [each for each in some if not isinstance(each, str)]
    for text in (each for each in some if isinstance(each, str)):
        tokens = [each for each in model.targets([text, " " + text]) if each]
        if not tokens:
            raise ValueError(f"the model cannot write {text!r}, which must occur")
        found += tokens
    return found


class RequiredWordsSearch(BaseSearch):
    """The search of one input; implements `Search`."""

    def __init__(self, strategy: Strategy, *, words: RequiredWords, **settings: Any) -> None:
        super().__init__(strategy, **settings)
        self.words, self.k = words, int(strategy.k)
        self.whole_levels = not self.score.value_only or strategy.level_by_level
        self.level_rows = min(self.k * (1 + words.start.missing), 1024)
        self.width = self.k + len(self.eos) + words.helpful_count
        self._states: dict[Hypothesis, WordsState] = {}
        self._queue: list[tuple[Key, Hypothesis]] = []
        self._popped: Counter[tuple[int, int]] = Counter()  # by length and bank, how many were popped
        self._unfinished: Counter[tuple[int, int]] = Counter()  # and those of them that are unfinished
        self._answers: list[Hypothesis] = []
        self._needed: list[Hypothesis] = []
        self._deepest = self.root
        self._push(self.root, words.start)
        self._advance()

    # -- what to score -------------------------------------------------------------------------------------------------------

    def frontier(self, m: int) -> list[Hypothesis]:
        """Up to `m` hypotheses to score now: level by level, of the current level; else the needed one, then likely ones."""
        if self.whole_levels or not self._needed:
            return self._needed[:m]
        ahead = [y for _, y in heapq.nsmallest(4 * m, self._queue) if self._may_matter(y)] if m > 1 else []
        return [*self._needed, *ahead][:m]

    def _may_matter(self, y: Hypothesis) -> bool:
        """Whether a queued hypothesis can be scored, and its beam still has a slot."""
        open_ = not y.finished and y.successors is None and y.length < self.context.n_max
        return open_ and self._unfinished[y.length, self._bank(y)] < self.k

    def commit(self, y: Hypothesis, successors: Successors) -> None:
        y.successors = self.checked_successors(y, successors)
        self.rows += 1
        if y in self._needed:
            self._needed.remove(y)
            self._push_children(y)
            if not self._needed:
                self._advance()

    # -- the next in order ---------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Pop and push up to the next hypothesis that is needed and not scored; or to the next level."""
        while self._queue and not self._needed and not self._is_over():
            y = heapq.heappop(self._queue)[1]
            turn = [y]
            while self.whole_levels and self._queue and self._queue[0][1].length == y.length:
                turn.append(heapq.heappop(self._queue)[1])
            for y in filter(self._enters, turn):
                if y.successors is None:
                    self._needed.append(y)
                else:
                    self._push_children(y)
        if self.whole_levels and self._is_over():
            self._needed = []

    def _is_over(self) -> bool:
        """Whether n answers are certain. Level by level: they precede all that a queued or needed hypothesis could become."""
        if len(self._answers) < self.n or not self.whole_levels:
            return len(self._answers) >= self.n
        last = self._best_answers()[-1].worth
        open_ = [y for _, y in self._queue] + self._needed
        return all((y.worth if y.finished else y.bound) < last for y in open_)

    def _enters(self, y: Hypothesis) -> bool:
        """Whether a popped hypothesis is to be scored: it is unfinished, and has a slot on its beam."""
        beam = y.length, self._bank(y)
        self._popped[beam] += 1
        if y.finished:
            if self._popped[beam] <= self.k:
                self._answers.append(y)
            return False
        self._unfinished[beam] += 1
        if self._unfinished[beam] > self.k:
            return False
        if y.length > self._deepest.length:
            self._deepest = y
        return y.length < self.context.n_max

    def _push_children(self, y: Hypothesis) -> None:
        """Push the children of `y`: of each bank the k best unfinished and k best finished, for more have no slot on its beam."""
        self.calls += 1
        state, successors = self._states[y], y.successors
        assert successors is not None
        logprobs = successors.values if successors.logprobs is None else successors.logprobs
        banks: Counter[int] = Counter()
        for value, token, logprob in zip(successors.values, successors.tokens, logprobs, strict=True):
            finished = token in self.eos
            if finished and state.missing:
                continue
            after = state if finished else self.words.after(state, token)
            bank = after.missing
            banks[bank, finished] += 1  # type: ignore[index]
            if banks[bank, finished] <= self.k:  # type: ignore[index]
                self._push(Hypothesis(y, token, y.value + value, y.logprob + logprob, finished), after)

    def _push(self, y: Hypothesis, state: WordsState) -> None:
        self.set_scores(y)
        y.wanted = state.helpful
        self._states[y] = state
        key = (y.length, -y.value, y.tokens) if self.whole_levels else (-y.value, y.length, y.tokens)
        heapq.heappush(self._queue, (key, y))

    def _bank(self, y: Hypothesis) -> int:
        return self._states[y].missing

    # -- the result ----------------------------------------------------------------------------------------------------------

    def _best_answers(self) -> list[Hypothesis]:
        return sorted(self._answers, key=lambda y: (-y.worth, y.length, y.tokens))[: self.n]

    def result(self) -> Result:
        return self.make_result([Answer.of(y) for y in self._best_answers()], self._deepest)

    def dismantle(self) -> None:
        self._queue.clear()
        self._states.clear()
