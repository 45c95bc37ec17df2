"""Corpus jobs: a file of any length in, a file out, in order, and nothing lost or repeated whenever the work is broken off.

A job is cut into shards of a few hundred lines. A shard is decoded by itself, so that its bytes do not depend on when, where or
after what it is done; it is kept as soon as it is done (`Store`), and the output is put together when all are there. Whoever
gives the same job again goes on with the shards that are missing. `tests/corpus` kills it at random moments.
"""

from .errors import Stopped, Unusable
from .job import Job
from .manifest import Manifest
from .reader import Input, Survey
from .record import Record, Shard
from .store import Store
from .tally import Tally
from .target import Target
from .worker import Finished, Worker

__all__ = [
    "Finished",
    "Input",
    "Job",
    "Manifest",
    "Record",
    "Shard",
    "Stopped",
    "Store",
    "Survey",
    "Tally",
    "Target",
    "Unusable",
    "Worker",
]
