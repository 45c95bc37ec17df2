"""bench speed: this engine, its own beam search, Hugging Face `generate` and CTranslate2, side by side in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from .memory import gpu_peak_above, peak_above
from .peers import PEERS, BestFirstPeer, Outcome, Peer

if TYPE_CHECKING:
    from ..models.transformers import TransformersModel

NEAR_TIE = 1e-4  # two scores this close are one: batch shape changes logits in the last bits


@dataclass
class Line:
    """One peer at one beam size. `ratio` is its time over best-first's."""

    peer: str
    beam: int
    seconds: float
    ratio: float = 1.0
    calls: int | None = None
    rows: int | None = None
    steps: int | None = None
    outside: float | None = None
    cache_tokens: float | None = None
    peak_mib: float | None = None  # of the GPU's memory where the model runs on one
    busy: float | None = None  # share of time that a GPU was at work, best-first's only
    batch: int | None = None  # sentences, where that was searched for
    same: int = 0  # outputs equal to best-first's
    near_ties: int = 0  # others, with scores that differ by less than 1e-4
    gaps: list[float] = field(default_factory=list)  # best-first's score less the peer's, of the rest; both by the model itself

    def json(self) -> dict[str, Any]:
        return asdict(self)


def speed(
    model: TransformersModel,
    folder: str,
    texts: Sequence[str],
    beams: Sequence[int],
    *,
    repeat: int = 3,
    max_length: int | None = None,
    peers: Sequence[type[Peer]] = PEERS,
    one_by_one: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Line]:
    """Time every peer on the same sources, in turns; each one's best time counts. Yields a line for each peer and beam.

    `one_by_one`: every source alone, as an interactive user waits for it.
    """
    sources = [model.read(text).payload.source for text in texts]
    limit = max_length or min(511, 2 * max(len(source) for source in sources) + 10)
    on_gpu = model.model.device.type == "cuda"
    weights = sum(p.numel() * p.element_size() for p in model.model.parameters())
    running = [peer(model, folder) for peer in peers if peer.missing() is None]
    for peer in running:
        peer.run(sources[:4], 2, limit)  # what is done once is not timed
    for k in beams:
        best: dict[str, tuple[Outcome, float]] = {}
        busy = None
        for turn in range(repeat):
            for peer in running:
                progress(f"beam {k}, turn {turn + 1} of {repeat}: {peer.name}")
                with gpu_peak_above(weights) if on_gpu else peak_above() as memory:
                    outcome = alone(peer, sources, k, limit) if one_by_one else peer.run(sources, k, limit)
                if peer.name not in best or outcome.seconds < best[peer.name][0].seconds:
                    best[peer.name] = (outcome, memory.mib)
        ours = best[BestFirstPeer.name][0]
        if on_gpu and not one_by_one:
            busy = gpu_seconds(partial(running[0].run, sources, k, limit)) / ours.seconds
        for peer in running:
            line = _line(peer.name, k, *best[peer.name], ours)
            line.busy = busy if peer.name == BestFirstPeer.name else None
            for source, theirs, mine in zip(sources, best[peer.name][0].outputs, ours.outputs, strict=True):
                _compare(line, model, source, theirs, mine)
            yield line


def gpu_seconds(work: Callable[[], Any]) -> float:
    """The time that a GPU's kernels and copies take in this work: a profiler's, which slows down all but them."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    return float(sum(e.device_time for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA)) / 1e6


def alone(peer: Peer, sources: Sequence[tuple[int, ...]], k: int, limit: int) -> Outcome:
    """Each source by itself: times, calls, rows and steps are sums, the others means."""
    found = [peer.run([source], k, limit) for source in sources]

    def total(name: str) -> Any:
        numbers = [getattr(outcome, name) for outcome in found]
        return None if None in numbers else sum(numbers)

    def mean(name: str) -> Any:
        return None if total(name) is None else total(name) / len(found)

    return Outcome(
        total("seconds"),
        [output for outcome in found for output in outcome.outputs],
        total("calls"),
        total("rows"),
        total("steps"),
        mean("outside"),
        mean("cache_tokens"),
    )


def _line(name: str, k: int, outcome: Outcome, mib: float, ours: Outcome) -> Line:
    return Line(
        name,
        k,
        outcome.seconds,
        outcome.seconds / ours.seconds,
        outcome.calls,
        outcome.rows,
        outcome.steps,
        outcome.outside,
        outcome.cache_tokens,
        mib,
        batch=outcome.batch,
    )


def _compare(line: Line, model: TransformersModel, source: Sequence[int], theirs: tuple[int, ...], mine: tuple[int, ...]) -> None:
    if theirs == mine:
        line.same += 1
        return
    gap = logprob(model, source, mine) - logprob(model, source, theirs)
    if abs(gap) < NEAR_TIE:
        line.near_ties += 1
    else:
        line.gaps.append(gap)


def logprob(model: TransformersModel, source: Sequence[int], tokens: Sequence[int]) -> float:
    """The log-probability of an output, EOS included, by the model itself from scratch."""
    import torch

    target = [*tokens, min(model.eos)]
    with torch.inference_mode():
        logits = model.model(
            input_ids=torch.tensor([source], device=model.model.device),
            decoder_input_ids=torch.tensor([[*model.start_tokens, *target[:-1]]], device=model.model.device),
        ).logits[0, len(model.start_tokens) - 1 :]
    chosen = torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(target, device=logits.device)[:, None])
    return float(chosen.double().sum())
