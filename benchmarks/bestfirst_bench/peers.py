"""Peers: other ways to get beam search's output from the same model, each as a function from token ids to timed outputs."""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, partial, wraps
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn.utils.rnn import pad_sequence

from bestfirst.decoding import decode
from bestfirst.engine import Stats
from bestfirst.integrations.generate import generate

from .costs import fastest_batch

if TYPE_CHECKING:
    from bestfirst.models.transformers import TransformersModel

BATCH = 32  # sentences in a batch, of peers on a CPU
Tokens = tuple[int, ...]


@dataclass
class PeerRun:
    """The outputs of a peer and its costs, None where they cannot be known."""

    seconds: float
    outputs: list[Tokens] = field(repr=False)  # without special tokens
    calls: int | None = None
    rows: int | None = None
    steps: int | None = None
    drafted: int | None = None  # rows of drafted tokens; `accepted`: those of them that the search needed
    accepted: int | None = None
    outside: float | None = None  # share of time spent outside the model
    cache_tokens: float | None = None  # in the KV cache for each sentence in flight
    batch: int | None = None  # sentences, if the fastest batch size was searched for
    peak_mib: float = 0.0  # GPU memory if the model is on a GPU
    text_seconds: float | None = None  # including tokenization and detokenization

    @property
    def steps_a_token(self) -> float | None:
        """Steps divided by the length of the outputs, EOS included; 1 if every source alone takes a step for each token."""
        return None if self.steps is None else self.steps / sum(len(output) + 1 for output in self.outputs)

    @property
    def accepted_share(self) -> float | None:
        """The share of drafted rows that the search needed."""
        return self.accepted / self.drafted if self.accepted is not None and self.drafted else None


@dataclass(eq=False)
class Peer(ABC):
    """A way to decode: `run` decodes the sources with a beam of k, a length penalty and a stopping rule.

    `stop`: the rule's name in this library; None for no early stopping. CTranslate2 always uses its own. `no_repeat`: the n of
    n-grams that may not repeat, for `generate` with and without the drop-in.
    """

    name: ClassVar[str]
    model: TransformersModel
    folder: str
    length_penalty: float = 0.0
    stop: str | None = None
    no_repeat: int = 0
    drafter: Any = None

    @staticmethod
    def missing() -> str | None:
        """Why this peer cannot run here; None if it can."""
        return None

    @abstractmethod
    def run(self, sources: Sequence[Tokens], k: int, max_length: int) -> PeerRun: ...

    def text_seconds(self, texts: Sequence[str], k: int, max_length: int, run: PeerRun) -> float | None:
        """Seconds from texts to texts, given the `run` from their token ids to token ids; None if unknown."""
        return None

    def _clean(self, tokens: Sequence[int]) -> Tokens:
        """The tokens without special ones."""
        special = {*self.model.eos, *self.model.start_tokens, self.model.config_value("pad_token_id")}
        return tuple(token for token in tokens if token not in special)


class BestFirstPeer(Peer):
    """This engine."""

    name = "best-first"
    strategy = "best-first"

    @cached_property
    def _silent(self) -> Any:
        """The model without detokenization, as for the other peers."""
        silent = copy(self.model)
        vars(silent).update(tokenizer=None, text_tokenizer=None)
        return silent

    def run(self, sources: Sequence[Tokens], k: int, max_length: int) -> PeerRun:
        stats = Stats()
        begun = perf_counter()
        results = decode(self._silent, sources, stats=stats, **self._asked(k, max_length))
        return PeerRun(
            perf_counter() - begun,
            [self._clean(r.hypotheses[0].tokens) for r in results],
            stats.calls,
            stats.rows,
            stats.steps,
            stats.drafted,
            stats.accepted,
            None if self.model.on_gpu else stats.outside,  # on a GPU, host and device work at the same time
            stats.cache_tokens / stats.in_flight,
        )

    def _asked(self, k: int, max_length: int) -> dict[str, Any]:
        settings: dict[str, Any] = {"strategy": self.strategy, "beam": k, "max_length": max_length, "accept_truncated": True}
        return {**settings, "length_penalty": self.length_penalty, "stop": self.stop, "draft": self.drafter}

    def text_seconds(self, texts: Sequence[str], k: int, max_length: int, run: PeerRun) -> float | None:
        begun = perf_counter()
        decode(self.model, texts, **self._asked(k, max_length))
        return perf_counter() - begun


class DraftPeer(BestFirstPeer):
    """This engine with a drafter."""

    name = "best-first, drafts"


class BeamPeer(BestFirstPeer):
    """Beam search on this engine. Finished hypotheses leave the beam; without `stop` it is early_stopping="never"."""

    name = "beam, same engine"
    strategy = "beam"


EARLY_STOPPING: dict[str | None, bool | str] = {"hf-true": True, "hf-false": False, "ctranslate2": True}
"""Hugging Face's `early_stopping` for a rule; for CTranslate2's, the nearest one."""


