"""Corpus jobs: decode a file of any length to a file, in order; after any interruption, resume without losing or repeating lines.

A job is split into shards of 500 lines (4,000 on a GPU). Each shard is decoded by itself, so that its bytes do not depend on
when, where or after which other shards that happens (`Worker`). It is stored as soon as it is decoded, and the output is
assembled when all shards are stored (`Checkpoint`). Starting the same job again decodes the missing ones. `tests/corpus` kills it
at random moments.
"""

from .checkpoint import Checkpoint
from .formats import Input, Survey, Target
from .manifest import Manifest
from .records import Record, Shard
from .worker import ShardResult, Tally, Worker

__all__ = ["Checkpoint", "Input", "Manifest", "Record", "Shard", "ShardResult", "Survey", "Tally", "Target", "Worker"]
