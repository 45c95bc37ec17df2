"""Words that must occur, as users give them: texts or token ids, each a word or a list of which one is enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..models import Model


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


def spelled(some: Sequence[Any], model: Model) -> list[Sequence[int]]:
    """The tokens of each alternative, as the model writes it first and behind a space."""
    found: list[Sequence[int]] = [each for each in some if not isinstance(each, str)]
    for text in (each for each in some if isinstance(each, str)):
        tokens = [each for each in model.targets([text, " " + text]) if each]
        if not tokens:
            raise ValueError(f"the model cannot write {text!r}, which must occur")
        found += tokens
    return found
