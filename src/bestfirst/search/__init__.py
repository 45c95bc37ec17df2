"""Best-first beam search (Meister, Vieira and Cotterell 2020), without any model. Standard library only.

To read beside the paper: `algorithm_2` (as printed, and corrected), `table_1` (strategies), `stops` (stopping criteria), `agenda`
(the queue of beams, section 3.3). `search` lists the searches that run, and `Score.search` chooses one: `strict`, `step`, `level`
or `any_order` (with `search_tree`). `diverse_groups` and `required_words` are variants; `trace` records a search."""

from .agenda import Agenda, Beam
from .any_order import AnyOrderSearch
from .diverse_groups import Groups
from .hypothesis import Context, Hypothesis, Key, Successors
from .level import LevelSearch
from .policy import ROUNDING, TOLERANCE, BrokenLaw, exceeds
from .result import Answer, Result, Status
from .score import Score
from .search import Search, WholeLevels
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
    check_settings,
    greedy,
)
from .trace import HEADER, RecordedSearch, Trace

__all__ = [
    "HEADER", "METHODS", "ROUNDING", "TOLERANCE", "Agenda", "Answer", "Answered", "AnyOrderSearch", "Beam", "BestFirst",
    "BestScore", "BrokenLaw", "Context", "Exhausted", "Finished", "Groups", "Heuristic", "Hypothesis", "Key", "LevelSearch",
    "LevelStop", "NeverStop", "OptimalStop", "Order", "Patience", "RecordedSearch", "Result", "Score", "Search",
    "ShortestFirst", "Status", "StepSearch", "Stop", "Strategy", "StrictSearch", "Successors", "TopFinished", "Trace",
    "Unreachable", "WholeLevels", "a_star", "a_star_beam", "beam", "best_first", "best_first_beam", "breadth_first",
    "by_method", "check_settings", "exceeds", "greedy",
]  # fmt: skip
