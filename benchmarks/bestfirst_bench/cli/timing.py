"""bestfirst bench speed, generate, profile, startup and growth: measure the time and memory of decoding."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Annotated, Any

import typer

from bestfirst.cli import options as common
from bestfirst.cli.console import reason, say, usage, usage_errors
from bestfirst.cli.options import count, option

from . import bench_options as options
from .bench_options import RUN, BenchModelOptions, ShuffleOptions
from .measured_work import load_models, read_text, saving, show, show_progress, shuffled_lines

RULES = ("ctranslate2", "hf-false", "hf-never")  # of the stops that both searches have (`TOOLKIT_STOPS`), those that are timed
EARLY = {"true": True, "false": False, "never": "never"}

# fmt: off

TextFile = Annotated[Path, typer.Argument(help="Text, a sentence or a prompt a line.", metavar="FILE")]
Peers = Annotated[str | None, option(metavar="NAME,...", panel=RUN, help="Only peers whose name contains one of these.")]
OneByOne = Annotated[bool, option("--one-by-one", panel=RUN, help="Latency: each sentence alone, nothing batched.")]
MaxLength = Annotated[int | None, option("--max-length", "--max-new-tokens", kind=count, metavar="N", panel=RUN,
    help="Most tokens of an output.")]
RandomWeights = Annotated[str | None, option(metavar="CONFIG", panel=options.MODEL,
    help="Time an architecture without its weights, from a config's file or folder. Prompts are then JSON arrays of token ids, "
    "or texts, whose bytes are used as token ids.")]
LengthPenalty = Annotated[Any, option(kind=common.number, metavar="P", panel=RUN, help="Scores are divided by length ** P.")]
Stop = Annotated[str | None, option(kind=common.one_of(*RULES), metavar="RULE", panel=RUN,
    help=f"When to stop, for ours and, as near as it has one, for generate: {', '.join(RULES)}. By default when the answer is "
    "proven. CTranslate2 always stops by its own rule.")]
Early = Annotated[str | None, option(kind=common.one_of(*EARLY), metavar="NAME", panel=RUN,
    help=f"In generate: {', '.join(EARLY)}. Times the drop-in beside generate by itself.")]
Draft = Annotated[str | None, option(metavar="WHO", panel=RUN,
    help="Also time best-first with drafts: source, outputs, model:FOLDER. For --one-by-one.")]
NoRepeat = Annotated[int | None, option(kind=count, metavar="N", panel=RUN, help="In generate: no N tokens twice in an output.")]

# fmt: on


def speed(
    file: TextFile,
    which: ShuffleOptions,
    chosen: BenchModelOptions,
    beam: options.Beams = "5,10,50",
    repeat: options.Repeat = 3,
    max_length: MaxLength = None,
    peers: Peers = None,
    one_by_one: OneByOne = False,
    draft: Draft = None,
    length_penalty: LengthPenalty = 0.0,
    stop: Stop = None,
    early_stopping: Early = None,
    no_repeat_ngram_size: NoRepeat = None,
    random_weights: RandomWeights = None,
    as_json: options.AsJson = False,
) -> None:
    """Time best-first search beside beam search on the same engine, Hugging Face generate and CTranslate2.

    Same sentences, same process, one thread, in turns of which each one's best counts. Outputs are compared too: every one
    that is not best-first's is shown with the gap of the scores. CTranslate2 comes with: pip install 'bestfirst\\[bench]'
    On a GPU generate runs at the batch size that is best for it, which is searched for; CTranslate2 stays out.
    A language model continues its prompts: lines, or JSON lines with "text" or "tokens".

    Example: bestfirst bench speed sentences.de --beam 5,10 --limit 200
    """
    beams, lines = options.numbers(beam), shuffled_lines(file, which)
    loaded, inputs = _load(chosen, random_weights, lines)

    from bestfirst.models.folder import embedded_folder

    from ..peers import PEERS, CTranslate2Peer, DropInPeer, HuggingFacePeer
    from ..speed import speed as measure
    from ..speed import speed_table

    wanted = [peer for peer in PEERS if peers is None or any(part in peer.name for part in ["best-first", *peers.split(",")])]
    if chosen.device not in (None, "cpu") or random_weights is not None or not loaded.encoder_decoder:
        wanted = [peer for peer in wanted if not issubclass(peer, CTranslate2Peer)]
    if early_stopping is not None or no_repeat_ngram_size is not None:
        if stop is not None:
            in_generate = "--early-stopping and --no-repeat-ngram-size say it in generate's words"
            raise usage(f"--stop goes with --length-penalty; {in_generate}")
        stop, wanted = f"hf-{early_stopping or 'false'}", [DropInPeer, HuggingFacePeer]
    for peer in wanted:
        if (missing := peer.missing()) is not None:
            say(f"{peer.name} is left out: {missing}")
    arguments: dict[str, Any] = {"repeat": repeat, "max_length": max_length, "peers": wanted, "one_by_one": one_by_one}
    arguments |= {"length_penalty": length_penalty, "stop": stop, "no_repeat": no_repeat_ngram_size or 0}
    arguments["draft"] = None if draft is None else _drafter(draft)
    rows = list(measure(loaded, chosen.model or embedded_folder(), inputs, beams, progress=show_progress, **arguments))
    if as_json:
        settings = {"length_penalty": length_penalty, "stop": stop, "no_repeat_ngram_size": no_repeat_ngram_size}
        settings["one_by_one"] = one_by_one
        print(json.dumps({**_conditions(loaded, lines, chosen), **settings, "results": [row.json() for row in rows]}))
    else:
        parts = _non_defaults(length_penalty, stop)
        parts += [f"no_repeat_ngram_size {no_repeat_ngram_size}"] * (no_repeat_ngram_size is not None)
        parts += ["one by one"] * one_by_one
        show(speed_table(", ".join([_title(loaded, lines, file, chosen), *parts]), rows, one_by_one))


def _drafter(name: str) -> Any:
    """The drafter of this name, as one object, so that it remembers earlier outputs from call to call."""
    from bestfirst.drafting import named_drafter
    from bestfirst.loading import with_drafter
    from bestfirst.settings import Decoding

    with usage_errors(lambda error: reason(error).replace("draft ", "--draft ", 1)):
        return named_drafter(with_drafter(Decoding(draft=name)).draft)


def generate(
    file: TextFile,
    which: ShuffleOptions,
    chosen: BenchModelOptions,
    num_beams: Annotated[str, option(metavar="K,...", panel=RUN, help="Beam sizes.")] = "5",
    batch_size: Annotated[int | None, option(kind=count, metavar="N", panel=RUN,
        help="Inputs of a call. By default 200; on a GPU generate's fastest size, and all in one call for bestfirst.")] = None,
    length_penalty: LengthPenalty = None,
    early_stopping: Early = None,
    no_repeat_ngram_size: NoRepeat = None,
    max_new_tokens: Annotated[int | None, option(kind=count, metavar="N", panel=RUN,
        help="By default the model's own; decoder-only models: 64.")] = None,
    repeat: options.Repeat = 3,
    random_weights: RandomWeights = None,
    as_json: options.AsJson = False,
) -> None:  # fmt: skip
    """Time Hugging Face generate without and with custom_generate=bestfirst.generate, and compare the sequences.

    Both ways take turns on the same inputs; CPU seconds count, on a GPU seconds
    on the wall. A sequence that differs is a near-tie if its score, by the model
    itself, is within 1e-4 of the other's. Without --length-penalty and
    --early-stopping, three settings: generate's defaults, early_stopping=True,
    and early_stopping="never" with length_penalty 0.

    Example: bestfirst bench generate sentences.de --num-beams 5 --repeat 1
    """
    beams, lines = options.numbers(num_beams, "--num-beams"), shuffled_lines(file, which)
    loaded, inputs = _load(chosen, random_weights, lines)

    from ..speed import GENERATE_SETTINGS, compare_generate, drop_in_table

    early = None if early_stopping is None else EARLY[early_stopping]
    own = {name: value for name, value in (("length_penalty", length_penalty), ("early_stopping", early)) if value is not None}
    settings = {", ".join(f"{name}={value}" for name, value in own.items()): own} if own else GENERATE_SETTINGS
    shared: dict[str, Any] = {"no_repeat_ngram_size": no_repeat_ngram_size, "max_new_tokens": max_new_tokens}
    shared |= {"batch_size": batch_size, "repeat": repeat, "progress": show_progress}
    with usage_errors():
        rows = list(compare_generate(loaded, inputs, beams, settings, **shared))
    if as_json:
        conditions = _conditions(loaded, lines, chosen)
        print("\n".join(json.dumps({**conditions, **row.json()}) for row in rows))
    else:
        show(drop_in_table(_title(loaded, lines, file, chosen), rows))


def profile(
    file: TextFile,
    which: ShuffleOptions,
    model: common.ModelName = None,
    dtype: Annotated[str | None, option(kind=common.one_of("fp32", "int8"), metavar="NAME", panel=options.MODEL,
        help="fp32 or int8.")] = None,
    beam: Annotated[int, option("--beam", "-k", kind=count, metavar="N", panel=RUN, help="Beam size.")] = 10,
    length_penalty: LengthPenalty = 0.0,
    stop: Stop = None,
    as_json: options.AsJson = False,
) -> None:  # fmt: skip
    """Show where best-first search's time goes on this CPU, and how far it is from bare matmuls.

    One thread. The floor of a row is its multiply-adds at the rate that this CPU reaches in one of its matmuls alone.

    Example: bestfirst bench profile sentences.de --beam 10 --length-penalty 1 --stop ctranslate2
    """
    lines = shuffled_lines(file, which)
    chosen = BenchModelOptions(model, dtype=dtype)
    loaded, _ = load_models(chosen)
    settings = {"beam": beam, "length_penalty": length_penalty, "stop": stop}
    try:
        from ..profile import profile as measure
        from ..profile import profile_table

        found = measure(loaded, [loaded.read(line).payload.source for line in lines], settings)
    except (ImportError, ValueError) as error:
        raise usage(str(error)) from error
    if as_json:
        print(json.dumps({**_conditions(loaded, lines, chosen), **settings, **vars(found)}))
    else:
        parts = [f"beam {beam}", *_non_defaults(length_penalty, stop)]
        show(profile_table(", ".join([_title(loaded, lines, file, chosen), *parts]), found))


def _non_defaults(length_penalty: float, stop: str | None) -> list[str]:
    """The parts of a title for settings that are not the defaults."""
    return [f"length penalty {length_penalty:g}"] * (length_penalty != 0) + [f"stop {stop}"] * (stop is not None)


def startup(repeat: options.Repeat = 5, as_json: options.AsJson = False) -> None:
    """Show what a new process takes to translate one line, part by part, beside CTranslate2 doing the same.

    Each line of the first part does all that those before it do, and more. The best of --repeat turns counts.

    Example: bestfirst bench startup
    """
    from ..startup import startup as measure
    from ..startup import startup_table

    found = list(measure(repeat))
    if as_json:
        print(json.dumps({"cpu": platform.processor() or platform.machine(), "starts": [each._asdict() for each in found]}))
    else:
        show(startup_table(found))


def growth(
    source: options.Source,
    chosen: BenchModelOptions,
    beam: options.Beams = "1,2,5,10,20,50,100,200,500",
    beam_lines: Annotated[int, option(kind=count, metavar="N", panel=RUN, help="How many lines for each beam.")] = 100,
    lines: Annotated[
        str, option(metavar="N,...", panel=RUN, help="How many lines, with the beam of --at.")
    ] = "100,200,500,1000,2000",
    at: Annotated[int, option(kind=count, metavar="N", panel=RUN, help="The beam while lines grow.")] = 10,
    rows: options.Rows = None,
    form: options.Format = "text",
) -> None:
    """Measure calls, steps, time and memory as the beam grows, and as the text grows.

    All lines of a measurement are decoded together, as bestfirst translate
    does. Measurements are saved as they are done, by default in
    growth-MODEL.jsonl, and not repeated; bench plot draws them.

    Example:
      bestfirst bench growth test.de --rows growth.jsonl
      bestfirst bench plot growth.jsonl --plot growth
    """
    beams, sizes = options.numbers(beam), options.numbers(lines, "--lines")
    text = read_text(source)
    if (most := max(*sizes, beam_lines)) > len(text.pairs):
        raise usage(f"{str(source)!r} has {len(text.pairs)} lines of text, {most} were asked for; see --lines")
    loaded, _ = load_models(chosen)

    from ..growth import Measurement, growth_points, growth_table, measure_growth
    from ..row import identity

    with saving(Measurement, rows, "growth", identity(loaded)) as store:
        measure_growth(loaded, text, growth_points(beams, beam_lines, sizes, at), store, say)
    show(growth_table(f"Growth: {identity(loaded)}, {text.name}", list(store.records.values())), form)


def _load(chosen: BenchModelOptions, random_weights: str | None, lines: list[str]) -> tuple[Any, list[Any]]:
    """The model, with its own or with random weights, and its inputs."""
    if random_weights is None:
        loaded: Any = load_models(chosen)[0]
    elif chosen.model is not None:
        raise usage("--model and --random-weights are two models; give one")
    from ..random_weights import prompts, random_model

    try:
        if random_weights is not None:
            loaded = random_model(random_weights, chosen.device, chosen.dtype)
        return loaded, prompts(lines, loaded)
    except (ValueError, OSError, KeyError) as error:
        raise usage(f"cannot time {random_weights or loaded.name!r}: {error}") from error


def _conditions(model: Any, lines: list[str], chosen: BenchModelOptions) -> dict[str, Any]:
    """What measured times depend on, for the JSON output."""
    import torch

    from ..row import device_name

    return {
        "model": model.name,
        "lines": len(lines),
        "threads": chosen.threads,
        "device": device_name(model),
        "dtype": model.dtype_name,
        "torch": torch.__version__,
        "cpu": platform.processor(),
    }


def _title(model: Any, lines: list[str], file: Path, chosen: BenchModelOptions) -> str:
    return f"{model.name}, {len(lines)} lines of {file.name}, {chosen.threads} thread{'s' * (chosen.threads > 1)}"
