"""Models: the interface that supplies next-token scores to the search (`Model`), and its implementations."""

from .combinators import Ensemble, ShallowFusion
from .model import FunctionModel, Model, Query, Scored, Source, as_model

__all__ = ["Ensemble", "FunctionModel", "Model", "Query", "Scored", "ShallowFusion", "Source", "as_model"]
