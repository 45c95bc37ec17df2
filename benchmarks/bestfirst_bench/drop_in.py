"""Drop-in: `generate` without and with `custom_generate=bestfirst.generate`: seconds, and whether the sequences are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from bestfirst.engine import Stats

from .costs import fastest_batch
from .peers import PeerRun, Tokens, counting_generate, timed_generate
from .speed import NEW_TOKENS, Agreement
from .tables import Table

if TYPE_CHECKING:
    from bestfirst.models.transformers import TransformersModel

BATCH = 200  # inputs of a call on a CPU
GENERATE_SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "early_stopping=True": {"early_stopping": True},
    "never, penalty 0": {"early_stopping": "never", "length_penalty": 0.0},
}


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
    texts: Sequence[Any],
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
    run(size, Stats(), num_beams=num_beams[0], **shared)  # a model's first call tries decoders and measures a row budget
    for k in num_beams:
        for name, own in settings.items():
            asked = partial(run, num_beams=k, **shared, **own)
            turns: list[tuple[PeerRun, PeerRun]] = []
            for turn in range(repeat):
                progress(f"num_beams {k}, {name}, turn {turn + 1} of {repeat}")
                if model.on_gpu and batch_size is None and not turn:
                    size, theirs = fastest_batch(asked, len(inputs))
                else:
                    theirs = asked(size)
                stats = Stats()
                turns.append((theirs, asked(len(inputs) if model.on_gpu else size, stats)))
            penalty = own.get("length_penalty", model.setting("length_penalty"))
            theirs, ours = turns[-1]
            yield DropInRow(
                setting=name,
                num_beams=k,
                batch=min(size, len(inputs)),
                clock="wall" if model.on_gpu else "CPU",
                without=min(theirs.seconds for theirs, _ in turns),
                seconds=min(ours.seconds for _, ours in turns),
                stats=stats,
                agreement=Agreement.of(model, prompts, ours.outputs, theirs.outputs, 1.0 if penalty is None else penalty),
            )


def _run(model: TransformersModel, inputs: Sequence[Tokens], size: int, stats: Stats | None = None, **asked: Any) -> PeerRun:
    """Once through all inputs; with `stats`, our way."""
    eight = {"dtype": "int8"} if model.eight_bits else {}
    own = {} if stats is None else {"custom_generate": counting_generate(stats), **eight}
    run = timed_generate(model, inputs, size, perf_counter if model.on_gpu else process_time, **asked, **own)
    run.outputs = [_ended(model, tokens) for tokens in run.outputs]
    return run


def _ended(model: TransformersModel, tokens: Tokens) -> Tokens:
    """An output through its EOS; one that was cut off, without padding."""
    pad = model.setting("pad_token_id")
    ends = [i for i, token in enumerate(tokens, 1) if token in model.eos] or [len(tokens)]
    while tokens[: ends[0]] and tokens[ends[0] - 1] == pad and pad not in model.eos:
        ends[0] -= 1
    return tokens[: ends[0]]


def drop_in_table(title: str, rows: Sequence[DropInRow]) -> Table:
    """`generate` without and with the drop-in."""
    columns = {
        "k": "num_beams",
        "setting": "setting",
        "batch": "batch",
        "generate": "without:.2f s",
        "bestfirst": "seconds:.2f s",
        "ratio": "ratio:.2f",
        "engine": "stats.engine",
        "search": "stats.search",
        "calls": "stats.calls:,",
        "rows": "stats.rows:,",
        "steps": "stats.steps:,",
        "same sequences": "agreement",
    }
    note = f"{rows[0].clock} seconds, the best of each way's turns. batch: inputs of a call of generate without the drop-in."
    return Table.of(title, rows, columns, {"setting", "engine", "search", "same sequences"}, lambda r: r.num_beams, [note])
