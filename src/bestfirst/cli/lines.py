"""Lines: text in, text out, line for line: from file to file as a job that can be broken off, else as a stream."""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack, closing
from dataclasses import dataclass

from ..corpus import Input, Target
from ..corpus.input import compression_of, format_of
from ..settings import Decoding
from .console import INTERRUPTED, PARTLY, CommandError, tell, usage
from .corpus import CorpusJob, build_worker, is_job
from .options import CorpusOptions, LineOptions
from .output import Output
from .progress import Bar
from .settings import ModelChoice
from .stream import Stream, open_input, records


@dataclass(frozen=True)
class Lines(LineOptions):
    """What is written for each line: decoded, and written."""

    def run(
        self,
        file: str | None,
        output: str | None,
        decoding: Decoding,
        choice: ModelChoice,
        corpora: CorpusOptions,
        *,
        partial: bool = False,
        chat: bool = False,
    ) -> int:
        """Decode every line; returns the exit code. `partial`: take unfinished outputs. `chat`: what is said to a chat model."""
        choice.check(decoding)
        fields = corpora.input_field, corpora.output_field
        source = Input(file or "-", corpora.input_format or format_of(file), *fields)
        form = _form(corpora.output_format or format_of(output), self.as_json, self.nbest)
        target = Target(form, compression_of(output or ""), self.nbest, partial, *fields)
        if "parquet" in (source.form, form):
            from ..corpus import parquet  # noqa: F401  now, if its library is missing
        if self.trace is None and is_job(file, output):
            job = CorpusJob(source, target, str(output), decoding, choice, corpora, self.overwrite, self.retry_failed, chat)
            return job.run(self.stats)
        _check_stream(source, target, corpora.ray)
        with ExitStack() as stack:
            stream = stack.enter_context(open_input(file))
            out = stack.enter_context(closing(Output(output, apart_from=[stream], overwrite=self.overwrite)))
            events = stack.enter_context(closing(Output(self.trace, apart_from=[stream, out.file]))) if self.trace else None
            total = (
                (lambda: source.survey().lines) if stat.S_ISREG(os.fstat(stream.fileno()).st_mode) and file else (lambda: None)
            )
            bar = stack.enter_context(Bar(total, hidden=out.file.isatty()))
            run = Stream(build_worker(choice, decoding, target, chat), out, events, bar)
            try:
                for batch in records(source, stream):
                    run.translate(batch)
            except KeyboardInterrupt:
                raise CommandError("interrupted; the lines translated so far are written", INTERRUPTED) from None
        if self.stats:
            tell(run.summary.table(run.worker.signature))
        return PARTLY if run.failed else 0


def _form(named: str, as_json: bool, nbest: int) -> str:
    if as_json and named == "parquet":
        raise usage("--json writes lines, not Parquet; name another output")
    if as_json:
        return "json"
    return "nbest" if named == "text" and nbest > 1 else named


def _check_stream(source: Input, target: Target, ray: str | None) -> None:
    """What only goes from file to file."""
    if ray is not None:
        raise usage("--ray goes from file to file: name an input file and, with -o, an output file; and no --trace")
    if source.form == "parquet" and source.path == "-":
        raise usage("Parquet cannot be read from standard input; name an input file")
    if target.form == "parquet":
        raise usage("Parquet goes from file to file: name an input file and, with -o, an output file; and no --trace")
    if target.compression is not None:
        raise usage("a compressed output goes from file to file; here, write to standard output and compress that ('| gzip')")
