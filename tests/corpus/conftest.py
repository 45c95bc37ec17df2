"""Corpus jobs on a toy model, in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bestfirst import Decoding
from bestfirst.corpus import Checkpoint, Input, Target, Worker
from bestfirst.corpus.formats import compression_of, format_of
from corpus.models import Upper


@pytest.fixture
def do() -> Callable[..., Checkpoint]:
    """`do(source, output)`: run the job from file to file, three lines per shard; returns its checkpoint."""

    def do(
        source: Path,
        output: Path,
        target: Target | None = None,
        overwrite: bool = False,
        notice=lambda result: None,
        model: Upper | None = None,
        retry_failed: bool = False,
    ) -> Checkpoint:
        read = Input(str(source), format_of(source.name))
        target = replace(target or Target(format_of(output.name)), compression=compression_of(output.name))
        survey = read.survey()
        worker = Worker(model or Upper(), Decoding(beam=2), target)
        job = {"input": {**vars(survey), **read.identity()}, "output": target.identity(), "settings": {"beam": 2}}
        with Checkpoint(str(output), job, target) as checkpoint:
            if checkpoint.state(overwrite, retry_failed) != "complete":
                checkpoint.begin(None)
                checkpoint.run(read, survey, lambda shards: map(worker.decode_shard, shards), 3, notice)
        return checkpoint

    return do
