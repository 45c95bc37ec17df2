"""The runner: every setting on every line of a text, saving each row as it is done and repeating none that is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from time import perf_counter
from typing import TYPE_CHECKING

from .. import __version__
from ..decoding import decode
from ..search import Result
from .certificate import FullBeams
from .corpus import Corpus, Pair
from .row import Key, Row
from .setting import Setting
from .store import Store

if TYPE_CHECKING:
    from ..models.transformers import TransformersModel

Progress = Callable[[Setting, int], None]
"""Told of each setting as it begins, with 0, and of rows as they are done, with their number."""


@dataclass(frozen=True)
class Failure:
    """A line that could not be decoded; it has no row."""

    line: int
    message: str


class Runner:
    """Decodes a text with one model, and a language model where a score asks for one."""

    def __init__(self, model: TransformersModel, language_model: TransformersModel | None = None) -> None:
        self.model = model
        self.language_model = language_model
        self.name = identity(model)
        self._lm_name = None if language_model is None else identity(language_model)
        self._dtype = str(model.model.dtype).removeprefix("torch.")
        self._device = device_name(model)

    def signature(self, setting: Setting, corpus: Corpus) -> str:
        """Everything that a row depends on, but for its line."""
        models = f"model:{self.name}"
        if setting.score == "mutual-information":
            models += f"|lm:{self._lm_name}"
        return f"bestfirst|{setting.label}|text:{corpus.name}|{models}|dtype:{self._dtype}|v:{__version__}"

    def missing(self, settings: Iterable[Setting], corpus: Corpus, store: Store[Row]) -> int:
        """How many rows there are to be made."""
        return sum(len(self._left(setting, corpus, store)) for setting in settings)

    def run(self, settings: Sequence[Setting], corpus: Corpus, store: Store[Row], progress: Progress) -> list[Failure]:
        """Make the rows that are missing. Whatever raises, those that were done are saved."""
        failures: dict[int, Failure] = {}
        for setting in settings:
            progress(setting, 0)
            pairs = self._left(setting, corpus, store)
            for group in [[pair] for pair in pairs] if setting.alone else [pairs]:
                if group:
                    self._decode(setting, corpus, group, store, progress, failures)
        return list(failures.values())

    def _left(self, setting: Setting, corpus: Corpus, store: Store[Row]) -> list[Pair]:
        signature = self.signature(setting, corpus)
        return [pair for pair in corpus.pairs if Key(signature, pair.line) not in store]

    def _decode(
        self,
        setting: Setting,
        corpus: Corpus,
        pairs: Sequence[Pair],
        store: Store[Row],
        progress: Progress,
        failures: dict[int, Failure],
    ) -> None:
        signature = self.signature(setting, corpus)
        beams: dict[int, FullBeams] = {}
        before = perf_counter()

        def trace(index: int) -> FullBeams:
            beams[index] = FullBeams()
            return beams[index]

        def done(index: int, result: Result) -> None:
            nonlocal before
            now = perf_counter()
            pair, followed = pairs[index], beams.pop(index, None)
            result.trace = None  # beams of all lines would be held otherwise
            progress(setting, 1)
            if result.status == "error":
                failures[pair.line] = Failure(pair.line, result.message or "")
                return
            best = result.hypotheses[0] if result.hypotheses else None
            store.add(
                Row(
                    signature=signature,
                    model=self.name,
                    text=corpus.name,
                    setting=setting,
                    line=pair.line,
                    source=pair.source,
                    reference=pair.reference,
                    source_length=self.model.source_length(pair.source),
                    output=None if best is None else best.text,
                    length=0 if best is None else len(best.tokens),
                    score=None if best is None else best.score,
                    calls=result.calls,
                    lm_calls=result.lm_calls,
                    rows=result.rows,
                    steps=result.steps,
                    exact=result.exact,
                    seconds=round(now - before, 6),
                    device=self._device,
                    date=date.today().isoformat(),
                    least=None if followed is None else followed.least(),
                )
            )
            before = perf_counter()

        asked = setting.arguments(self.language_model)
        if _can_be_certified(setting):
            asked["trace"] = trace
        decode(self.model, [pair.source for pair in pairs], progress=done, **asked)


def _can_be_certified(setting: Setting) -> bool:
    """Whether all of beam search's beams can be seen, and hypotheses are ordered by their score; not where time is taken."""
    return (setting.search, setting.finished, setting.score, setting.alone) == ("beam", "keep", "logprob", False)


def identity(model: TransformersModel) -> str:
    """The model's name and a digest of its weights: of every parameter's shape and of values spread over it."""
    digest = sha256()
    samples = []
    for parameter in model.model.parameters():
        values = parameter.detach().flatten()
        values = values[:: max(1, len(values) // 256)][:256].double().cpu()
        samples.append((tuple(parameter.shape), values.numpy().tobytes()))
    for shape, sample in sorted(samples):
        digest.update(f"{shape}".encode() + sample)
    return f"{model.name}@{digest.hexdigest()[:8]}"


def device_name(model: TransformersModel) -> str:
    """What the model runs on."""
    import torch

    device = model.model.device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device.type)
