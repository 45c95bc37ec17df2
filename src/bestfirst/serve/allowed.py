"""What requests may ask to be allowed: constraints that the server was started with, by name, and those that a request brings."""

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

KEPT = 64  # constraints of requests that are kept, for those who ask for the same again
LONGEST = 200  # characters of what is wrong with one: it may repeat what was sent


class ServedConstraints:
    """Makes constraints for requests. They are made in a thread of their own: others need not wait for a large one."""

    def __init__(self, model: Model, named: Mapping[str, Constraint] | None = None, grammars: bool = False) -> None:
        """`grammars`: whether requests may bring some; they need the model's tokenizer as transformers has it, loaded here."""
        self._model = model
        self._named = dict(named or {})
        self._grammars = grammars
        if grammars:
            Grammar.regex(model, "a")
        self._kept = lru_cache(KEPT)(self._made)

    async def using(self, decoding: Decoding, asked: Any) -> Decoding:
        """Settings as the model has them, with what a request asks to be allowed. HTTPException, saying why, for what it cannot
        have."""
        try:
            if asked is not None:
                decoding = decoding.using(allowed=await self._of(asked))
            return decoding.read(self._model)
        except RecursionError:
            raise _refused("it is nested too deeply") from None
        except ValueError as error:
            raise _refused(str(error)[:LONGEST]) from None

    async def _of(self, asked: Any) -> Constraint:
        if isinstance(asked, str):
            if asked in self._named:
                return self._named[asked]
            known = ", ".join(map(repr, self._named)) or "none; start it with --allowed NAME=FILE"
            raise _refused(f"this server has nothing of the name {asked!r:.60}; it has {known}", 404)
        (kind, value), *_ = asked.model_dump().items()
        if kind != "outputs" and not self._grammars:
            raise _refused(f"this server takes no {kind}; it would have to be started with --grammars", 404)
        return await asyncio.to_thread(self._kept, kind, json.dumps(value))

    def _made(self, kind: str, value: str) -> Constraint:
        makers: dict[str, Callable[[Model, Any], Constraint]] = {
            "outputs": _trie, "regex": Grammar.regex, "json_schema": Grammar.json, "grammar": Grammar.lark,
        }  # fmt: skip
        return makers[kind](self._model, json.loads(value))


def _trie(model: Model, outputs: Sequence[str]) -> Constraint:
    for text, tokens in zip(outputs, model.targets(outputs), strict=True):
        if not tokens:
            raise _refused(f"the model cannot write {text!r:.60}", 404)
    return Trie.of_texts(model, outputs)


def _refused(why: str, status: int = 422) -> HTTPException:
    """404 for what is not to be had here, however well it is asked for."""
    return HTTPException(status, f"allowed: {why}")
