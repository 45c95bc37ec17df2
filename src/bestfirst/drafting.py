"""Drafter: guesses how an output goes on, so that a forward pass scores several tokens of it. Bring your own by one method.

Nothing a drafter says changes a result: what it guesses is scored as everything is, and waits until the search asks for it
(docs/algorithm.md). A good one saves steps, a bad one wastes rows; how much is guessed follows how often it was right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Continuation = Sequence[tuple[int, Hashable]]
"""Tokens that may follow a prefix, each with its kind: tokens of a kind are trusted as far as such tokens were right so far."""


MOST = 128  # tokens of one input that are guessed at a time
FIRST = 0.4  # how likely a guess is right of which nothing is known: worth a try


class Drafter(ABC):
    """Guesses continuations. One object may serve many decodes, of one model."""

    name = "own"
    optional = True  # whether it may be left out where inputs take longer with it

    def outlook(self, source: Any) -> Hashable:
        """What can be said of an input beforehand: whether drafts pay is measured for inputs of which the same is said."""
        return None

    def trust(self, kind: Hashable) -> float:
        """How likely a token of this kind is right, while nothing is known of such tokens."""
        return FIRST

    def start(self, source: Any) -> Any:
        """What is remembered of an input (a `Source`) while it is decoded."""
        return source

    @abstractmethod
    def guess(self, memory: Any, prefix: tuple[int, ...], n: int) -> Iterable[Continuation]:
        """How `prefix`, the tokens of an output so far, may go on: likeliest first, some `n` tokens together."""

    def guess_all(self, memory: Any, prefixes: Sequence[tuple[int, ...]], n: int) -> Iterable[Iterable[Continuation]]:
        """As `guess`, for several prefixes of one input, the likeliest first. To be written where that is faster."""
        return (self.guess(memory, prefix, n) for prefix in prefixes)

    def needed(self, memory: Any, prefixes: Iterable[tuple[int, ...]]) -> None:
        """An input is about to be over, and these are the first prefixes whose successors its search had to know, parents first.
        They can be read once, now or later."""
        return

    def finish(self, memory: Any, outputs: Sequence[tuple[int, ...]]) -> None:
        """An input is over, and these are its outputs, best first; none where it was given up."""
        return


def tokens_of(source: Any) -> tuple[int, ...]:
    """The tokens that an output may repeat: of the encoder's input or of the prompt; none where the input is no such thing."""
    given = getattr(source.payload, "source", None)
    if given is None:
        given = getattr(source.payload, "tokens", source.payload)
    if not isinstance(given, (list, tuple)) or not all(isinstance(token, int) for token in given):
        return ()
    return tuple(given)


LONGEST = 4  # tokens that are compared
ALTERNATIVES = 3  # ways to go on from one place


class SourceLookup(Drafter):
    """Outputs that repeat their input, or themselves: what followed the last few tokens where they came before.

    Also what `prompt_lookup_num_tokens` asks Hugging Face for. `most`: tokens of a guess.
    """

    name = "source"

    def __init__(self, most: int = 16) -> None:
        if most < 1:
            raise ValueError(f"a guess has at least 1 token, got {most}")
        self.most = most

    def start(self, source: Any) -> tuple[tuple[int, ...], dict[int, list[int]]]:
        tokens = tokens_of(source)
        places: dict[int, list[int]] = {}
        for place, token in enumerate(tokens):
            places.setdefault(token, []).append(place)
        return tokens, places

    def guess(self, memory: Any, prefix: tuple[int, ...], n: int) -> Iterable[Continuation]:
        tokens, places = memory
        most = min(self.most, n)
        if not prefix:
            return [_following(tokens, 0, most, "first")]
        found = [(_agreeing(tokens, place, prefix), tokens, place + 1) for place in places.get(prefix[-1], ())]
        if prefix[-1] in prefix[:-1]:
            place = len(prefix) - 2 - prefix[-2::-1].index(prefix[-1])  # the last one before
            found.append((_agreeing(prefix, place, prefix), prefix, place + 1))
        if not found and len(prefix) > 1 and prefix[-2] in places:  # it stands in place of one of the input: go on behind that
            return [_following(tokens, places[prefix[-2]][0] + 2, most, "behind")]
        found.sort(key=lambda each: -each[0])
        return [_following(text, place, most, min(size, LONGEST)) for size, text, place in found[:ALTERNATIVES]]


def _agreeing(text: tuple[int, ...], place: int, prefix: tuple[int, ...]) -> int:
    """How many tokens up to this place are the last of the prefix."""
    size = 1
    while size < LONGEST and size <= place and size < len(prefix) and text[place - size] == prefix[-1 - size]:
        size += 1
    return size


def _following(text: tuple[int, ...], place: int, most: int, why: int | str) -> Continuation:
    return [(token, (why, min(j, LONGEST))) for j, token in enumerate(text[place : place + most])]


@dataclass(slots=True)
class Earlier:
    """An input, its output, and the prefixes that its search looked at. `likeness`: to those of earlier outputs."""

    source: frozenset[int]
    tokens: tuple[int, ...] = ()
    needed: Iterable[tuple[int, ...]] = ()
    likeness: dict[int, int] = field(default_factory=dict)

    def ways(self) -> list[tuple[int, ...]]:
        """The output, and the longest of the prefixes beside it."""
        self.needed = prefixes = [*self.needed]
        within = {prefix[:-1] for prefix in prefixes}
        return [self.tokens, *(y for y in prefixes if y not in within and y != self.tokens[: len(y)])]


