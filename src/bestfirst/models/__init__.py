"""Models: who gives next-token scores, and the seam through which searches ask them."""

from .function import FunctionModel
from .model import Model, Query, Scored
from .scorer import ModelScorer, Scorer, Source

__all__ = ["FunctionModel", "Model", "ModelScorer", "Query", "Scored", "Scorer", "Source"]
