"""What the commands of `bench` and `tune` share: reading texts, loading models, saving results, showing tables and plots."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bestfirst.cli.console import INTERRUPTED, PARTLY, CommandError, progress_bar, reason, say, usage
from bestfirst.cli.model_choice import ModelChoice
from bestfirst.cli.translate import open_input
from bestfirst.corpus.formats import UNREADABLE, decompressed, format_of
from bestfirst.corpus.records import batches
from bestfirst.settings import Decoding

from ..row import Benchmark, OtherModel, ParallelText, Row, Saved, Store
from ..setting import Setting
from ..tables import FORMATS, Table
from .bench_options import BenchModelOptions, ShuffleOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bestfirst.models.transformers import TransformersModel

SHOWN = 5  # failed lines to name; the others are only counted
SUFFIXES = (".png", ".svg", ".pdf")  # of plots

# -- input ---------------------------------------------------------------------------------------------------------------


def read_text(source: Path, reference: Path | None = None) -> ParallelText:
    """A text and its references, line by line."""
    sources = read_lines(source)
    references = None if reference is None else read_lines(reference)
    if references is not None and len(sources) != len(references):
        counts = f"{str(source)!r} has {len(sources)} lines, {str(reference)!r} {len(references)}"
        raise usage(f"{counts}: each needs its translation")
    text = ParallelText.of(source.name, sources, references)
    if not text.pairs:
        raise usage(f"{str(source)!r} has no text")
    return text


def read_lines(file: Path) -> list[str]:
    """The lines of a text, which may be compressed, ended by line feeds only."""
    if format_of(str(file)) != "text":
        raise usage(f"{str(file)!r}: a text is needed, one sentence a line, not records")
    with open_input(str(file)) as stream:
        try:
            lines = [line for batch in batches(decompressed(stream, str(file))) for line in batch]
        except UNREADABLE as error:
            raise usage(f"cannot read {str(file)!r}: {reason(error)}") from error
    if broken := [line for line in lines if line.error is not None]:
        raise usage(f"{str(file)!r}, line {broken[0].number}: {broken[0].error}")
    return [line.text for line in lines]


def shuffled_lines(file: Path, which: ShuffleOptions) -> list[str]:
    """The lines that are not blank, shuffled or limited as the options say."""
    lines = [pair.source for pair in read_text(file).pairs]
    if which.shuffle is not None:
        random.Random(which.shuffle).shuffle(lines)
    return lines[: which.limit]


def load_models(chosen: BenchModelOptions, lm: str | None = None) -> tuple[Any, Any]:
    """The model, and the language model or None."""
    settings = Decoding()
    if lm is not None:  # as part of a score that takes one, so that `load` checks whether they go together
        settings = Decoding(score="mutual-information", score_options={"language_model": lm, "weight": 0.05, "epsilon": 0.02})
    choice = ModelChoice(**vars(chosen)).check(settings)
    os.environ["OMP_NUM_THREADS"] = str(chosen.threads)  # before torch is loaded
    loaded, settings = choice.load(settings)
    return loaded, settings.score_options.get("language_model")


# -- output --------------------------------------------------------------------------------------------------------------


def show(table: Table, form: str = "text") -> None:
    """Print a table, followed by a blank line except for CSV."""
    print(FORMATS[form](table), end="" if form == "csv" else "\n")


def show_progress(what: str) -> None:
    """Replace the last line of stderr, if it is a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)


def check_plot(file: Path) -> None:
    """A usage error where a plot cannot be written to a file of this name, or drawn at all."""
    if file.suffix not in SUFFIXES:
        raise usage(f"a plot is written to a file that ends in {', '.join(SUFFIXES)}, not {str(file)!r}")
    if find_spec("matplotlib") is None:
        raise usage("plots need matplotlib: pip install 'bestfirst[bench]'")


def save_plot(figure: Figure, file: Path) -> None:
    """Write a plot, and say where."""
    try:
        figure.savefig(file)
    except OSError as error:
        raise CommandError(f"cannot write to {str(file)!r}: {reason(error)}", PARTLY) from error
    say(f"drawn in {str(file)!r}")


@contextmanager
def saving(kind: type[Saved], file: Path | None, name: str, model: str) -> Iterator[Store[Any]]:
    """A store in this file (by default NAME-MODEL.jsonl). Errors and Ctrl-C become messages that say what was saved."""
    path = Path(f"{name}-{model.partition('@')[0]}.jsonl") if file is None else file
    opened, before = False, 0
    store = Store(kind, path, model)
    try:
        with store:
            opened, before = True, len(store.records)
            yield store
    except KeyboardInterrupt:
        saved = f"interrupted; {len(store.records) - before} {kind.kind}s were made and are in {str(path)!r}"
        raise CommandError(f"{saved}: the same command goes on from there", INTERRUPTED) from None
    except OSError as error:
        if opened:
            raise CommandError(f"cannot write to {str(path)!r}: {reason(error)}", PARTLY) from error
        raise usage(f"cannot keep {kind.kind}s in {str(path)!r}: {reason(error)}") from error
    except OtherModel as error:
        raise usage(f"{error} with --rows") from error
    except ValueError as error:
        raise usage(str(error)) from error


Work = Sequence[tuple[Sequence[Setting], ParallelText]]
"""Settings to run, each list with its text."""


def make_rows(
    model: TransformersModel, language_model: TransformersModel | None, work: Work, file: Path | None
) -> tuple[list[Row], int]:
    """Make the rows that are missing from the file, with a progress bar. Returns all rows of `work`, and the exit code."""
    benchmark = Benchmark(model, language_model)
    failures: dict[tuple[str, int], str] = {}
    with saving(Row, file, "bench", benchmark.name) as store:
        total = sum(len(benchmark.missing(setting, text, store)) for settings, text in work for setting in settings)
        requested = sum(len(settings) * len(text.pairs) for settings, text in work)
        if total < requested:
            say(f"{requested - total} of {requested} rows are in {str(store.path)!r} already")
        with progress_bar(lambda: total, hidden=not total, what="", speed_estimate_period=120) as bar:

            def progress(setting: Setting, done: int) -> None:
                bar(description=f"{setting.search}, k = {setting.beam}, {setting.scored}", advance=done)

            for settings, text in work:
                failed = benchmark.run(settings, text, store, progress)
                failures |= {(text.name.partition("@")[0], line): message for line, message in failed.items()}
    for (name, line), message in list(failures.items())[:SHOWN]:
        say(f"{name}, line {line}: {message}")
    if len(failures) > SHOWN:
        say(f"and {len(failures) - SHOWN} lines more cannot be decoded; tables leave them out")
    signed = {(benchmark.signature(setting, text), text): None for settings, text in work for setting in settings}
    keys = dict.fromkeys((signature, pair.line) for signature, text in signed for pair in text.pairs)
    return [store.records[key] for key in keys if key in store], PARTLY if failures else 0