class EarlierOutputs(Drafter):
    """What this run has produced so far: texts repeat themselves, and so do their translations.

    Of an input that came before, all that was looked at then. Of others, what followed the last few tokens in earlier outputs; of
    these, the ones whose inputs had most in common with this one.
    `capacity`: outputs that are remembered, the latest ones.
    """

    name = "outputs"

    def __init__(self, capacity: int = 50_000) -> None:
        self.capacity = capacity
        self._outputs: dict[int, Earlier] = {}
        self._next = 0
        self._latest: dict[frozenset[int], int] = {}  # by tokens of an input, its output
        self._places: dict[tuple[int, ...], deque[tuple[int, int]]] = {}  # by last tokens: outputs, and where they came in these
        self._indexed = self._since = 0  # outputs that are found there: not before something is to be guessed

    def outlook(self, source: Any) -> bool:
        """Whether there was an input of the same tokens."""
        return frozenset(tokens_of(source)) in self._latest

    def trust(self, kind: Hashable) -> float:
        return AGAIN if isinstance(kind, tuple) and kind[0] == "again" else FIRST

    def start(self, source: Any) -> Earlier:
        return Earlier(frozenset(tokens_of(source)))

    def guess(self, memory: Earlier, prefix: tuple[int, ...], n: int) -> Iterable[Continuation]:
        source, alike = memory.source, memory.likeness
        if (same := self._latest.get(source)) is not None:
            known = self._outputs[same]
            ways = [tokens for tokens in known.ways() if tokens[: len(prefix)] == prefix]
            if ways:
                return [[(token, ("again", tokens is known.tokens)) for token in tokens[len(prefix) :]] for tokens in ways]
        self._index()
        before = (-1, *prefix)
        for size in range(min(LONGEST, len(before)), 0, -1):
            places = self._places.get(before[-size:])
            if not places:
                continue
            first: dict[int, tuple[int, int, int]] = {}  # by next token: the likest output, and where
            for output, place in places:
                if output in self._outputs and place < len(self._outputs[output].tokens):
                    likeness = alike.get(output)
                    if likeness is None:
                        likeness = alike[output] = _likeness(source, self._outputs[output].source)
                    token = self._outputs[output].tokens[place]
                    first[token] = max(first.get(token, (-1, 0, 0)), (likeness, output, place))
            if first:
                best = sorted(first.values(), reverse=True)[:ALTERNATIVES]
                return [self._following(output, place, size, likeness, n, i) for i, (likeness, output, place) in enumerate(best)]
        return ()

    def _following(self, output: int, place: int, size: int, likeness: int, n: int, rank: int) -> Continuation:
        tokens = self._outputs[output].tokens[place : place + n]
        return [(token, (min(size + j, LONGEST), likeness, rank if j == 0 else 0)) for j, token in enumerate(tokens)]

    def needed(self, memory: Earlier, prefixes: Iterable[tuple[int, ...]]) -> None:
        memory.needed = prefixes

    def finish(self, memory: Earlier, outputs: Sequence[tuple[int, ...]]) -> None:
        for tokens in outputs[:1]:
            number, self._next = self._next, self._next + 1
            memory.tokens, memory.likeness = tokens, {}
            self._outputs[number] = memory
            if memory.source:
                self._latest[memory.source] = number
            forgotten = self._outputs.pop(number - self.capacity, None)
            if forgotten is not None and self._latest.get(forgotten.source) == number - self.capacity:
                del self._latest[forgotten.source]

    def _index(self) -> None:
        """Where tokens came, in the outputs since the last time; once in a while without those that are forgotten."""
        if self._next - self._since > 2 * self.capacity:
            self._places.clear()
            self._indexed = self._since = self._next - self.capacity
        for number in range(max(self._indexed, self._next - self.capacity), self._next):
            before = (-1, *self._outputs[number].tokens)
            for place in range(len(before) - 1):
                for size in range(1, min(LONGEST, place + 1) + 1):
                    found = self._places.setdefault(before[place + 1 - size : place + 1], deque(maxlen=8))
                    found.append((number, place))
        self._indexed = self._next


SAME = 4  # the likeness of inputs that have the same tokens
AGAIN = 0.95  # how likely what was needed of one is needed of the other


def _likeness(a: frozenset[int], b: frozenset[int]) -> int:
    """How much two inputs have in common, from 0 to SAME."""
    return int(SAME * len(a & b) / len(a | b)) if a and b else 0


DRAFTERS: dict[str, type[Drafter]] = {each.name: each for each in (SourceLookup, EarlierOutputs)}
MODEL = "model:"
"""What the name of a drafter that is a smaller model begins with; its folder follows."""


def check_draft(draft: Any) -> None:
    """ValueError for what is no drafter, and no drafter's name."""
    named = isinstance(draft, str) and (draft in (*DRAFTERS, "none") or (draft.startswith(MODEL) and draft != MODEL))
    if not isinstance(draft, Drafter) and not named:
        names = ", ".join(map(repr, (*DRAFTERS, f"{MODEL}FOLDER", "none")))
        raise ValueError(f"draft must be a Drafter or one of {names}, got {draft!r}")


def named_drafter(draft: str | Drafter | None) -> Drafter | None:
    """The drafter of this name; a new one each time. A smaller model must have been loaded by then."""
    if not isinstance(draft, str):
        return draft
    if draft == "none":
        return None
    if draft not in DRAFTERS:
        raise ValueError(f"draft {draft!r} is a model that is not loaded; give bestfirst.SmallerModel(bestfirst.load(...))")
    return DRAFTERS[draft]()
