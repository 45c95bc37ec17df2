"""Constraints by name, as a command line, a manifest or a request has them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from ..models import Model
from . import Constraint

KINDS = ("regex", "schema", "grammar")


def named_constraint(name: str, model: Model) -> Constraint:
    """`regex:PATTERN`, `schema:FILE` (a JSON schema), `grammar:FILE` (Lark); else a file of outputs: a text, one a line,
    or a saved trie. ValueError, naming the file, for what cannot be read."""
    kind, rest = _parts(name)
    if kind == "outputs":
        from .trie import read_trie

        return read_trie(rest, model)
    from .grammar import Grammar

    if kind == "regex":
        return Grammar.regex(model, rest)
    try:
        text = Path(rest).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read what is allowed from {rest!r}: {error}") from None
    return Grammar.json(model, text) if kind == "schema" else Grammar.lark(model, text)


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
