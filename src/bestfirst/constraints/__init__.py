"""What may follow: which tokens may come next (`Constraint`), for many hypotheses at once; tries of outputs, grammars.

A constraint only forbids: it lifts no score, so every bound still holds, and best-first search under it is exact
(`tests/constraints`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy import ndarray

    from ..models import Model
    from ..search import Hypothesis

KINDS = ("regex", "schema", "grammar")


class Constraint(ABC):
    """What is allowed after a prefix, by a state of its own: bring another by writing these methods.

    Engines hold the state of every hypothesis that they score, and ask for a whole step at a time.
    """

    signature: str
    """What it allows, in a few letters: results under constraints of one signature are the same."""
    ordered = False
    """Whether `allowed` names each token once, in rising order. It is put in order elsewhere."""

    @abstractmethod
    def start(self) -> Any:
        """The state before the first token."""

    @abstractmethod
    def advance(self, states: Sequence[Any], tokens: Sequence[int]) -> Sequence[Any]:
        """The states after one allowed token each; those given are used again."""

    @abstractmethod
    def allowed(self, states: Sequence[Any], eos: Collection[int]) -> Sequence[ndarray]:
        """The tokens that may come next, of each state; one of `eos` where an output may end. None: a dead end."""

    def check(self, eos: Collection[int]) -> None:
        """ValueError where this cannot be for a model whose outputs end with `eos`."""
        return

    def item(self, tokens: Sequence[int]) -> int | None:
        """The number of the item that an output without EOS is, where outputs are numbered."""
        return None


def allowed_after(batch: Sequence[Hypothesis], eos: Collection[int]) -> list[ndarray | None] | None:
    """The tokens that may follow each hypothesis, None for any; None for all of them where nothing is constrained.

    `node`, of a root, is its search's constraint and the state to begin with; of what was scored, the state it has reached.
    """
    before = [y.node if y.parent is None else y.parent.node for y in batch]
    constraints = dict.fromkeys(node[0] for node in before if node is not None)
    if not constraints:
        return None
    from numpy import unique

    found: list[ndarray | None] = [None] * len(batch)
    for constraint in constraints:
        rows = [i for i, node in enumerate(before) if node is not None and node[0] is constraint]
        later = [i for i in rows if batch[i].parent is not None]
        states = constraint.advance([before[i][1] for i in later], [batch[i].token for i in later])
        for i, state in zip(later, states, strict=True):
            batch[i].node = (constraint, state)
        for i, tokens in zip(rows, constraint.allowed([batch[i].node[1] for i in rows], eos), strict=True):
            found[i] = tokens if constraint.ordered or tokens is None else unique(tokens)
    return found


def check_vocabulary(allowed: Any, size: int) -> None:
    """ValueError for a token that the model does not have."""
    if len(allowed) and allowed[-1] >= size:
        raise ValueError(f"token {allowed[-1]} is allowed, and the model has the tokens 0 to {size - 1}")


# -- by name, as a command line, a manifest or a request has them ----------------------------------------------------------


def named_constraint(name: str, model: Model) -> Constraint:
    """`regex:PATTERN`, `schema:FILE` (a JSON schema), `grammar:FILE` (Lark); else a file of outputs: a text, one a line,
    or a saved trie. ValueError, naming the file, for what cannot be read."""
    kind, rest = _parts(name)
    from .grammar import Grammar
    from .trie import read_trie

    if kind == "regex":
        return Grammar.regex(model, rest)
    try:
        if kind == "outputs":
            return read_trie(rest, model)
        text = Path(rest).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read what is allowed from {rest!r}: {error}") from None
    return Grammar.json(model, text) if kind == "schema" else Grammar.lark(model, text)


def is_grammar(name: str) -> bool:
    """Whether a name means a regular expression, a schema or a grammar, not a file of outputs."""
    return _parts(name)[0] != "outputs"


def missing_file(name: str) -> str | None:
    """The file that a name means, if it is not there."""
    kind, rest = _parts(name)
    return None if kind == "regex" or Path(rest).is_file() else rest


def fingerprint(name: str) -> str:
    """What is allowed, in a few letters: the same file elsewhere is the same, another of the same name is not."""
    kind, rest = _parts(name)
    return f"{kind}-{sha256(rest.encode() if kind == 'regex' else Path(rest).read_bytes()).hexdigest()[:16]}"


def _parts(name: str) -> tuple[str, str]:
    kind, colon, rest = name.partition(":")
    return (kind, rest) if colon and kind in KINDS else ("outputs", name)
