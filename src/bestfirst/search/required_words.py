"""RequiredWordsSearch: beam search whose outputs must contain given words, with a beam for every number of missing tokens.

A hypothesis that begins a word which has to occur would lose to likelier ones that do not. So hypotheses compete only with those
that miss as much: the beam of length t and *bank* r are the k best of length t that miss r tokens (`RequiredWords.missing`),
among the children of all beams of length t - 1 (grid beam search, Hokamp and Liu, 2017; banks, Post and Vilar, 2018). EOS may
come when nothing is missing; a finished hypothesis is an answer if fewer than k of its length and bank 0 precede it.

That is what is computed: level by level, or, by a score that is its own bound, best first, until n answers are sure. As in
Algorithm 2, whatever comes to the front after k of its beam have is off the beam, whichever beams its rivals came from. The
two give the same answers, and those of the definition above (`tests/search/test_banked.py`).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from .hypothesis import Hypothesis, Successors
from .policy import AskedSearch
from .result import Answer, Result
from .table_1 import Strategy

Tokens = tuple[int, ...]


class WordsState(NamedTuple):
    """What an output has of the words that must occur. Outputs of one state go on alike."""

    here: int  # which of them have occurred, as bits
    end: Tokens  # the longest end of the output that may become one of the others
    missing: int  # tokens that are missing: of each set the fewest, less what one of them has already begun
    helpful: frozenset[int]  # the tokens that begin a missing word, or go on with one


class RequiredWords:
    """Sets of token sequences; of each set one has to occur. They may overlap.

    `RequiredWords([[(4, 7)], [(5,), (6, 6)]])`: 4 7, and 5 or 6 6.
    """

    def __init__(self, sets: Sequence[Sequence[Sequence[int]]]) -> None:
        self.sets = tuple(tuple(dict.fromkeys(tuple(each) for each in some)) for some in sets)
        if not self.sets or not all(some and all(some) for some in self.sets):
            raise ValueError("a word that must occur needs at least one token")
        self.start = self._state(0, ())
        self.most_helpful = len({token for some in self.sets for each in some for token in each})
        self._after: dict[tuple[WordsState, int], WordsState] = {}

    def after(self, state: WordsState, token: int) -> WordsState:
        """The state one token later."""
        found = self._after.get((state, token))
        if found is None:
            found = self._after[state, token] = self._state(state.here, (*state.end, token))
        return found

    def _state(self, here: int, tokens: Tokens) -> WordsState:
        for i, some in enumerate(self.sets):
            if any(tokens[-len(each) :] == each for each in some):
                here |= 1 << i
        whole = end = saved = 0
        helpful: set[int] = set()
        for some in (some for i, some in enumerate(self.sets) if not here >> i & 1):
            shortest = min(map(len, some))
            whole += shortest
            for each in some:
                begun = [n for n in range(len(each)) if tokens[len(tokens) - n :] == each[:n]]
                helpful |= {each[n] for n in begun}
                end, saved = max(end, begun[-1]), max(saved, shortest - len(each) + begun[-1])
        return WordsState(here, tokens[len(tokens) - end :], whole - saved, frozenset(helpful))

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


Order = tuple[float, float, tuple[int, ...]]


class RequiredWordsSearch(AskedSearch):
    """One input's search. It is driven as every `Search` is."""

    def __init__(self, strategy: Strategy, *, words: RequiredWords, **settings: Any) -> None:
        super().__init__(strategy, **settings)
        self.words, self.k = words, int(strategy.k)
        self.whole_levels = not self.score.value_only or strategy.level_by_level
        self.level_rows = min(self.k * (1 + words.start.missing), 1024)
        self.width = self.k + len(self.eos) + words.most_helpful
        self._states: dict[Hypothesis, WordsState] = {}
        self._waiting: list[tuple[Order, Hypothesis]] = []
        self._came: Counter[tuple[int, int]] = Counter()  # by length and bank, how many came to the front
        self._unfinished: Counter[tuple[int, int]] = Counter()  # and those of them that are unfinished
        self._answers: list[Hypothesis] = []
        self._needed: list[Hypothesis] = []
        self._deepest = self.root
        self._place(self.root, words.start)
        self._go_on()

    # -- what to score -------------------------------------------------------------------------------------------------------

    def frontier(self, m: int) -> list[Hypothesis]:
        """Level by level all of a level that is not scored; else the needed one, and then what is likely to be."""
        if self.whole_levels or not self._needed:
            return self._needed[:m]
        ahead = [y for _, y in heapq.nsmallest(4 * m, self._waiting) if self._may_matter(y)] if m > 1 else []
        return [*self._needed, *ahead][:m]

    def _may_matter(self, y: Hypothesis) -> bool:
        open_ = not y.finished and y.successors is None and y.length < self.context.n_max
        return open_ and self._unfinished[y.length, self._bank(y)] < self.k

    def commit(self, y: Hypothesis, successors: Successors) -> None:
        y.successors = self.lawful(y, successors)
        self.rows += 1
        if y in self._needed:
            self._needed.remove(y)
            self._scored(y)
            if not self._needed:
                self._go_on()

    # -- whose turn it is ----------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Open what is scored, in order, up to the next that is not; level by level, up to the end of the level."""
        if self.whole_levels:
            while self._waiting and not self._needed and not self._is_over():
                self._needed = self._next_level()
            if self._is_over():
                self._needed = []
            return
        while self._waiting and len(self._answers) < self.n:
            y = heapq.heappop(self._waiting)[1]
            if not self._enters(y):
                continue
            if y.successors is None:
                self._needed = [y]
                return
            self._scored(y)

    def _next_level(self) -> list[Hypothesis]:
        """Those of the next length that have a place on their beam and are to be scored."""
        length, found = self._waiting[0][1].length, []
        while self._waiting and self._waiting[0][1].length == length:
            y = heapq.heappop(self._waiting)[1]
            if self._enters(y):
                found.append(y)
        return found

    def _is_over(self) -> bool:
        """Level by level, whether n answers are sure: they precede whatever anything that waits could become."""
        if len(self._answers) < self.n:
            return False
        last = self._best()[-1].worth
        open_ = [y for _, y in self._waiting] + self._needed
        return all((y.worth if y.finished else y.bound) < last for y in open_)

    def _enters(self, y: Hypothesis) -> bool:
        """Whether a hypothesis that comes to the front is to be scored: it is unfinished, and has a place on its beam."""
        beam = y.length, self._bank(y)
        self._came[beam] += 1
        if y.finished:
            if self._came[beam] <= self.k:
                self._answers.append(y)
            return False
        self._unfinished[beam] += 1
        if self._unfinished[beam] > self.k:
            return False
        if y.length > self._deepest.length:
            self._deepest = y
        return y.length < self.context.n_max

    def _scored(self, y: Hypothesis) -> None:
        """Let the children of `y` wait for their turn: of each bank the k best, for more have no place on its beam."""
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
                self._place(Hypothesis(y, token, y.value + value, y.logprob + logprob, finished), after)

    def _place(self, y: Hypothesis, state: WordsState) -> None:
        self.valued(y)
        y.wanted = state.helpful
        self._states[y] = state
        order = (y.length, -y.value, y.tokens) if self.whole_levels else (-y.value, y.length, y.tokens)
        heapq.heappush(self._waiting, (order, y))

    def _bank(self, y: Hypothesis) -> int:
        return self._states[y].missing

    # -- what came of it -----------------------------------------------------------------------------------------------------

    def _best(self) -> list[Hypothesis]:
        return sorted(self._answers, key=lambda y: (-y.worth, y.length, y.tokens))[: self.n]

    def result(self) -> Result:
        return self.found([Answer.of(y) for y in self._best()], self._deepest)

    def dismantle(self) -> None:
        self._waiting.clear()
        self._states.clear()
