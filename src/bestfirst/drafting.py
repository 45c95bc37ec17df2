"""Drafter: guesses how an output continues, so that a forward pass scores several tokens of it. Subclass it with one method.

A drafter never changes a result: guessed tokens are scored like all others, and wait until the search needs them
(docs/algorithm.md). A good one saves steps, a bad one wastes rows; acceptance rates decide how much is guessed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Continuation = Sequence[tuple[int, Hashable]]
"""Tokens that may follow a prefix, each with its kind: a kind is trusted by the acceptance rate of its tokens so far."""


MAX_DRAFT_TOKENS = 128  # tokens of one input that are guessed at a time
DEFAULT_TRUST = 0.4  # acceptance rate assumed for a kind that was never tried: high enough to try it


class Drafter(ABC):
    """Guesses continuations. One object may serve many decodes, of one model."""

    name = "own"
    optional = True  # whether it may be skipped where inputs take longer with it

    def outlook(self, source: Any) -> Hashable:
        """A class of this input, known beforehand: whether drafting pays is measured separately for each class."""
        return None

    def trust(self, kind: Hashable) -> float:
        """The assumed acceptance rate of a kind until tokens of this kind have been tried."""
        return DEFAULT_TRUST

    def start(self, source: Any) -> Any:
        """A new input (a `Source`): returns the `memory` that is passed to the other methods while it is decoded."""
        return source

    @abstractmethod
    def guess(self, memory: Any, prefix: tuple[int, ...], n: int) -> Iterable[Continuation]:
        """Continuations of `prefix`, the tokens of an output so far: likeliest first, about `n` tokens in total."""

    def guess_all(self, memory: Any, prefixes: Sequence[tuple[int, ...]], n: int) -> Iterable[Iterable[Continuation]]:
        """As `guess`, for several prefixes of one input, the likeliest first. Override it if that is faster."""
        return (self.guess(memory, prefix, n) for prefix in prefixes)

    def needed(self, memory: Any, prefixes: Iterable[tuple[int, ...]]) -> None:
        """Called just before `finish`: the first prefixes whose successors the search of the input needed, parents before
        children. The iterable can be read once, now or later."""
        return

    def finish(self, memory: Any, outputs: Sequence[tuple[int, ...]]) -> None:
        """An input is finished; `outputs` are its outputs, best first. There are none if nothing finished, or if the
        input failed, was cancelled or starts over."""
        return


def repeatable_tokens(source: Any) -> tuple[int, ...]:
    """The tokens that an output may repeat, of the encoder's input or of the prompt; () if the input has no tokens."""
    given = getattr(source.payload, "source", None)
    if given is None:
        given = getattr(source.payload, "tokens", source.payload)
    if not isinstance(given, (list, tuple)) or not all(isinstance(token, int) for token in given):
        return ()
    return tuple(given)


LONGEST = 4  # tokens of a match that are compared
ALTERNATIVES = 3  # continuations of one prefix


class SourceLookup(Drafter):
    """For outputs that repeat their input or themselves: guesses what followed an earlier occurrence of the last few tokens.

    Hugging Face's `prompt_lookup_num_tokens` works alike. `most`: the most tokens of one continuation.
    """

    name = "source"

    def __init__(self, most: int = 16) -> None:
        if most < 1:
            raise ValueError(f"a guess has at least 1 token, got {most}")
        self.most = most

    def start(self, source: Any) -> tuple[tuple[int, ...], dict[int, list[int]]]:
        tokens = repeatable_tokens(source)
        places: dict[int, list[int]] = {}
        for place, token in enumerate(tokens):
            places.setdefault(token, []).append(place)
        return tokens, places

    def guess(self, memory: Any, prefix: tuple[int, ...], n: int) -> Iterable[Continuation]:
        tokens, places = memory
        most = min(self.most, n)
        if not prefix:
            return [_following(tokens, 0, most, "first")]
        matches = [(_match_length(tokens, place, prefix), tokens, place + 1) for place in places.get(prefix[-1], ())]
        if prefix[-1] in prefix[:-1]:
            place = len(prefix) - 2 - prefix[-2::-1].index(prefix[-1])  # its last occurrence before
            matches.append((_match_length(prefix, place, prefix), prefix, place + 1))
        if not matches and len(prefix) > 1 and prefix[-2] in places:  # it replaces a token of the input: continue after that
            return [_following(tokens, places[prefix[-2]][0] + 2, most, "behind")]
        matches.sort(key=lambda match: -match[0])
        return [_following(text, place, most, min(size, LONGEST)) for size, text, place in matches[:ALTERNATIVES]]


def _match_length(text: tuple[int, ...], place: int, prefix: tuple[int, ...]) -> int:
    """How many tokens up to this place, at most LONGEST, equal the last tokens of the prefix."""
    size = 1
    while size < LONGEST and size <= place and size < len(prefix) and text[place - size] == prefix[-1 - size]:
        size += 1
    return size


def _following(text: tuple[int, ...], place: int, most: int, why: int | str) -> Continuation:
    return [(token, (why, min(j, LONGEST))) for j, token in enumerate(text[place : place + most])]


