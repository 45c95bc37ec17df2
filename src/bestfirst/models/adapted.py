"""Adapted: whatever has a model's methods as a `Model`; and what to do with what has not, in a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .model import Model, Query, eos_of

OPTIONAL = (
    *("attend", "batch_key", "max_length", "merge_key", "piece", "reader", "source_length", "special_token"),
    *("start_batch", "target", "text"),
)


class AdaptedModel(Model):
    """An object with `eos`, `start` and `score`; whatever else of `Model` it has is used too."""

    def __init__(self, given: Any) -> None:
        self.given = given
        self.eos = eos_of(given.eos, type(given).__name__)
        for name in OPTIONAL:
            if callable(method := getattr(given, name, None)):
                setattr(self, name, method)

    def start(self, source: Any) -> Any:
        return self.given.start(source)

    def score(self, batch: Sequence[Query]) -> Any:
        return self.given.score(batch)


def as_model(given: Any) -> Model:
    """What was given as a model. TypeError, with the way out, for what is none."""
    name = type(given).__name__
    if isinstance(given, type):
        raise TypeError(f"the model is the class {given.__name__}; make one of it: {given.__name__}(...)")
    methods = [method for method in ("start", "score") if callable(getattr(given, method, None))]
    if len(methods) == 2:
        if getattr(given, "eos", None) is None:
            raise TypeError(f"{name} has no eos; set it to the token that ends a hypothesis, or to several")
        if not isinstance(given, Model):
            return AdaptedModel(given)
        if not isinstance(given.eos, (frozenset, set, tuple, list)):
            given.eos = eos_of(given.eos, name)
        return given
    if isinstance(given, str):
        raise TypeError(f"the model is a text, {given!r}; load it first: bestfirst.load({given!r})")
    if hasattr(given, "generate") and hasattr(given, "config"):
        raise TypeError(f"{name} is a Hugging Face model; give bestfirst.wrap(model, tokenizer)")
    if callable(given) and not methods:
        named = str(getattr(given, "__name__", "f")).replace("<lambda>", "lambda ...")
        raise TypeError(f"the model is a function; say which token ends a hypothesis: bestfirst.FunctionModel({named}, eos=...)")
    lacks = "score(batch)" if methods == ["start"] else "start(source)" if methods else "start(source) and score(batch)"
    raise TypeError(f"a model is an object with start(source), score(batch) and eos; {name} lacks {lacks}")
