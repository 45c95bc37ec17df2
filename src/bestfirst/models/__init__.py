"""Models: who gives next-token scores."""

from .combinators import Ensemble, ShallowFusion
from .model import FunctionModel, Model, Query, Scored, Source, as_model

__all__ = ["Ensemble", "FunctionModel", "Model", "Query", "Scored", "ShallowFusion", "Source", "as_model"]
