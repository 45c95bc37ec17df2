"""What bench's commands do alike: read the text, load the models, run with a bar, say what ended it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...bench.corpus import Corpus
from ...bench.setting import Setting
from ...settings import Decoding
from ..failure import INTERRUPTED, PARTLY, CommandError, reason, say, usage
from ..lines import batches, open_input
from ..settings import ModelChoice

if TYPE_CHECKING:
    from ...bench.row import Row
    from ...bench.runner import Failure, Runner
    from ...bench.store import Store
    from ...models.transformers import TransformersModel

SHOWN = 5  # lines that failed to name; the others are counted


def read_corpus(source: Path, reference: Path | None = None) -> Corpus:
    """The text and its references, which belong together line by line."""
    sources = read_lines(source)
    references = None if reference is None else read_lines(reference)
    if references is not None and len(sources) != len(references):
        counts = f"{str(source)!r} has {len(sources)} lines, {str(reference)!r} {len(references)}"
        raise usage(f"{counts}: each needs its translation")
    corpus = Corpus.of(source.name, sources, references)
    if not corpus.pairs:
        raise usage(f"{str(source)!r} has no text")
    return corpus


def read_lines(file: Path) -> list[str]:
    """The lines of a text; only line feeds end one."""
    with open_input(str(file)) as stream:
        try:
            lines = [line for batch in batches(stream) for line in batch]
        except CommandError as error:
            raise usage(f"cannot read {str(file)!r}: {error}") from error
    if broken := [line for line in lines if line.error is not None]:
        raise usage(f"{str(file)!r}, line {broken[0].number}: {broken[0].error}")
    return [line.text for line in lines]


def load_models(
    model: str | None, lm: str | None = None, device: str | None = None, dtype: str | None = None, threads: int = 1
) -> tuple[TransformersModel, TransformersModel | None]:
    """The model, and the language model if there is one."""
    wanted = Decoding()
    if lm is not None:  # as the score that takes one, so that whether they go together is checked
        wanted = Decoding(score="mutual-information", score_options={"language_model": lm, "weight": 0.05, "epsilon": 0.02})
    choice = ModelChoice(model, device=device, dtype=dtype, threads=threads).check(wanted)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # before torch is loaded
    loaded, wanted = choice.load(wanted)
    return loaded, wanted.score_options.get("language_model")


def check_settings(settings: Sequence[Setting], language_model: Any) -> None:
    """Find contradictions before anything is run: the library's own checks, on nothing."""
    for setting in settings:
        try:
            asked = setting.arguments(language_model)
            method = {name: asked[name] for name in ("strategy", "method", "stop", "queue_capacity") if name in asked}
            Decoding(beam=setting.beam, finished=asked["finished"], score=asked["score"], **method)
        except ValueError as error:
            raise usage(reason(error)) from error


class Bar:
    """Counts rows on stderr, where that is a terminal, and says how long it will take."""

    def __init__(self, total: int) -> None:
        self._progress: Any = None
        if not total or sys.stderr is None or not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        left = TimeRemainingColumn(), TextColumn("left")
        self._progress = Progress(*columns, *left, console=Console(stderr=True), redirect_stdout=False, speed_estimate_period=120)
        self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, setting: Setting, done: int) -> None:
        if self._progress is not None:
            named = f"{setting.search}, k = {setting.beam}, {setting.scored}"
            self._progress.update(self._task, description=named, advance=done)


@dataclass(frozen=True)
class Made:
    """The rows that were asked for, whenever they were made, and the exit code."""

    rows: list[Row]
    code: int


Work = Sequence[tuple[Sequence[Setting], Corpus]]
"""What to run on which text."""


def make_rows(model: TransformersModel, language_model: TransformersModel | None, work: Work, file: Path | None) -> Made:
    """Make the rows that are missing from the file, with a bar."""
    from ...bench.row import Key, Row
    from ...bench.runner import Runner
    from ...bench.store import Store

    runner = Runner(model, language_model)
    path = Path(f"bench-{model.name}.jsonl") if file is None else file
    try:
        with Store(Row, path, runner.name) as store:
            code = _run(runner, work, store)
    except OSError as error:
        raise usage(f"cannot keep rows in {str(path)!r}: {reason(error)}") from error
    except ValueError as error:
        raise usage(str(error)) from error
    asked = [
        Key(runner.signature(setting, corpus), pair.line)
        for settings, corpus in work
        for setting in settings
        for pair in corpus.pairs
    ]
    return Made([store.records[key] for key in dict.fromkeys(asked) if key in store], code)


def _run(runner: Runner, work: Work, store: Store[Row]) -> int:
    total = sum(runner.missing(settings, corpus, store) for settings, corpus in work)
    asked = sum(len(settings) * len(corpus.pairs) for settings, corpus in work)
    if total < asked:
        say(f"{asked - total} of {asked} rows are in {str(store.path)!r} already")
    failures: dict[tuple[str, int], Failure] = {}
    before = len(store.records)
    try:
        with Bar(total) as bar:
            for settings, corpus in work:
                found = runner.run(settings, corpus, store, bar)
                failures |= {(corpus.name.partition("@")[0], failure.line): failure for failure in found}
    except KeyboardInterrupt:
        saved = f"interrupted; {len(store.records) - before} rows were made and are in {str(store.path)!r}"
        raise CommandError(f"{saved}: the same command goes on from there", INTERRUPTED) from None
    except OSError as error:
        raise CommandError(f"cannot write to {str(store.path)!r}: {reason(error)}", PARTLY) from error
    for (text, line), failure in list(failures.items())[:SHOWN]:
        say(f"{text}, line {line}: {failure.message}")
    if len(failures) > SHOWN:
        say(f"and {len(failures) - SHOWN} lines more cannot be decoded; tables leave them out")
    return PARTLY if failures else 0
