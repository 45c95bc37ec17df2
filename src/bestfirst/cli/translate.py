"""`bestfirst translate`: text in, text out, line for line."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from ..scheduler import Stats
from ..search import HEADER, Result, Trace
from . import formats, options
from .failure import INTERRUPTED, PARTLY, CommandError, reason, reports, say, tell
from .lines import Line, batches, open_input
from .output import InOrder, Output
from .progress import Bar
from .settings import Decoding, ModelChoice, given
from .stats import Summary

if TYPE_CHECKING:
    from ..models.transformers import TransformersModel

Format = Callable[[int, Result, bool], str]


@reports
def translate(
    file: options.InputFile = None,
    output: options.OutputFile = None,
    nbest: options.NBest = 1,
    as_json: options.AsJson = False,
    partial: options.Partial = False,
    stats: options.ShowStats = False,
    trace: options.TraceFile = None,
    beam: options.Beam = 5,
    strategy: options.StrategyName = "best-first",
    finished: options.FinishedRule = "leave",
    max_length: options.MaxLength = None,
    prefix: options.Prefix = None,
    max_calls: options.MaxCalls = None,
    row_budget: options.RowBudget = None,
    queue_capacity: options.QueueCapacity = None,
    stop: options.Stop = None,
    patience: options.PatienceFactor = None,
    score: options.ScoreName = "logprob",
    method: options.Method = "exact",
    temperature: options.Temperature = None,
    alpha: options.Alpha = None,
    beta: options.Beta = None,
    ratio: options.Ratio = None,
    lm: options.LanguageModel = None,
    weight: options.Weight = None,
    epsilon: options.Epsilon = None,
    whole_sequence: options.WholeSequence = False,
    model: options.ModelName = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    source_lang: options.SourceLang = None,
    target_lang: options.TargetLang = None,
) -> int:
    """Translate text, line for line, in order.

    Any Hugging Face sequence-to-sequence or causal model will do. The output
    is that of beam search with the same beam, found with fewer model calls:
    --stats shows how many.

    Examples:
      bestfirst translate news.de -o news.en
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
    the same. What was written stays written when the command is interrupted.

    Exit codes:
      0    every line is translated
      1    some lines failed, or the output could not be written to its end
      2    usage, a missing input file or model folder: nothing is translated
      130  interrupted with Ctrl-C
    """
    decoding = Decoding(
        strategy=strategy,
        beam=beam,
        finished=finished,
        nbest=nbest,
        max_length=max_length,
        max_calls=max_calls,
        row_budget=row_budget,
        queue_capacity=queue_capacity,
        prefix=prefix,
        score=score,
        score_options=given(
            temperature=temperature,
            alpha=alpha,
            beta=beta,
            ratio=ratio,
            language_model=lm,
            weight=weight,
            epsilon=epsilon,
            whole_sequence=whole_sequence,
        ),
        method=method,
        stop=stop,
        stop_options=given(factor=patience),
    ).check()
    choice = ModelChoice(model, device, dtype, threads, source_lang, target_lang).check(decoding)
    with ExitStack() as stack:
        source = stack.enter_context(open_input(file))
        out = stack.enter_context(closing(Output(output, apart_from=[source])))
        events = stack.enter_context(closing(Output(trace, apart_from=[source, out.file]))) if trace else None
        bar = stack.enter_context(Bar(source, hidden=out.file.isatty()))
        run = Run(*choice.load(decoding), _format(as_json, nbest), partial, out, events, bar)
        try:
            for lines in batches(source):
                run.translate(lines)
        except KeyboardInterrupt:
            raise CommandError("interrupted; the lines translated so far are written", INTERRUPTED) from None
    if stats:
        tell(run.summary.table(run.decoding.signature(run.model)))
    return PARTLY if run.failed else 0


def _format(as_json: bool, nbest: int) -> Format:
    if as_json:
        return formats.as_json
    return formats.as_nbest if nbest > 1 else formats.as_text


class Run:
    """One run of the command: batches of lines go in, results are written in the order of the lines."""

    def __init__(
        self,
        model: TransformersModel,
        decoding: Decoding,
        form: Format,
        partial: bool,
        output: Output,
        events: Output | None,
        bar: Bar,
    ) -> None:
        self.model = model
        self.decoding = decoding
        self.form = form
        self.partial = partial
        self.output = output
        self.events = events
        self.bar = bar
        self.summary = Summary()
        self.failed = 0
        self._results = InOrder(self._write)
        self._traces: dict[int, Trace] = {}
        for target in filter(None, (output, events)):
            target.begin()
        if events is not None:
            events.write(json.dumps(HEADER) + "\n")
        bar.begin()

    def translate(self, lines: Sequence[Line]) -> None:
        """Translate these lines. Nothing is asked of the model for those without text."""
        wanted = []
        for line in lines:
            if line.error is not None:
                self._results.put(line.number, Result(status="error", message=line.error))
            elif line.blank:
                self._results.put(line.number, Result(status="complete", exact=True))
            else:
                wanted.append(line)
        if wanted:
            self._decode(wanted)

    def _decode(self, lines: Sequence[Line]) -> None:
        """Decode these lines together. If that fails, do those that are left in halves, until the one at fault is alone."""
        left = dict(enumerate(lines))
        cost = Stats()

        def done(index: int, result: Result) -> None:
            self.summary.add(result)
            self._results.put(left.pop(index).number, result)

        try:
            self.decoding.decode(self.model, [line.text for line in lines], done, self._tracer(lines), cost)
            self.summary.add_batch(cost)
        except (CommandError, BrokenPipeError):
            raise
        except Exception as error:  # of the model's or a score's own code
            rest = list(left.values())
            if len(lines) == 1:
                done(0, Result(status="error", message=reason(error)))
                return
            middle = (len(rest) + 1) // 2
            for half in (rest[:middle], rest[middle:]):
                if half:
                    self._decode(half)

    def _tracer(self, lines: Sequence[Line]) -> Callable[[int], Trace] | None:
        if self.events is None:
            return None

        def trace(index: int) -> Trace:
            number = lines[index].number
            self._traces[number] = Trace(line=number)
            return self._traces[number]

        return trace

    def _write(self, number: int, result: Result) -> None:
        self.output.write(self.form(number, result, self.partial))
        trace = self._traces.pop(number, None)
        if self.events is not None and trace is not None:
            self.events.write("".join(json.dumps(event) + "\n" for event in trace.events))
        trouble = self._trouble(result)
        if trouble is not None:
            self.failed += 1
            say(f"line {number}: {trouble}")
        self.bar.advance()

    def _trouble(self, result: Result) -> str | None:
        """Why a line has no output, if it should have one."""
        if result.status == "error":
            return result.message
        if result.status == "complete" or formats.shown(result, self.partial):
            return None
        limit, option = ("--max-calls", "it") if result.status == "budget" else ("the maximum length", "--max-length")
        return f"nothing finished within {limit}; raise {option}, or see what there is with --partial"