@dataclass(slots=True)
class EarlierOutput:
    """An input, its output, and the prefixes that its search needed. `likeness`: to the inputs of earlier outputs."""

    source: frozenset[int]
    tokens: tuple[int, ...] = ()
    needed: Iterable[tuple[int, ...]] = ()
    likeness: dict[int, int] = field(default_factory=dict)

    def paths(self) -> list[tuple[int, ...]]:
        """The output, and the longest of the other prefixes."""
        self.needed = prefixes = [*self.needed]
        within = {prefix[:-1] for prefix in prefixes}
        return [self.tokens, *(y for y in prefixes if y not in within and y != self.tokens[: len(y)])]


class EarlierOutputs(Drafter):
    """Guesses from the earlier outputs of this run: texts repeat themselves, and so do their translations.

    For an input that came before, all prefixes that its search needed. For others, what followed the last few tokens in earlier
    outputs, those of the most similar inputs first. `capacity`: outputs that are remembered, the latest ones.
    """

    name = "outputs"

    def __init__(self, capacity: int = 50_000) -> None:
        self.capacity = capacity
        self._outputs: dict[int, EarlierOutput] = {}
        self._next = 0
        self._latest: dict[frozenset[int], int] = {}  # by tokens of an input, the number of its latest output
        self._places: dict[tuple[int, ...], deque[tuple[int, int]]] = {}  # by n-gram: outputs, and where it ends in them
        self._indexed = self._since = 0  # `_places` has the outputs from `_since` up to `_indexed`; updated only on a guess

    def outlook(self, source: Any) -> bool:
        """Whether there was an input of the same tokens."""
        return frozenset(repeatable_tokens(source)) in self._latest

    def trust(self, kind: Hashable) -> float:
        return REPEAT_TRUST if isinstance(kind, tuple) and kind[0] == "again" else DEFAULT_TRUST

    def start(self, source: Any) -> EarlierOutput:
        return EarlierOutput(frozenset(repeatable_tokens(source)))

    def guess(self, memory: EarlierOutput, prefix: tuple[int, ...], n: int) -> Iterable[Continuation]:
        source, alike = memory.source, memory.likeness
        if (same := self._latest.get(source)) is not None:
            known = self._outputs[same]
            paths = [tokens for tokens in known.paths() if tokens[: len(prefix)] == prefix]
            if paths:
                return [[(token, ("again", tokens is known.tokens)) for token in tokens[len(prefix) :]] for tokens in paths]
        self._index()
        before = (-1, *prefix)
        for size in range(min(LONGEST, len(before)), 0, -1):
            places = self._places.get(before[-size:])
            if not places:
                continue
            first: dict[int, tuple[int, int, int]] = {}  # by next token: the output of the most similar input, and where
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

    def needed(self, memory: EarlierOutput, prefixes: Iterable[tuple[int, ...]]) -> None:
        memory.needed = prefixes

    def finish(self, memory: EarlierOutput, outputs: Sequence[tuple[int, ...]]) -> None:
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
        """Add the outputs since the last call to the index of n-grams; rebuild it from time to time, to drop old ones."""
        if self._next - self._since > 2 * self.capacity:
            self._places.clear()
            self._indexed = self._since = self._next - self.capacity
        for number in range(max(self._indexed, self._next - self.capacity), self._next):
            before = (-1, *self._outputs[number].tokens)
            for place in range(len(before) - 1):
                for size in range(1, min(LONGEST, place + 1) + 1):
                    places = self._places.setdefault(before[place + 1 - size : place + 1], deque(maxlen=8))
                    places.append((number, place))
        self._indexed = self._next


SAME = 4  # the likeness of inputs that have the same tokens
REPEAT_TRUST = 0.95  # assumed acceptance rate of what the search of an equal input needed


def _likeness(a: frozenset[int], b: frozenset[int]) -> int:
    """The similarity of two inputs, from 0 to SAME: shared tokens over all tokens."""
    return int(SAME * len(a & b) / len(a | b)) if a and b else 0


DRAFTERS: dict[str, type[Drafter]] = {each.name: each for each in (SourceLookup, EarlierOutputs)}
MODEL = "model:"
"""The prefix of the name of a drafter that is a smaller model; its folder follows."""


def check_draft(draft: Any) -> None:
    """Raise ValueError unless `draft` is a drafter or the name of one."""
    named = isinstance(draft, str) and (draft in (*DRAFTERS, "none") or (draft.startswith(MODEL) and draft != MODEL))
    if not isinstance(draft, Drafter) and not named:
        names = ", ".join(map(repr, (*DRAFTERS, f"{MODEL}FOLDER", "none")))
        raise ValueError(f"draft must be a Drafter or one of {names}, got {draft!r}")


def named_drafter(draft: str | Drafter | None) -> Drafter | None:
    """A new drafter of this name. A smaller model must be loaded already."""
    if not isinstance(draft, str):
        return draft
    if draft == "none":
        return None
    if draft not in DRAFTERS:
        raise ValueError(f"draft {draft!r} is a model that is not loaded; give bestfirst.SmallerModel(bestfirst.load(...))")
    return DRAFTERS[draft]()
