"""Constrained decoding: the interface `Constraint`, which gives the allowed next tokens of many hypotheses at once, and its
implementations `Trie` (a set of outputs) and `Grammar` (regular expressions, JSON schemas, context-free grammars).

A constraint only forbids tokens and never raises a score: every bound still holds, search stays exact (`tests/constraints`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy import ndarray

    from ..models import Model
    from ..search import Hypothesis

KINDS = ("regex", "schema", "grammar")


class Constraint(ABC):
    """The allowed tokens after a prefix, as a state machine. Your own constraint implements `start`, `advance` and `allowed`.

    Engines keep the state of every hypothesis that they score, and call each method once per step with all of its hypotheses."""

    signature: str
    """A short identifier of what is allowed: constraints with equal signatures give equal results."""
    ordered = False
    """Whether `allowed` returns sorted tokens without duplicates. If False, the caller sorts them."""

    @abstractmethod
    def start(self) -> Any:
        """The state before the first token."""

    @abstractmethod
    def advance(self, states: Sequence[Any], tokens: Sequence[int]) -> Sequence[Any]:
        """The states after one allowed token each. Must not modify the given states, which are used again."""

    @abstractmethod
    def allowed(self, states: Sequence[Any], eos: Collection[int]) -> Sequence[ndarray]:
        """For each state, the tokens that may come next, including `eos` tokens if the output may end. Empty: a dead end."""

    def check(self, eos: Collection[int]) -> None:
        """Called before decoding. ValueError if this cannot be used with a model whose outputs end with `eos`."""
        return

    def item(self, tokens: Sequence[int]) -> int | None:
        """The index of an output (without EOS), for constraints that number their outputs."""
        return None


def allowed_after(batch: Sequence[Hypothesis]) -> list[ndarray | None] | None:
    """The tokens that may follow each hypothesis, None if any may; a single None if no hypothesis is constrained.

    `node` is (constraint, end tokens, state): the search sets it for roots, and this function for the other hypotheses."""
    before = [y.node if y.parent is None else y.parent.node for y in batch]
    kinds = dict.fromkeys(node[:2] for node in before if node is not None)
    if not kinds:
        return None
    found: list[ndarray | None] = [None] * len(batch)
    for constraint, eos in kinds:
        rows = [i for i, node in enumerate(before) if node is not None and node[0] is constraint and node[1] == eos]
        later = [i for i in rows if batch[i].parent is not None]
        states = constraint.advance([before[i][2] for i in later], [batch[i].token for i in later])
        for i, state in _for_each(later, states, constraint, "advance"):
            batch[i].node = (constraint, eos, state)
        allowed = constraint.allowed([batch[i].node[2] for i in rows], eos)
        for i, tokens in _for_each(rows, allowed, constraint, "allowed"):
            found[i] = tokens if constraint.ordered or tokens is None else _sorted_tokens(tokens)
    return found


def _for_each(rows: Sequence[int], found: Any, constraint: Constraint, method: str) -> Iterable[tuple[int, Any]]:
    """Pairs of a row and what a method of the constraint found for it. ValueError unless there is one for each."""
    answers = list(found) if hasattr(found, "__iter__") else None
    if answers is None or len(answers) != len(rows):
        name, got = f"{type(constraint).__name__}.{method}", repr(found) if answers is None else f"{len(answers)} answers"
        raise ValueError(f"{name} was asked about {len(rows)} states and returned {got:.60}; return a list with one for each")
    return zip(rows, answers, strict=True)


def _sorted_tokens(tokens: Any) -> ndarray:
    """The tokens that a user's constraint allows, sorted. ValueError if they are no token ids."""
    from numpy import int64, unique

    found = unique(tokens)
    if not len(found):  # a list without elements is of floats
        return found.astype(int64)
    if found.dtype.kind not in "iu" or found[0] < 0:
        raise ValueError(f"`allowed` of a constraint must return token ids for each state, got {tokens!r:.60}")
    return found


def check_vocabulary(allowed: Any, size: int) -> None:
    """ValueError if `allowed` (sorted) contains a token outside of the model's vocabulary."""
    if len(allowed) and allowed[-1] >= size:
        raise ValueError(f"token {allowed[-1]} is allowed, and the model has the tokens 0 to {size - 1}")


# -- by name, as in a command line, a manifest or a request ----------------------------------------------------------------


def named_constraint(name: str, model: Model) -> Constraint:
    """The constraint `regex:PATTERN`, `schema:FILE` (a JSON schema) or `grammar:FILE` (Lark); any other name is a file of
    outputs: a text with one per line, or a saved trie. ValueError, naming the file, if it cannot be read."""
    kind, rest = _parse_name(name)
    from .grammar import Grammar
    from .trie import read_trie

    if kind == "regex":
        return Grammar.regex(model, rest)
    try:
        if kind == "outputs":
            return read_trie(rest, model)
        text = Path(rest).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(f"cannot read what is allowed from {rest!r}: line {line} is not UTF-8") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read what is allowed from {rest!r}: {error}") from None
    return Grammar.json(model, text) if kind == "schema" else Grammar.lark(model, text)


def is_grammar(name: str) -> bool:
    """Whether a name stands for a regular expression, a schema or a grammar, not for a file of outputs."""
    return _parse_name(name)[0] != "outputs"


def missing_file(name: str) -> str | None:
    """The file that a name refers to, if it does not exist."""
    kind, rest = _parse_name(name)
    return None if kind == "regex" or Path(rest).is_file() else rest


def fingerprint(name: str) -> str:
    """A short digest of what a name allows, by the content of its file, not by its path."""
    kind, rest = _parse_name(name)
    return f"{kind}-{sha256(rest.encode() if kind == 'regex' else Path(rest).read_bytes()).hexdigest()[:16]}"


def _parse_name(name: str) -> tuple[str, str]:
    kind, colon, rest = name.partition(":")
    return (kind, rest) if colon and kind in KINDS else ("outputs", name)
