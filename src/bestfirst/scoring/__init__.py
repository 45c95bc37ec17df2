"""What a hypothesis is worth: the scores of the paper and of today's toolkits. `docs/scores.md` has the table."""

from .score import Score
from .scores import (
    GNMT,
    SCORES,
    BoundedLengthReward,
    Coverage,
    Diverse,
    LengthNormalized,
    LengthReward,
    LogProbability,
    MutualInformation,
    by_length_penalty,
    named_score,
)

__all__ = [
    "GNMT", "SCORES", "BoundedLengthReward", "Coverage", "Diverse", "LengthNormalized", "LengthReward", "LogProbability",
    "MutualInformation", "Score", "by_length_penalty", "named_score",
]  # fmt: skip
