"""`bestfirst translate` and `bestfirst complete`: text in, text out, line for line."""

from __future__ import annotations

from . import options
from .console import reports, usage
from .lines import Lines
from .settings import ModelChoice, decoding_from


@reports
@options.grouped
def translate(
    file: options.InputFile = None,
    output: options.OutputFile = None,
    partial: options.Partial = False,
    *,
    lines: Lines,
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
    decoding = decoding_from(nbest=lines.nbest, **search.settings(), **scoring.settings())
    return lines.run(file, output, decoding, choice, corpora, partial=partial)


@reports
@options.grouped
def complete(
    file: options.PromptFile = None,
    output: options.OutputFile = None,
    chat: options.Chat = False,
    *,
    lines: Lines,
    search: options.CompletionOptions,
    scoring: options.AllScoreOptions,
    corpora: options.CompletionCorpora,
    choice: ModelChoice,
) -> int:
    """Continue prompts with a language model, one prompt a line.

    What is printed is what the model writes, without the prompt, up to the
    end of sequence or a stop string. The output is that of beam search with
    the same beam. A text that reaches --max-length is printed as it is, and
    with --json it says so: "truncated": true.

    Examples:
      echo 'Once upon a time' | bestfirst complete --model folder/of/llama
      bestfirst complete prompts.txt --model folder/of/llama --stop '\\n' \\
        --max-length 50 --length-penalty 1
      bestfirst complete questions.txt --model folder/of/chat --chat -k 4
      bestfirst complete talks.jsonl --model folder/of/chat --chat \\
        --input-field messages --output-field answer -o answers.jsonl

    A prompt is a line of text, or the field --input-field of a JSON line or
    Parquet row. With --chat it is what a user says, or a JSON list of
    messages ({"role": "user", "content": "..."}), and the model's own chat
    template makes the prompt. Line breaks in an output are printed as
    spaces; --json and .jsonl keep them.

    With --json, each line of output is an object, as 'bestfirst translate
    --help' describes it. Corpora are jobs that go on where they were broken
    off, as there.

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
    return lines.run(file, output, decoding, choice, corpora, chat=chat)
