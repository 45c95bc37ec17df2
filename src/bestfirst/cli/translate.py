"""`bestfirst translate`: text in, text out, line for line."""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack, closing

from ..corpus import Input, Target
from ..corpus.input import compression_of, format_of
from . import options
from .console import tell
from .corpus import CorpusJob, build_worker, is_job
from .failure import INTERRUPTED, PARTLY, CommandError, reports, usage
from .output import Output
from .progress import Bar
from .settings import ModelChoice, decoding_from
from .stream import Stream, open_input, records


@reports
@options.grouped
def translate(
    file: options.InputFile = None,
    output: options.OutputFile = None,
    nbest: options.NBest = 1,
    as_json: options.AsJson = False,
    partial: options.Partial = False,
    stats: options.ShowStats = False,
    trace: options.TraceFile = None,
    overwrite: options.Overwrite = False,
    retry_failed: options.RetryFailed = False,
    *,
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
      rows        hypotheses that were scored, ahead of need included
      steps       forward passes that this line took part in
      exact       whether this is proven to be beam search's answer
      status      complete, incomplete (nothing finished), budget (--max-calls
                  reached), or error, and then there is a message

    An empty line stays empty. A line that cannot be translated becomes an
    empty line and is named on standard error; the others are translated all
    the same.

    From a file to a file (-o), work that is broken off is not lost: by
    Ctrl-C, kill -9, a power failure or a full disk. OUT.parts keeps what is
    done, OUT.manifest.json says of which job, and OUT appears when all is
    done. The same command goes on from there, or says that there is nothing
    left to do (--retry-failed does lines that failed once more). What is
    written to a pipe is written line by line. A model that fails on
    everything ends the work.

    Exit codes:
      0    every line is translated
      1    some lines failed, or the output could not be written to its end
      2    usage, a missing input file or model folder, an output that exists
           and is of another job (see --overwrite): nothing is translated
      130  interrupted with Ctrl-C
    """
    decoding = decoding_from(nbest=nbest, **search.settings(), **scoring.settings())
    choice.check(decoding)
    fields = corpora.input_field, corpora.output_field
    source = Input(file or "-", corpora.input_format or format_of(file), *fields)
    form = _form(corpora.output_format or format_of(output), as_json, nbest)
    target = Target(form, compression_of(output or ""), nbest, partial, *fields)
    if "parquet" in (source.form, form):
        from ..corpus import parquet  # noqa: F401  now, if its library is missing
    if trace is None and is_job(file, output):
        return CorpusJob(source, target, str(output), decoding, choice, corpora, overwrite, retry_failed).run(stats)
    _check_stream(source, target, corpora.ray)
    with ExitStack() as stack:
        stream = stack.enter_context(open_input(file))
        out = stack.enter_context(closing(Output(output, apart_from=[stream], overwrite=overwrite)))
        events = stack.enter_context(closing(Output(trace, apart_from=[stream, out.file]))) if trace else None
        total = (lambda: source.survey().lines) if stat.S_ISREG(os.fstat(stream.fileno()).st_mode) and file else (lambda: None)
        bar = stack.enter_context(Bar(total, hidden=out.file.isatty()))
        run = Stream(build_worker(choice, decoding, target), out, events, bar)
        try:
            for batch in records(source, stream):
                run.translate(batch)
        except KeyboardInterrupt:
            raise CommandError("interrupted; the lines translated so far are written", INTERRUPTED) from None
    if stats:
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
