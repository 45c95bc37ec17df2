"""Jobs on a model of a few lines, in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bestfirst.corpus import Finished, Input, Job, Store, Target, Worker
from bestfirst.corpus.compression import compression_of
from bestfirst.corpus.reader import format_of
from corpus.models import Upper


@pytest.fixture
def do() -> Callable[..., Store]:
    """`do(source, output)`: the job from one file to another, three lines a shard; returns its store."""

    def do(
        source: Path, output: Path, target: Target | None = None, overwrite: bool = False, notice=lambda finished: None
    ) -> Store:
        read = Input(str(source), format_of(source.name))
        target = replace(target or Target(format_of(output.name)), compression=compression_of(output.name))
        survey = read.survey()
        worker = Worker(Upper(), {"beam": 2}, target)
        job = {"input": {**vars(survey), **read.identity()}, "output": target.identity(), "settings": {"beam": 2}}
        with Store(str(output), job, target) as store:
            if store.state(overwrite) != "complete":
                store.begin(None)

                def work(shards) -> list[Finished]:
                    return (worker.work(shard) for shard in shards)

                Job(read, survey, store, 3).run(work, notice)
        return store

    return do
