"""Corpus jobs: a file of any length in, a file out, in order, and nothing lost or repeated whenever the work is broken off.

A job is cut into shards of a few hundred lines. A shard is decoded by itself, so that its bytes do not depend on when, where or
after what it is done; it is kept as soon as it is done (`Checkpoint`), and the output is put together when all are there. Whoever
gives the same job again goes on with the shards that are missing. `tests/corpus` kills it at random moments.
"""

from .checkpoint import Checkpoint
from .formats import Input, Survey, Target
from .manifest import Manifest
from .records import Record, Shard
from .worker import ShardResult, Tally, Worker

__all__ = ["Checkpoint", "Input", "Manifest", "Record", "Shard", "ShardResult", "Survey", "Tally", "Target", "Worker"]
