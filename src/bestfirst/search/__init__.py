"""The paper: hypotheses, the agenda, Table 1, Algorithm 2. Pure Python, standard library only."""

from .agenda import Agenda, Beam
from .hypothesis import Context, Hypothesis, Successors
from .result import Answer, Result, Status
from .search import BrokenLaw, Search
from .stop import Answered, Exhausted, NeverStop, Stop
from .strategy import (
    Finished,
    Heuristic,
    Order,
    Strategy,
    a_star,
    a_star_beam,
    beam,
    best_first,
    best_first_beam,
    breadth_first,
    greedy,
)
from .trace import Trace

__all__ = [
    "Agenda",
    "Answer",
    "Answered",
    "Beam",
    "BrokenLaw",
    "Context",
    "Exhausted",
    "Finished",
    "Heuristic",
    "Hypothesis",
    "NeverStop",
    "Order",
    "Result",
    "Search",
    "Status",
    "Stop",
    "Strategy",
    "Successors",
    "Trace",
    "a_star",
    "a_star_beam",
    "beam",
    "best_first",
    "best_first_beam",
    "breadth_first",
    "greedy",
]
