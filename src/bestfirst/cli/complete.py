"""`bestfirst complete`: prompts in, what a language model writes after them out."""

from __future__ import annotations

from . import options
from .console import reports, usage
from .lines import Lines
from .settings import ModelChoice, decoding_from


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
