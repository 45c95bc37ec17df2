"""What a hypothesis is worth: the scores of the paper and of today's toolkits, one a file. `docs/scores.md` has the table."""

from .bounded_length_reward import BoundedLengthReward
from .coverage import Coverage
from .diverse import Diverse
from .gnmt import GNMT
from .length_normalized import LengthNormalized
from .length_reward import LengthReward
from .log_probability import LogProbability
from .mutual_information import MutualInformation
from .named import SCORES, named_score, score_parameters
from .score import Score
from .wrapped import WrappedScore

__all__ = [
    "GNMT",
    "SCORES",
    "BoundedLengthReward",
    "Coverage",
    "Diverse",
    "LengthNormalized",
    "LengthReward",
    "LogProbability",
    "MutualInformation",
    "Score",
    "WrappedScore",
    "named_score",
    "score_parameters",
]
