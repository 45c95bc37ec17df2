"""Peers: other ways to get a beam search's output from the same model, each as one function of a text to timed translations."""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from ..decoding import decode
from ..engine import Stats

if TYPE_CHECKING:
    from ..models.transformers import TransformersModel


@dataclass
class Outcome:
    """What a peer made of the text, and what it cost; None where it cannot be known."""

    seconds: float
    outputs: list[tuple[int, ...]]  # tokens without special ones
    calls: int | None = None
    rows: int | None = None
    steps: int | None = None
    outside: float | None = None  # share of time that was not the model's
    cache_tokens: float | None = None  # held for each sentence in flight
    batch: int | None = None  # sentences, where that was searched for


class Peer(ABC):
    """A way to decode. `run` translates the sources with a beam of k, length penalty 0, and no early stopping."""

    name: str

    def __init__(self, model: TransformersModel, folder: str) -> None:
        self.model = model
        self.folder = folder

    @staticmethod
    def missing() -> str | None:
        """Why it cannot run here, if so."""
        return None

    @abstractmethod
    def run(self, sources: Sequence[tuple[int, ...]], k: int, max_length: int) -> Outcome: ...

    def _clean(self, tokens: Sequence[int]) -> tuple[int, ...]:
        special = {*self.model.eos, *self.model.start_tokens, self.model.model.config.pad_token_id}
        return tuple(token for token in tokens if token not in special)


class BestFirstPeer(Peer):
    """This engine."""

    name = "best-first"
    strategy = "best-first"

    def __init__(self, model: TransformersModel, folder: str) -> None:
        super().__init__(model, folder)
        self.silent = copy(model)  # no peer makes text of its tokens
        self.silent.tokenizer = None

    def run(self, sources: Sequence[tuple[int, ...]], k: int, max_length: int) -> Outcome:
        stats = Stats()
        begun = perf_counter()
        results = decode(
            self.silent, sources, strategy=self.strategy, beam=k, max_length=max_length, accept_truncated=True, stats=stats
        )
        return Outcome(
            perf_counter() - begun,
            [self._clean(r.hypotheses[0].tokens) for r in results],
            sum(r.calls for r in results),
            stats.rows,
            stats.steps,
            None if self.model.model.device.type == "cuda" else stats.outside,  # there, host and device work side by side
            stats.cache_tokens / stats.in_flight,
        )


class BeamPeer(BestFirstPeer):
    """Beam search on this engine, with Hugging Face's rules: finished hypotheses leave, early_stopping="never"."""

    name = "beam, same engine"
    strategy = "beam"


