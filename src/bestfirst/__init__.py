"""bestfirst: beam search's answer for a fraction of the model calls.

    import bestfirst
    bestfirst.decode(bestfirst.load(), ["Guten Morgen!"], beam=10)[0].text

Importing this package loads neither torch nor numpy; what needs them loads them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "decode": "decoding",
    "generate": "integrations.generate",
    "FunctionModel": "models",
    "Model": "models",
    "Query": "models",
    "Scored": "models",
    "load": "models.transformers",
    "wrap": "models.transformers",
    "Answer": "search",
    "BrokenLaw": "search",
    "Context": "search",
    "Hypothesis": "search",
    "Result": "search",
    "Strategy": "search",
    "Trace": "search",
    "Score": "scoring",
    "explain": "explaining",
    "view": "page",
}

__all__ = [
    "Answer",
    "BrokenLaw",
    "Context",
    "FunctionModel",
    "Hypothesis",
    "Model",
    "Query",
    "Result",
    "Score",
    "Scored",
    "Strategy",
    "Trace",
    "decode",
    "explain",
    "generate",
    "load",
    "view",
    "wrap",
]

if TYPE_CHECKING:
    from .decoding import decode
    from .explaining import explain
    from .integrations.generate import generate
    from .models import FunctionModel, Model, Query, Scored
    from .models.transformers import load, wrap
    from .page import view
    from .scoring import Score
    from .search import Answer, BrokenLaw, Context, Hypothesis, Result, Strategy, Trace


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'bestfirst' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
