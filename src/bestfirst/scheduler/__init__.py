"""Many searches, one model: who is scored in the next forward pass, and when inputs enter."""

from .scheduler import Job, Scheduler, Stats

__all__ = ["Job", "Scheduler", "Stats"]
