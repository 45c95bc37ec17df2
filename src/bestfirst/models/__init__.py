"""Models: who gives next-token scores, and the seam through which searches ask them."""

from .combinators import Ensemble, ShallowFusion
from .function import FunctionModel
from .model import Model, Query, Scored
from .scorer import Budget, ModelScorer, Scorer, Source

__all__ = [
    "Budget",
    "Ensemble",
    "FunctionModel",
    "Model",
    "ModelScorer",
    "Query",
    "Scored",
    "Scorer",
    "ShallowFusion",
    "Source",
]
