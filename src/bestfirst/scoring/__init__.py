from .score import LogProbability, Score
from .named import named_score

__all__ = ["LogProbability", "Score", "named_score"]
