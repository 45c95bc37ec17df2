"""Speed: times this engine, its own beam search, Hugging Face `generate` and CTranslate2 in one run (`speed`), and `generate`
without and with `custom_generate=bestfirst.generate` (`compare_generate`). Both also compare the outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import torch

from bestfirst.engine import Stats

from .costs import fastest_batch, gpu_seconds, peak_memory
from .peers import PEERS, DraftPeer, Peer, PeerRun, Tokens, counting_generate, timed_generate
from .summary import NEAR_TIE
from .tables import Columns, Table

if TYPE_CHECKING:
    from bestfirst.models.reader import Prompt
    from bestfirst.models.transformers import TransformersModel


NEW_TOKENS = 64  # limit for decoder-only models, which have none of their own


@dataclass
class Agreement:
    """The number of equal outputs; for each other, our score minus the other's, both recomputed by the model itself."""

    same: int = 0
    near_ties: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        model: TransformersModel,
        prompts: Sequence[Prompt],
        mine: Sequence[Tokens],
        theirs: Sequence[Tokens],
        penalty: float = 0.0,
    ) -> Agreement:
        """Compare outputs, EOS included, whose scores are log-probabilities divided by length ** penalty."""
        found = cls()
        for prompt, ours, other in zip(prompts, mine, theirs, strict=True):
            if ours == other:
                found.same += 1
                continue
            gap = model_score(model, prompt, ours, penalty) - model_score(model, prompt, other, penalty)
            (found.near_ties if abs(gap) < NEAR_TIE else found.others).append(gap)
        return found

    def __str__(self) -> str:
        parts = [f"{self.same} of {self.same + len(self.near_ties) + len(self.others)}"]
        for gaps, what in ((self.near_ties, "near-ties"), (self.others, "others")):
            parts += [f"{len(gaps)} {what} (gap up to {max(gaps, key=abs):+.3g})"] if gaps else []
        return ", ".join(parts)

    def json(self) -> dict[str, Any]:
        return {"same": self.same, "near_ties": len(self.near_ties), "near_tie_gaps": self.near_ties, "gaps": self.others}


@torch.inference_mode()
def model_score(model: TransformersModel, prompt: Prompt, tokens: Sequence[int], penalty: float = 0.0) -> float:
    """The log-probability of an output, divided by its length ** penalty."""
    ids = torch.tensor([[*prompt.tokens, *tokens]], device=model.model.device)
    logprobs = torch.log_softmax(model.logits(prompt, ids[:, :-1])[0, len(prompt.tokens) - 1 :].float(), -1)
    return float(logprobs.gather(1, ids[0, len(prompt.tokens) :, None]).double().sum()) / len(tokens) ** penalty


@dataclass
class SpeedRow:
    """One peer at one beam size. `ratio`: its time over best-first's. `busy`: the share of time in which the GPU ran kernels."""

    peer: str
    beam: int
    run: PeerRun
    ratio: float
    busy: float | None
    agreement: Agreement

    def json(self) -> dict[str, Any]:
        costs = {name: value for name, value in vars(self.run).items() if name != "outputs"}
        shares = {"steps_a_token": self.run.steps_a_token, "accepted_share": self.run.accepted_share}
        named = {"peer": self.peer, "beam": self.beam, "ratio": self.ratio, "busy": self.busy}
        return {**named, **costs, **shares, **self.agreement.json()}


