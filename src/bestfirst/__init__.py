# ruff: noqa: F401  names for type checkers
"""bestfirst: beam search's answer for a fraction of the model calls.

    import bestfirst
    bestfirst.decode(bestfirst.load(), ["Guten Morgen!"], beam=10)[0].text

Importing this package loads neither torch nor numpy; what needs them loads them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "constraints": ("Constraint",),
    "constraints.grammar": ("Grammar",),
    "constraints.trie": ("Trie",),
    "decoding": ("decode", "decode_iter"),
    "drafting": ("Drafter", "EarlierOutputs", "SourceLookup"),
    "engine": ("Stats",),
    "engine.smaller_model": ("SmallerModel",),
    "explaining": ("explain",),
    "integrations.generate": ("generate",),
    "models": ("Ensemble", "FunctionModel", "Model", "Query", "Scored", "ShallowFusion"),
    "loading": ("load",),
    "models.transformers": ("wrap",),
    "page": ("view",),
    "scoring": (
        "GNMT", "BoundedLengthReward", "Coverage", "Diverse", "LengthNormalized", "LengthReward", "LogProbability",
        "MutualInformation", "Score",
    ),
    "search": ("Answer", "BrokenLaw", "Context", "Hypothesis", "Result", "Strategy", "Trace"),
    "settings": ("Decoding",),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("scoring", "testing")

__all__ = sorted([*_HOME, *_MODULES])

if TYPE_CHECKING:
    from . import scoring, testing
    from .constraints import Constraint
    from .constraints.grammar import Grammar
    from .constraints.trie import Trie
    from .decoding import decode, decode_iter
    from .drafting import Drafter, EarlierOutputs, SourceLookup
    from .engine import Stats
    from .engine.smaller_model import SmallerModel
    from .explaining import explain
    from .integrations.generate import generate
    from .loading import load
    from .models import Ensemble, FunctionModel, Model, Query, Scored, ShallowFusion
    from .models.transformers import wrap
    from .page import view
    from .scoring import (
        GNMT,
        BoundedLengthReward,
        Coverage,
        Diverse,
        LengthNormalized,
        LengthReward,
        LogProbability,
        MutualInformation,
        Score,
    )
    from .search import Answer, BrokenLaw, Context, Hypothesis, Result, Strategy, Trace
    from .settings import Decoding


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'bestfirst' has no attribute {name!r}")
    try:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        raise ImportError(f"bestfirst.{name} needs torch and transformers; pip install 'bestfirst[transformers]'") from None


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
