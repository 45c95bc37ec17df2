"""Endings: what ends an output beside the model's EOS, what may not yet end it, and what is left of its text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ..search import Successors


class StopStrings:
    """Whether tokens are complete because a stop string is in their text. Only the last tokens are looked at: before them there
    was none, or the output would have ended."""

    def __init__(self, strings: Sequence[str], text: Callable[[Sequence[int]], str | None]) -> None:
        self._strings = strings
        self._text = text
        self._last = max(len(string.encode()) for string in strings) + 4  # a token has a byte at least, a character up to four

    def __call__(self, tokens: tuple[int, ...]) -> bool:
        text = self._text(tokens[-self._last :])
        if text is None:
            raise ValueError("stop_strings need a model that gives text; name tokens instead, with eos")
        return any(string in text for string in self._strings)


def without(tokens: Collection[int], successors: Successors) -> Successors:
    """The successors but for these tokens."""
    kept = [i for i, token in enumerate(successors.tokens) if token not in tokens]
    if len(kept) == len(successors.tokens):
        return successors
    logprobs = None if successors.logprobs is None else [successors.logprobs[i] for i in kept]
    values = [successors.values[i] for i in kept]
    return successors._replace(values=values, tokens=[successors.tokens[i] for i in kept], logprobs=logprobs)
