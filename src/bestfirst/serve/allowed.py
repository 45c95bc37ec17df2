"""Constraints of requests (`allowed`): those that the server was started with, by name, and those that a request defines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from starlette.exceptions import HTTPException

from ..constraints import Constraint
from ..constraints.grammar import Grammar
from ..constraints.trie import Trie
from ..models import Model
from ..settings import Decoding

CACHED = 64  # constraints of requests that are cached, for requests that define the same
LONGEST_OUTPUT = 10_000  # characters: a trie is built level by level, and one of a million levels takes half a minute
LONGEST_MESSAGE = 200  # characters of an error message, which may repeat what was sent


class ServedConstraints:
    """Finds or compiles the constraint that a request asks for, in a worker thread: a large one would block the event loop."""

    def __init__(self, model: Model, named: Mapping[str, Constraint] | None = None, grammars: bool = False) -> None:
        """`grammars`: whether requests may define regular expressions, JSON schemas and grammars. These need the tokenizer of
        transformers, which is loaded here rather than by the first request."""
        self._model = model
        self._named = dict(named or {})
        self._grammars = grammars
        if grammars:
            Grammar.regex(model, "a")
        self._compiled = lru_cache(CACHED)(self._compile)

    async def using(self, decoding: Decoding, allowed: Any) -> Decoding:
        """The settings of a request with its constraint, read for the model. `allowed`: that of the request, or None. Raises
        HTTPException, with the reason, for a constraint or settings that the request cannot have."""
        try:
            if allowed is not None:
                decoding = decoding.using(allowed=await self._constraint(allowed))
            return decoding.read(self._model)
        except RecursionError:
            raise _error("it is nested too deeply") from None
        except ValueError as error:
            raise _error(str(error)[:LONGEST_MESSAGE]) from None

    async def _constraint(self, allowed: Any) -> Constraint:
        if isinstance(allowed, str):
            if allowed in self._named:
                return self._named[allowed]
            known = ", ".join(map(repr, self._named)) or "none; start it with --allowed NAME=FILE"
            raise _error(f"this server has nothing of the name {allowed!r:.60}; it has {known}", 404)
        (kind, value), *_ = allowed.model_dump().items()
        if kind != "outputs" and not self._grammars:
            raise _error(f"this server takes no {kind}; it would have to be started with --grammars", 404)
        return await asyncio.to_thread(self._compiled, kind, json.dumps(value))

    def _compile(self, kind: str, value: str) -> Constraint:
        makers: dict[str, Callable[[Model, Any], Constraint]] = {
            "outputs": _trie, "regex": Grammar.regex, "json_schema": Grammar.json, "grammar": Grammar.lark,
        }  # fmt: skip
        return makers[kind](self._model, json.loads(value))


def _trie(model: Model, outputs: Sequence[str]) -> Constraint:
    if (longest := max(map(len, outputs))) > LONGEST_OUTPUT:
        raise _error(f"an output may have {LONGEST_OUTPUT:,} characters, one has {longest:,}")
    for text, tokens in zip(outputs, model.targets(outputs), strict=True):
        if not tokens:
            raise _error(f"the model cannot write {text!r:.60}", 404)
    return Trie.of_texts(model, outputs)


def _error(why: str, status: int = 422) -> HTTPException:
    """Status 422 for a constraint that is wrong, 404 for one that is right but not available on this server."""
    return HTTPException(status, f"allowed: {why}")
