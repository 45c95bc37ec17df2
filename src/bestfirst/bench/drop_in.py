"""Drop-in: `generate` without and with `custom_generate=bestfirst.generate`: seconds, and whether the sequences are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..engine import Stats
from ..integrations.generate import generate
from .costs import clock, fastest_batch
from .peers import Tokens, generate_batches
from .speed import Agreement
from .tables import Table

if TYPE_CHECKING:
    from ..models.transformers import TransformersModel

BATCH = 200  # inputs of a call on a CPU
NEW_TOKENS = 64  # of a decoder-only model, which has no limit of its own

GENERATE_SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "early_stopping=True": {"early_stopping": True},
    "never, penalty 0": {"early_stopping": "never", "length_penalty": 0.0},
}


@dataclass
class GenerateRun:
    """One way to run `generate` on all inputs."""

    seconds: float
    outputs: list[Tokens]
    stats: Stats


@dataclass
class DropInRow:
    """One setting: the seconds of each way, and what our search cost. `engine` tells which path ran."""

    setting: str
    num_beams: int
    batch: int  # inputs of a call of `generate` by itself
    clock: str
    without: float
    seconds: float
    stats: Stats
    agreement: Agreement

    @property
    def ratio(self) -> float:
        return self.without / self.seconds

    def json(self) -> dict[str, Any]:
        plain = {name: value for name, value in vars(self).items() if name not in ("stats", "agreement")}
        costs = {name: getattr(self.stats, name) for name in ("engine", "search", "calls", "rows", "steps")}
        return {**plain, "ratio": self.ratio, **costs, **self.agreement.json()}


def compare_generate(
    model: TransformersModel,
    texts: Sequence[str],
    num_beams: Sequence[int],
    settings: Mapping[str, Mapping[str, Any]] = GENERATE_SETTINGS,
    *,
    batch_size: int | None = None,
    repeat: int = 3,
    progress: Callable[[str], None] = lambda _: None,
    **shared: Any,
) -> Iterator[DropInRow]:
    """Both ways in turns on the same inputs, the best time of each. Yields a row for each beam size and setting.

    On a CPU both get batches of `batch_size`, and CPU seconds count. On a GPU, where seconds on the wall count, `generate` gets
    batches of the size that is best for it, unless one is given, and ours all inputs in one call. `shared` goes to `generate`.
    """
    prompts = [model.read(text).payload for text in texts]
    inputs = [prompt.source if model.encoder_decoder else prompt.tokens for prompt in prompts]
    if model.encoder_decoder:  # whatever follows the start token is generated, a language's code as well
        prompts = [replace(prompt, tokens=prompt.tokens[:1]) for prompt in prompts]
    elif shared.get("max_new_tokens") is None:
        shared["max_new_tokens"] = NEW_TOKENS
    shared = {name: value for name, value in shared.items() if value is not None}
    size = batch_size or BATCH
    run = partial(_run, model, inputs)
    run(True, size, num_beams=num_beams[0], **shared)  # a model's first call tries decoders and measures a row budget
    for k in num_beams:
        for name, own in settings.items():
            asked = {"num_beams": k, **shared, **own}
            turns: list[tuple[GenerateRun, GenerateRun]] = []
            for turn in range(repeat):
                progress(f"num_beams {k}, {name}, turn {turn + 1} of {repeat}")
                if model.on_gpu and batch_size is None and not turn:
                    size, theirs = fastest_batch(lambda size, asked=asked: run(False, size, **asked), len(inputs))  # type: ignore[misc]
                else:
                    theirs = run(False, size, **asked)
                turns.append((theirs, run(True, len(inputs) if model.on_gpu else size, **asked)))
            theirs, ours = turns[-1]
            penalty = asked.get("length_penalty", model.setting("length_penalty"))
            yield DropInRow(
                name,
                k,
                min(size, len(inputs)),
                "wall" if model.on_gpu else "CPU",
                min(theirs.seconds for theirs, _ in turns),
                min(ours.seconds for _, ours in turns),
                ours.stats,
                Agreement.of(model, prompts, ours.outputs, theirs.outputs, 1.0 if penalty is None else penalty),
            )


def _run(model: TransformersModel, inputs: Sequence[Tokens], ours: bool, size: int, **asked: Any) -> GenerateRun:
    outputs: dict[int, Tokens] = {}
    total, stats = Stats(), Stats()
    own = {"custom_generate": generate, "stats": stats} if ours else {}
    begun = clock(model.on_gpu)
    for chosen, found in generate_batches(model, inputs, size, **asked, **own):
        outputs |= {i: _ended(model, tokens) for i, tokens in zip(chosen, found, strict=True)}
        total.add(stats)
    total.search = stats.search
    return GenerateRun(clock(model.on_gpu) - begun, [outputs[i] for i in range(len(inputs))], total)


def _ended(model: TransformersModel, tokens: Sequence[int]) -> Tokens:
    """An output through its EOS; one that was cut off, without padding."""
    ends = [i for i, token in enumerate(tokens) if token in model.eos]
    if ends:
        return tuple(tokens[: ends[0] + 1])
    pad = model.setting("pad_token_id")
    return tuple(tokens[: max((i for i, token in enumerate(tokens, 1) if token != pad), default=0)])


def drop_in_table(title: str, rows: Sequence[DropInRow]) -> Table:
    """`generate` without and with the drop-in."""
    columns: dict[str, Callable[[DropInRow], str]] = {
        "k": lambda r: str(r.num_beams),
        "setting": lambda r: r.setting,
        "batch": lambda r: str(r.batch),
        "generate": lambda r: f"{r.without:.2f} s",
        "bestfirst": lambda r: f"{r.seconds:.2f} s",
        "ratio": lambda r: f"{r.ratio:.2f}",
        "engine": lambda r: r.stats.engine,
        "search": lambda r: r.stats.search,
        "calls": lambda r: f"{r.stats.calls:,}",
        "rows": lambda r: f"{r.stats.rows:,}",
        "steps": lambda r: f"{r.stats.steps:,}",
        "same sequences": lambda r: str(r.agreement),
    }
    note = f"{rows[0].clock} seconds, the best of each way's turns. batch: inputs of a call of generate without the drop-in."
    return Table.of(title, rows, columns, {"setting", "engine", "search", "same sequences"}, lambda r: r.num_beams, [note])