def speed(
    model: TransformersModel,
    folder: str,
    texts: Sequence[Any],
    beams: Sequence[int],
    *,
    repeat: int = 3,
    max_length: int | None = None,
    peers: Sequence[type[Peer]] = PEERS,
    one_by_one: bool = False,
    length_penalty: float = 0.0,
    stop: str | None = None,
    no_repeat: int = 0,
    draft: Any = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[SpeedRow]:
    """Time every peer on the same sources, in turns, of which the best counts. Yields a row for each peer and beam size.

    The first peer is the baseline. `one_by_one`: decode every source alone, for latency. `draft`: a drafter, timed as an extra
    peer.
    """
    prompts = [model.read(text).payload for text in texts]
    sources = [prompt.source if model.encoder_decoder else prompt.tokens for prompt in prompts]
    limit = max_length or (min(511, 2 * max(len(source) for source in sources) + 10) if model.encoder_decoder else NEW_TOKENS)
    weights = sum(p.numel() * p.element_size() for p in model.model.parameters()) if model.on_gpu else None
    settings = (model, folder, length_penalty, stop, no_repeat)
    running = [peer(*settings) for peer in peers if peer.missing() is None]
    if draft is not None:
        running.insert(1, DraftPeer(*settings, draft))
    for peer in running:
        peer.run(sources[:4], 2, limit)  # warm-up: one-time work is not timed
    for k in beams:
        best: dict[str, PeerRun] = {}
        for turn in range(repeat):
            for peer in running:
                progress(f"beam {k}, turn {turn + 1} of {repeat}: {peer.name}")
                with peak_memory(weights) as memory:
                    run = run_one_by_one(peer, sources, k, limit) if one_by_one else peer.run(sources, k, limit)
                run.peak_mib = memory.mib
                last = best.get(peer.name)
                if not one_by_one and model.tokenizer is not None and all(isinstance(text, str) for text in texts):
                    run.text_seconds = peer.text_seconds(texts, k, limit, run)
                if last is not None and last.text_seconds is not None and run.text_seconds is not None:
                    run.text_seconds = last.text_seconds = min(last.text_seconds, run.text_seconds)
                if last is None or run.seconds < last.seconds:
                    best[peer.name] = run
        ours = best[running[0].name]
        busy = None
        if model.on_gpu and not one_by_one:
            busy = gpu_seconds(partial(running[0].run, sources, k, limit)) / ours.seconds
        ended = {name: [(*output, min(model.eos)) for output in run.outputs] for name, run in best.items()}
        for name, run in best.items():
            agreement = Agreement.of(model, prompts, ended[running[0].name], ended[name], length_penalty)
            yield SpeedRow(name, k, run, run.seconds / ours.seconds, busy if run is ours else None, agreement)


def run_one_by_one(peer: Peer, sources: Sequence[Tokens], k: int, limit: int) -> PeerRun:
    """Run each source by itself: seconds, calls, rows, steps and drafts are sums, the others means."""
    runs = [peer.run([source], k, limit) for source in sources]

    def total(name: str, over: int = 1) -> Any:
        numbers = [getattr(run, name) for run in runs]
        return None if None in numbers else sum(numbers) / over if over > 1 else sum(numbers)

    costs = {name: total(name) for name in ("seconds", "calls", "rows", "steps", "drafted", "accepted")}
    means = {name: total(name, len(runs)) for name in ("outside", "cache_tokens")}
    return PeerRun(outputs=[output for run in runs for output in run.outputs], **costs, **means)


def speed_table(title: str, rows: Sequence[SpeedRow], alone: bool = False) -> Table:
    """A table of all peers. `alone`: with steps over the length of the outputs, for sources decoded one by one."""
    on_gpu = any(row.busy is not None for row in rows)
    digits = 4 if min(row.run.seconds for row in rows) < 0.1 else 2
    columns: Columns = {
        "beam": "beam",
        "peer": lambda r: r.peer if r.run.batch is None else f"{r.peer}, batches of {r.run.batch}",
        "seconds": f"run.seconds:.{digits}f",
        "text to text": f"run.text_seconds:.{digits}f",
        "ratio": "ratio:.2f",
        "calls": "run.calls:,",
        "rows": "run.rows:,",
        "steps": "run.steps:,",
        **({"steps/length": "run.steps_a_token:.2f"} if alone else {}),
        **({"accepted": "run.accepted_share:.0%"} if any(row.run.drafted for row in rows) else {}),
        **({"GPU busy": "busy:.0%"} if on_gpu else {"search": "run.outside:.0%"}),
        "cache": "run.cache_tokens:.0f",
        "peak MiB": "run.peak_mib:.0f",
        "same output": "agreement",
    }
    share = "GPU busy: share of time in its kernels" if on_gpu else "search: share of time outside the model"
    note = f"seconds: from tokens to tokens. ratio: time over best-first's. {share}. cache: tokens held per sentence in flight."
    if any(row.run.drafted for row in rows):
        note += " accepted: of the rows that were guessed, those that the search came to ask for."
    return Table.of(title, rows, columns, {"peer", "same output"}, lambda r: r.beam, [note])


# -- the drop-in ----------------------------------------------------------------------------------------------------------

CALL = 200  # inputs in a call of `generate` on a CPU
GENERATE_SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "early_stopping=True": {"early_stopping": True},
    "never, penalty 0": {"early_stopping": "never", "length_penalty": 0.0},
}


