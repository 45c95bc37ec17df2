"""Models: who gives next-token scores."""

from .adapted import as_model
from .combinators import Ensemble, ShallowFusion
from .model import FunctionModel, Model, Query, Scored, Source

__all__ = ["Ensemble", "FunctionModel", "Model", "Query", "Scored", "ShallowFusion", "Source", "as_model"]
