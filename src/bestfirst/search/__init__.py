"""The paper: hypotheses, the agenda, Table 1, Algorithm 2. Pure Python, standard library only."""

from .agenda import Agenda, Beam
from .beginning import begin
from .certified import certified
from .groups import Driven, Groups
from .hypothesis import Context, Hypothesis, Successors
from .method import METHODS, by_method
from .objective import BrokenLaw, Objective
from .result import Answer, Result, Status
from .search import Search
from .stop import (
    Answered,
    BestIsWorse,
    Exhausted,
    HuggingFaceStep,
    LevelStop,
    NeverStop,
    OptimalStop,
    Patience,
    Stop,
    TopFinished,
    Unreachable,
)
from .strategy import (
    BestFirst,
    BestScore,
    Finished,
    Heuristic,
    Order,
    ShortestFirst,
    ShortestFirstPruned,
    Strategy,
    a_star,
    a_star_beam,
    beam,
    best_first,
    best_first_beam,
    breadth_first,
    greedy,
)
from .strict import StrictSearch
from .trace import HEADER, Trace

__all__ = [
    "HEADER",
    "METHODS",
    "Agenda",
    "Answer",
    "Answered",
    "Beam",
    "BestFirst",
    "BestIsWorse",
    "BestScore",
    "BrokenLaw",
    "Context",
    "Driven",
    "Exhausted",
    "Finished",
    "Groups",
    "Heuristic",
    "HuggingFaceStep",
    "Hypothesis",
    "LevelStop",
    "NeverStop",
    "Objective",
    "OptimalStop",
    "Order",
    "Patience",
    "Result",
    "Search",
    "ShortestFirst",
    "ShortestFirstPruned",
    "Status",
    "Stop",
    "Strategy",
    "StrictSearch",
    "Successors",
    "TopFinished",
    "Trace",
    "Unreachable",
    "a_star",
    "a_star_beam",
    "beam",
    "begin",
    "best_first",
    "best_first_beam",
    "breadth_first",
    "by_method",
    "certified",
    "greedy",
]
