"""The paper: Algorithm 2, Table 1, hypotheses and the agenda. Pure Python, standard library only.

`algorithm_2` is the algorithm to be read, `search` says which search runs when: `strict`, `step`, `level`, `any_order` (with its
`search_tree`), or one on a device. `table_1` and `stops` are what one may choose, `groups` is diverse beam search.
"""

from .agenda import Agenda, Beam
from .any_order import AnyOrderSearch
from .diverse_groups import Groups
from .hypothesis import Context, Hypothesis, Key, Successors
from .level import LevelSearch
from .policy import ROUNDING, TOLERANCE, BrokenLaw
from .result import Answer, Result, Status
from .score import Score
from .search import Search, certified
from .step import StepSearch
from .stops import Answered, Exhausted, LevelStop, NeverStop, OptimalStop, Patience, Stop, TopFinished, Unreachable
from .strict import StrictSearch
from .table_1 import (
    METHODS,
    BestFirst,
    BestScore,
    Finished,
    Heuristic,
    Order,
    ShortestFirst,
    Strategy,
    a_star,
    a_star_beam,
    beam,
    best_first,
    best_first_beam,
    breadth_first,
    by_method,
    check,
    greedy,
)
from .trace import HEADER, RecordedSearch, Trace

__all__ = [
    "HEADER", "METHODS", "ROUNDING", "TOLERANCE", "Agenda", "Answer", "Answered", "AnyOrderSearch", "Beam", "BestFirst",
    "BestScore", "BrokenLaw", "Context", "Exhausted", "Finished", "Groups", "Heuristic", "Hypothesis", "Key", "LevelSearch",
    "LevelStop", "NeverStop", "OptimalStop", "Order", "Patience", "RecordedSearch", "Result", "Score", "Search",
    "ShortestFirst", "Status", "StepSearch", "Stop", "Strategy", "StrictSearch", "Successors", "TopFinished", "Trace",
    "Unreachable", "a_star", "a_star_beam", "beam", "best_first", "best_first_beam", "breadth_first", "by_method",
    "certified", "check", "greedy",
]  # fmt: skip
