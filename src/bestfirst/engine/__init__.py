"""Engines: many searches at once on one model. `engine.py` defines the interface; `host.py` and `device/` implement it."""

from .choice import engine_for, engine_for_many, scorer_for
from .engine import BATCH, FIRST_BATCH, Engine, Job, Stats, no_garbage_collection, run

__all__ = [
    "BATCH", "FIRST_BATCH", "Engine", "Job", "Stats", "engine_for", "engine_for_many", "no_garbage_collection", "run",
    "scorer_for",
]  # fmt: skip
