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
    "decoding": ("decode", "decode_iter"),
    "engine": ("Stats",),
    "explaining": ("explain",),
    "integrations.generate": ("generate",),
    "models": ("Ensemble", "FunctionModel", "Model", "Query", "Scored", "ShallowFusion"),
    "models.transformers": ("load", "wrap"),
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

__all__ = sorted([*_HOME, *_MODULES])  # noqa: PLE0605

if TYPE_CHECKING:
    from . import scoring as scoring
    from . import testing as testing
    from .decoding import decode as decode
    from .decoding import decode_iter as decode_iter
    from .engine import Stats as Stats
    from .explaining import explain as explain
    from .integrations.generate import generate as generate
    from .models import Ensemble, FunctionModel, Model, Query, Scored, ShallowFusion
    from .models.transformers import load as load
    from .models.transformers import wrap as wrap
    from .page import view as view
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
    from .settings import Decoding as Decoding


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'bestfirst' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