class HuggingFacePeer(Peer):
    """Hugging Face `generate`, in batches of sentences of like length."""

    name = "Hugging Face generate"
    batch = 32
    batches = (64, 128, 256, 512, 1024, 2048)  # on a GPU, the best of these, found for each beam size

    def __init__(self, model: TransformersModel, folder: str) -> None:
        super().__init__(model, folder)
        self._best: dict[int, int] = {}

    def run(self, sources: Sequence[tuple[int, ...]], k: int, max_length: int) -> Outcome:
        if self.model.model.device.type != "cuda":
            return self._run(sources, k, max_length, self.batch)
        if len(sources) > self.batches[0] and k not in self._best:
            return self._search(sources, k, max_length)
        return self._run(sources, k, max_length, self._best.get(k, len(sources)))

    def _search(self, sources: Sequence[tuple[int, ...]], k: int, max_length: int) -> Outcome:
        """With the best batch size: twice as large each time, until that takes a fifth longer than the best, or memory ends."""
        found: dict[int, Outcome] = {}
        for batch in self.batches:
            try:
                found[batch] = self._run(sources, k, max_length, batch)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                break
            times = [outcome.seconds for outcome in found.values()]
            if batch >= len(sources) or times[-1] > 1.2 * min(times):
                break
        self._best[k] = min(found, key=lambda batch: found[batch].seconds)
        return found[self._best[k]]

    @torch.inference_mode()
    def _run(self, sources: Sequence[tuple[int, ...]], k: int, max_length: int, size: int) -> Outcome:
        model, pad = self.model.model, self.model.model.config.pad_token_id
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        outputs: dict[int, tuple[int, ...]] = {}
        held = []
        begun = perf_counter()
        with counting(model.get_decoder()) as count:
            for start in range(0, len(order), size):
                chosen = order[start : start + size]
                longest = max(len(sources[i]) for i in chosen)
                ids = torch.tensor([[*sources[i], *[pad] * (longest - len(sources[i]))] for i in chosen], device=model.device)
                lengths = torch.tensor([len(sources[i]) for i in chosen], device=model.device)
                found = model.generate(
                    input_ids=ids,
                    attention_mask=(torch.arange(longest, device=model.device) < lengths[:, None]).long(),
                    num_beams=k,
                    length_penalty=0.0,
                    early_stopping="never",
                    max_length=max_length + 1,
                )
                held.append(k * (longest + found.shape[1] - 1))
                for i, tokens in zip(chosen, found.tolist(), strict=True):
                    outputs[i] = self._clean(tokens)
        seconds = perf_counter() - begun
        ordered = [outputs[i] for i in range(len(sources))]
        searched = size if model.device.type == "cuda" else None
        return Outcome(seconds, ordered, None, count.rows, count.steps, None, sum(held) / len(held), searched)


class CTranslate2Peer(Peer):
    """CTranslate2, a C++ engine, from the same folder."""

    name = "CTranslate2 fp32"
    compute_type = "float32"
    batch = 32
    _converted: dict[tuple[str, str], Any] = {}  # noqa: RUF012  a conversion serves all runs

    @staticmethod
    def missing() -> str | None:
        return None if find_spec("ctranslate2") else "ctranslate2 is not installed; pip install 'bestfirst[bench]'"

    def _translator(self) -> Any:
        import ctranslate2

        key = (self.folder, self.compute_type)
        if key not in self._converted:
            target = Path(tempfile.mkdtemp(prefix="bestfirst-ct2-"))
            try:
                converter = ctranslate2.converters.TransformersConverter(self.folder)
                converter.convert(str(target), force=True)
                self._converted[key] = ctranslate2.Translator(
                    str(target), compute_type=self.compute_type, inter_threads=1, intra_threads=torch.get_num_threads()
                )
            finally:
                shutil.rmtree(target, ignore_errors=True)
        return self._converted[key]

    def run(self, sources: Sequence[tuple[int, ...]], k: int, max_length: int) -> Outcome:
        translator, tokenizer = self._translator(), self.model.tokenizer
        pieces = [tokenizer.convert_ids_to_tokens(list(source)) for source in sources]
        begun = perf_counter()
        found = translator.translate_batch(
            pieces, beam_size=k, length_penalty=0, max_batch_size=self.batch, max_decoding_length=max_length
        )
        seconds = perf_counter() - begun
        return Outcome(seconds, [self._clean(tokenizer.convert_tokens_to_ids(f.hypotheses[0])) for f in found])


class CTranslate2Int8Peer(CTranslate2Peer):
    """CTranslate2 with weights and products in eight bits: not the same function, so outputs may differ."""

    name = "CTranslate2 int8"
    compute_type = "int8"


PEERS: tuple[type[Peer], ...] = (BestFirstPeer, BeamPeer, HuggingFacePeer, CTranslate2Peer, CTranslate2Int8Peer)


@dataclass
class Count:
    """Forward passes, and the rows in them."""

    steps: int = 0
    rows: int = 0


@contextmanager
def counting(module: Any) -> Iterator[Count]:
    """Count a module's calls while the block runs."""
    count = Count()

    def note(_: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs["input_ids"] if kwargs.get("input_ids") is not None else args[0]
        count.steps += 1
        count.rows += ids.shape[0]

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield count
    finally:
        handle.remove()
