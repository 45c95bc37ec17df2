"""Models: who gives next-token scores, and the seam through which searches ask them."""

from .combinators import Ensemble, ShallowFusion
from .function import FunctionModel
from .model import Model, Query, Scored
from .scorer import ModelScorer, Scorer, Source

__all__ = [
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
