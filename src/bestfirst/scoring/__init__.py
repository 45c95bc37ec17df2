"""What a hypothesis is worth: the scores of the paper and of today's toolkits. `docs/scores.md` has the table."""

from .length import GNMT, BoundedLengthReward, LengthNormalized, LengthReward, LogProbability, by_length_penalty
from .mutual_information import MutualInformation
from .named import SCORES, named_score, score_parameters
from .score import Score
from .wrapped import Coverage, Diverse, WrappedScore

__all__ = [
    "GNMT", "SCORES", "BoundedLengthReward", "Coverage", "Diverse", "LengthNormalized", "LengthReward", "LogProbability",
    "MutualInformation", "Score", "WrappedScore", "by_length_penalty", "named_score", "score_parameters",
]  # fmt: skip