@dataclass
class DropInRow:
    """One setting: the seconds without and with the drop-in, and the drop-in's costs. `stats.engine` tells what ran it."""

    setting: str
    num_beams: int
    batch: int  # inputs in a call of `generate` without the drop-in
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
    """Time `generate` without and with the drop-in, in turns on the same inputs. Yields a row for each beam size and setting.

    On a CPU both get batches of `batch_size`, and CPU seconds count. On a GPU wall-clock seconds count; `generate` gets batches
    of the size that is fastest for it, unless one is given, and the drop-in all inputs in one call, after an untimed call that
    compiles kernels and records CUDA graphs. `shared` goes to `generate`.
    """
    prompts = [model.read(text).payload for text in texts]
    inputs = [prompt.source if model.encoder_decoder else prompt.tokens for prompt in prompts]
    if model.encoder_decoder:  # everything after the start token is generated, also a language code
        prompts = [replace(prompt, tokens=prompt.tokens[:1]) for prompt in prompts]
    elif shared.get("max_new_tokens") is None:
        shared["max_new_tokens"] = NEW_TOKENS
    shared = {name: value for name, value in shared.items() if value is not None}
    size = batch_size or CALL
    run = partial(_run, model, inputs)
    run(size, Stats(), num_beams=num_beams[0], **shared)  # a model's first call chooses a step and measures a row budget
    for k in num_beams:
        for name, own in settings.items():
            call_generate = partial(run, num_beams=k, **shared, **own)
            turns: list[tuple[PeerRun, PeerRun]] = []
            if model.on_gpu:
                call_generate(len(inputs), Stats())
            for turn in range(repeat):
                progress(f"num_beams {k}, {name}, turn {turn + 1} of {repeat}")
                if model.on_gpu and batch_size is None and not turn:
                    size, theirs = fastest_batch(call_generate, len(inputs))
                else:
                    theirs = call_generate(size)
                stats = Stats()
                turns.append((theirs, call_generate(len(inputs) if model.on_gpu else size, stats)))
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


def _run(model: TransformersModel, inputs: Sequence[Tokens], size: int, stats: Stats | None = None, **settings: Any) -> PeerRun:
    """Run all inputs once: with the drop-in if there are `stats`, else without."""
    eight = {"dtype": "int8"} if model.eight_bits else {}
    own = {} if stats is None else {"custom_generate": counting_generate(stats), **eight}
    run = timed_generate(model, inputs, size, perf_counter if model.on_gpu else process_time, **settings, **own)
    run.outputs = [_ended(model, tokens) for tokens in run.outputs]
    return run


def _ended(model: TransformersModel, tokens: Tokens) -> Tokens:
    """An output up to and with its EOS; one without an EOS, without its padding."""
    pad = model.setting("pad_token_id")
    ends = [i for i, token in enumerate(tokens, 1) if token in model.eos] or [len(tokens)]
    while tokens[: ends[0]] and tokens[ends[0] - 1] == pad and pad not in model.eos:
        ends[0] -= 1
    return tokens[: ends[0]]


def drop_in_table(title: str, rows: Sequence[DropInRow]) -> Table:
    """A table of `generate` without and with the drop-in."""
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