@dataclass(eq=False)
class HuggingFacePeer(Peer):
    """Hugging Face `generate`, in batches of sentences of similar length; on a GPU, with the fastest batch size for each k."""

    name = "Hugging Face generate"

    _best: dict[int, int] = field(default_factory=dict)  # the fastest batch size for each k

    def run(self, sources: Sequence[Tokens], k: int, max_length: int) -> PeerRun:
        run = partial(self._run, sources, k, max_length)
        if not self.model.on_gpu:
            return run(BATCH)
        if len(sources) > BATCH and k not in self._best:
            self._best[k], found = fastest_batch(run, len(sources))
            return found
        return run(self._best.get(k, len(sources)))

    def _run(self, sources: Sequence[Tokens], k: int, max_length: int, size: int) -> PeerRun:
        with torch.inference_mode(), counting(self.model.model.get_decoder()) as count:
            run = self._timed(sources, k, max_length, size)
        run.rows, run.steps, run.batch = count.rows, count.steps, size if self.model.on_gpu else None
        return run

    def _timed(self, sources: Sequence[Tokens], k: int, max_length: int, size: int, **more: Any) -> PeerRun:
        most = {"max_length": max_length + 1} if self.model.encoder_decoder else {"max_new_tokens": max_length}
        settings: dict[str, Any] = {"num_beams": k, "length_penalty": self.length_penalty, **most}
        settings["early_stopping"] = EARLY_STOPPING.get(self.stop, "never")
        if self.no_repeat:
            settings["no_repeat_ngram_size"] = self.no_repeat
        run = timed_generate(self.model, sources, size, **settings, **more)
        run.outputs = [self._clean(tokens) for tokens in run.outputs]
        return run

    def text_seconds(self, texts: Sequence[str], k: int, max_length: int, run: PeerRun) -> float | None:
        """Adds tokenization and detokenization, each of all texts in one call."""
        begun = perf_counter()
        self.model.tokenizer(list(texts))
        self.model.tokenizer.batch_decode(run.outputs, skip_special_tokens=True)
        return run.seconds + perf_counter() - begun


class DropInPeer(HuggingFacePeer):
    """This engine inside `generate`; on a GPU all sentences in one call."""

    name = "best-first in generate"

    def run(self, sources: Sequence[Tokens], k: int, max_length: int) -> PeerRun:
        stats = Stats()
        size = len(sources) if self.model.on_gpu else BATCH
        eight = {"dtype": "int8"} if self.model.eight_bits else {}
        run = self._timed(sources, k, max_length, size, custom_generate=counting_generate(stats), **eight)
        run.calls, run.rows, run.steps = stats.calls, stats.rows, stats.steps
        run.cache_tokens = stats.cache_tokens / stats.in_flight if stats.in_flight else None
        return run


def counting_generate(total: Stats) -> Callable[..., Any]:
    """`bestfirst.generate`, adding the costs of each call to `total`."""

    @wraps(generate)
    def counted(*given: Any, **arguments: Any) -> Any:
        stats = Stats()
        output = generate(*given, **arguments, stats=stats)
        total.add(stats)
        total.search = stats.search
        return output

    return counted


def timed_generate(
    model: TransformersModel, prompts: Sequence[Tokens], size: int, clock: Callable[[], float] = perf_counter, **settings: Any
) -> PeerRun:
    """Run `generate` on batches of prompts of similar length; outputs are as long as their batch. The time to build the batches
    does not count."""
    inner, left = model.model, not model.encoder_decoder
    pad = inner.config.pad_token_id
    if pad is None:
        settings["pad_token_id"] = pad = min(model.eos)
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
    pad_rows = partial(pad_sequence, batch_first=True, padding_side="left" if left else "right")
    batches = []
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        rows = [torch.tensor(prompts[i]) for i in chosen]
        ids, mask = pad_rows(rows, padding_value=pad), pad_rows([torch.ones_like(row) for row in rows])
        batches.append((chosen, ids.to(inner.device), mask.to(inner.device)))
    outputs: dict[int, Tokens] = {}
    held = []
    begun = clock()
    for chosen, ids, mask in batches:
        longest = ids.shape[1]
        found = inner.generate(input_ids=ids, attention_mask=mask, **settings)[:, longest if left else 1 :].tolist()
        held.append(settings["num_beams"] * (longest + len(found[0])))
        outputs |= dict(zip(chosen, map(tuple, found), strict=True))
    seconds = clock() - begun
    return PeerRun(seconds, [outputs[i] for i in range(len(order))], cache_tokens=sum(held) / len(held))


class CTranslate2Peer(Peer):
    """CTranslate2, a C++ engine, from the same folder."""

    name = "CTranslate2 fp32"
    compute_type = "float32"
    _converted: dict[tuple[str, str], Any] = {}  # noqa: RUF012  shared, so that each model is converted once

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

    def run(self, sources: Sequence[Tokens], k: int, max_length: int) -> PeerRun:
        translator, tokenizer = self._translator(), self.model.tokenizer
        pieces = [tokenizer.convert_ids_to_tokens(list(source)) for source in sources]
        begun = perf_counter()
        limits = {"min_decoding_length": 0, "max_decoding_length": max_length, "max_batch_size": BATCH}  # an output may be empty
        found = translator.translate_batch(pieces, beam_size=k, length_penalty=self.length_penalty, **limits)
        seconds = perf_counter() - begun
        return PeerRun(seconds, [self._clean(tokenizer.convert_tokens_to_ids(f.hypotheses[0])) for f in found])


class CTranslate2Int8Peer(CTranslate2Peer):
    """CTranslate2 with weights and matrix products in eight bits: another function, so outputs may differ."""

    name = "CTranslate2 int8"
    compute_type = "int8"


PEERS: tuple[type[Peer], ...] = (BestFirstPeer, BeamPeer, HuggingFacePeer, CTranslate2Peer, CTranslate2Int8Peer)


@contextmanager
def counting(module: Any) -> Iterator[Stats]:
    """Count a module's forward passes and their rows during the block."""
    count = Stats()

    def note(_: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs["input_ids"] if kwargs.get("input_ids") is not None else args[0]
        count.steps += 1
        count.rows += ids.shape[0]

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield count
    finally:
        handle.remove()
