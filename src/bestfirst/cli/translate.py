"""`bestfirst translate` and `bestfirst complete`: text in, text out, line by line. From file to file it is a corpus job, which
can be resumed (`corpus`); otherwise a `Stream`: lines are decoded as they come, and written in order as soon as possible."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing

from ..corpus import Input, Record, Target, Worker
from ..corpus.formats import RECORDS, UNREADABLE, check_ending, compression_of, decompressed, format_of
from ..corpus.records import batches
from ..errors import reason
from ..search import HEADER, Result, Trace
from ..settings import Decoding
from . import options
from .console import INTERRUPTED, PARTLY, Bar, CommandError, Output, open_file, print_to_stderr, progress_bar, say, usage
from .corpus import CorpusJob, CostSummary, is_job, say_failure, show_saved
from .model_choice import LanguageModelChoice, ModelChoice, decoding_from
from .options import CorpusOptions, LineOptions, drop_unset

ROWS = 500  # read from a Parquet file at a time


def decode_lines(
    file: str | None,
    output: str | None,
    decoding: Decoding,
    choice: ModelChoice,
    lines: LineOptions,
    corpora: CorpusOptions,
    *,
    partial: bool = False,
    chat: bool = False,
) -> int:
    """Decode every line; returns the exit code. `partial`: print unfinished outputs. `chat`: lines are chat messages."""
    choice.check(decoding)
    if decoding.strategy == "breadth-first" and decoding.max_calls is decoding.allowed is None:
        say("warning: --strategy breadth-first scores all outputs there are, and may never end; see --max-calls")
    if lines.trace is not None and decoding.must_contain:
        raise usage("--must-contain does not go with --trace: its searches leave none; leave one of them out")
    check_ending(lines.trace or "-", "text")
    if compression_of(lines.trace or "-") is not None:
        raise usage(f"a trace is written without compression, not as {lines.trace!r}; name it otherwise, and compress it later")
    form = _form(corpora.output_format or format_of(output), lines.as_json, lines.nbest)
    into = corpora.output_field if form in RECORDS else None
    source = Input(file or "-", corpora.input_format or format_of(file), corpora.input_field, into, chat)
    target = Target(form, compression_of(output or ""), lines.nbest, partial, corpora.input_field, corpora.output_field)
    check_ending(source.path, source.form)
    check_ending(output or "-", form)
    _check_options(source, target, corpora)
    if "parquet" in (source.form, form):
        from ..corpus import parquet  # noqa: F401  fails now, before any work, if its library is missing
    job = CorpusJob(source, target, "-" if output is None else output, decoding, choice, corpora, lines, chat)
    if lines.trace is None and is_job(file, output):
        return job.run()
    _check_stream(source, target, drop_unset(ray=corpora.ray, shard_lines=corpora.shard_lines, retry_failed=lines.retry_failed))
    with ExitStack() as stack:
        stream = stack.enter_context(open_input(file))
        out = stack.enter_context(closing(Output(output, apart_from=[stream], overwrite=lines.overwrite)))
        traced = lines.trace is not None
        events = stack.enter_context(closing(Output(lines.trace, apart_from=[stream, out.file]))) if traced else None
        counted = file and stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
        bar = stack.enter_context(progress_bar(lambda: source.survey().lines if counted else None, out.file.isatty()))
        run = Stream(job.worker(), out, events, bar)
        bar(start=True, description=choice.doing)
        try:
            for batch in records(source, stream):
                run.translate(batch)
        except KeyboardInterrupt:
            raise CommandError("interrupted; the lines translated so far are written", INTERRUPTED) from None
    if lines.stats:
        print_to_stderr(run.summary.table(run.worker.signature))
    return PARTLY if run.summary.tally.failed else 0


def _form(named: str, as_json: bool, nbest: int) -> str:
    """The format of the output, from the one its name or option gives."""
    if as_json and named == "parquet":
        raise usage("--json writes lines, not Parquet; name another output")
    if as_json:
        return "json"
    return "nbest" if named == "text" and nbest > 1 else named


def _check_options(source: Input, target: Target, corpora: CorpusOptions) -> None:
    """Refuse options that would have no effect."""
    if corpora.workers is not None and corpora.ray is None:
        raise usage("--workers goes with --ray")
    used_by = {"input_field": {source.form, target.form}, "output_field": {target.form}}
    for name, forms in used_by.items():
        if getattr(corpora, name) != getattr(type(corpora), name) and not forms & {*RECORDS}:
            flag = "--" + name.replace("_", "-")
            raise usage(f"{flag} is for records: name a .jsonl or .parquet file, or say --input-format or --output-format")
    if source.into is not None and source.into == source.field:
        raise usage(f"--input-field and --output-field are both {source.into!r}; name another output field")


def _check_stream(source: Input, target: Target, job_options: Iterable[str]) -> None:
    """Refuse what only works from file to file."""
    exists = source.path == "-" or os.path.exists(source.path)  # a missing file gets its error when it is opened
    for name in job_options if exists else ():
        flag = "--" + name.replace("_", "-")
        raise usage(f"{flag} goes from file to file: name an input file and, with -o, an output file; and no --trace")
    if source.form == "parquet" and source.path == "-":
        raise usage("Parquet cannot be read from standard input; name an input file")
    if source.form == "parquet":
        source.survey()  # raises if it cannot be read, or if its columns are not as they must be
    if target.form == "parquet":
        raise usage("Parquet goes from file to file: name an input file and, with -o, an output file; and no --trace")
    if target.compression is not None:
        raise usage("a compressed output goes from file to file; here, write to standard output and compress that ('| gzip')")


def open_input(path: str | None) -> io.FileIO:
    """The file of this name; standard input without one, or for `-`."""
    if path in (None, "-"):
        if sys.stdin is None:
            raise usage("standard input is closed; name an input file")
        stream = io.FileIO(sys.stdin.fileno(), closefd=False)
        if stream.isatty():
            say("reading from the terminal; end with Ctrl-D")
        return stream
    text = "; a text itself comes by standard input: echo TEXT | bestfirst translate"
    return open_file(str(path), hint=text if " " in str(path) else "")


def records(source: Input, stream: io.FileIO) -> Iterator[Sequence[Record]]:
    """All records, in batches of as many as are available at a time."""
    if source.form == "parquet":
        yield from (shard.records for shard in source.shards(ROWS))
        return
    try:
        yield from batches(decompressed(stream, source.path), source.parse)
    except UNREADABLE as error:
        raise CommandError(f"cannot read on: {reason(error)}") from error


class Stream:
    """Decodes batches of records and writes their results in the order of the records."""

    def __init__(self, worker: Worker, output: Output, events: Output | None, bar: Bar) -> None:
        self.worker = worker
        self.output = output
        self.events = events
        self.bar = bar
        self.summary = CostSummary()
        self._done: dict[int, tuple[Record, Result]] = {}  # by number: results that wait for an earlier one
        self._next = 1
        self._traces: dict[int, Trace] = {}
        for target in filter(None, (output, events)):
            target.begin()
        if events is not None:
            events.write(json.dumps(HEADER) + "\n")

    def translate(self, records: Sequence[Record]) -> None:
        cost = self.worker.decode(records, self.done, None if self.events is None else self._trace)
        self.summary.tally.include(cost)
        show_saved(self.bar, self.summary.tally)

    def done(self, record: Record, result: Result) -> None:
        """Write a result, and those waiting for it, once all before it are written."""
        self._done[record.number] = (record, result)
        while self._next in self._done:
            self._next += 1
            self._write(*self._done.pop(self._next - 1))

    def _trace(self, record: Record) -> Trace:
        trace = self._traces[record.number] = Trace(line=record.number)
        return trace

    def _write(self, record: Record, result: Result) -> None:
        self.output.write(self.worker.target.line(record, result))
        trace = self._traces.pop(record.number, None)
        if self.events is not None and trace is not None:
            self.events.write("".join(json.dumps(event) + "\n" for event in trace.events))
        if (why := self.worker.failure(result)) is not None:
            self.summary.tally.failed += 1
            say_failure(record.number, why)
        self.bar(advance=1)


# -- the commands -----------------------------------------------------------------------------------------------------


@options.grouped
def translate(
    file: options.InputFile = None,
    output: options.OutputFile = None,
    partial: options.Partial = False,
    *,
    lines: LineOptions,
    search: options.AllSearchOptions,
    scoring: options.AllScoreOptions,
    corpora: options.CorpusOptions,
    choice: ModelChoice,
) -> int:
    """Translate text, line for line, in order.

    Any Hugging Face sequence-to-sequence or causal model will do. The output
    is that of beam search with the same beam, found with fewer model calls:
    --stats shows how many.

    Examples:
      bestfirst translate news.de -o news.en
      bestfirst translate news.jsonl.gz -o news.parquet --input-field german
      bestfirst translate news.de.zst -o news.en.zst --ray --workers 8
      echo 'Guten Morgen!' | bestfirst translate --beam 10 --nbest 3
      bestfirst translate news.de --json --stats > news.jsonl
      bestfirst translate news.de --strategy beam --finished keep
      bestfirst translate news.de --model folder/of/nllb \\
        --source-lang deu_Latn --target-lang eng_Latn

    With --json, each line of output is an object:
      line        the number of the input line, from 1
      text        what is printed without --json
      hypotheses  the n best: text, tokens, score (what ranks them), logprob
      calls       hypotheses that the search had to score
      rows        hypotheses that were scored, including ahead of need
      steps       forward passes that this line took part in
      exact       whether this is proven to be beam search's answer
      status      complete, incomplete (nothing finished), budget (--max-calls
                  reached), or error, and then there is a message

    An empty line stays empty. A line that cannot be translated becomes an
    empty line and is named on standard error; the others are translated all
    the same.

    From a file to a file (-o), interrupted work is not lost, be it by
    Ctrl-C, kill -9, a power failure or a full disk. OUT.parts keeps finished
    lines, OUT.manifest.json identifies the job, and OUT appears when all is
    done. The same command resumes the job, or says that there is nothing
    left to do (--retry-failed tries failed lines again). A pipe gets its
    output line by line. If the model fails on everything, the command ends.

    Exit codes:
      0    every line is translated
      1    some lines failed, or the output could not be written to its end
      2    usage, a missing input file or model folder, an output that exists
           and is of another job (see --overwrite): nothing is translated
      130  interrupted with Ctrl-C
    """
    decoding = decoding_from(nbest=lines.nbest, **search.settings(), **scoring.settings())
    return decode_lines(file, output, decoding, choice, lines, corpora, partial=partial)


@options.grouped
def complete(
    file: options.PromptFile = None,
    output: options.OutputFile = None,
    chat: options.Chat = False,
    *,
    lines: LineOptions,
    search: options.CompletionOptions,
    scoring: options.AllScoreOptions,
    corpora: options.CompletionCorpora,
    choice: LanguageModelChoice,
) -> int:
    """Continue prompts with a language model, one prompt a line.

    Prints the text that the model writes after the prompt, up to the end of
    sequence or a stop string. The output is that of beam search with the
    same beam. A text that reaches --max-length is printed as it is, and
    --json marks it with "truncated": true.

    Examples:
      echo 'Once upon a time' | bestfirst complete --model folder/of/llama
      bestfirst complete prompts.txt --model folder/of/llama --stop '\\n' \\
        --max-length 50 --length-penalty 1
      bestfirst complete questions.txt --model folder/of/chat --chat -k 4
      bestfirst complete talks.jsonl --model folder/of/chat --chat \\
        --input-field messages --output-field answer -o answers.jsonl

    A prompt is a line of text, or the field --input-field of a JSON line or
    Parquet row. With --chat it is a user's message, or a JSON list of
    messages ({"role": "user", "content": "..."}), and the model's own chat
    template makes the prompt. Line breaks in an output are printed as
    spaces; --json and .jsonl keep them.

    With --json, each line of output is an object, as 'bestfirst translate
    --help' describes it. Jobs from file to file can be resumed, as there.

    Exit codes:
      0    every line is done
      1    some lines failed, or the output could not be written to its end
      2    usage, a missing input file or model folder, an output that exists
           and is of another job (see --overwrite): nothing is done
      130  interrupted with Ctrl-C
    """
    if choice.model is None:
        raise usage("--model is missing: what comes with bestfirst translates; name the folder of a language model")
    decoding = decoding_from(nbest=lines.nbest, accept_truncated=True, **search.settings(), **scoring.settings())
    return decode_lines(file, output, decoding, choice, lines, corpora, chat=chat)
