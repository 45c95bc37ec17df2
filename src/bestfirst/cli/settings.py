"""What a command line asks for: how to decode and with which model, checked before anything slow is loaded."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..models.folder import check_folder, fingerprint, has_tokenizer
from ..scoring import named_score
from ..search import Context
from ..strategies import by_method, named_strategy, stopping
from . import options
from .failure import reason, say, usage

if TYPE_CHECKING:
    from ..engine import Stats
    from ..models.transformers import TransformersModel
    from ..search import Result, Trace


@dataclass(frozen=True)
class Decoding:
    """The keyword arguments of `bestfirst.decode`; None stands for its default."""

    strategy: str = "best-first"
    beam: int = 5
    finished: str = "leave"
    nbest: int = 1
    max_length: int | None = None
    max_calls: int | None = None
    row_budget: int | None = None
    queue_capacity: int | None = None
    prefix: str | None = None
    score: str = "logprob"
    score_options: Mapping[str, Any] = field(default_factory=dict)
    method: str = "exact"
    stop: str | None = None
    stop_options: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> Decoding:
        """Find contradictions now, by beginning a search on nothing: the library's own checks, without a model."""
        try:
            score = named_score(self.score, **self.score_options)
            plan = named_strategy(self.strategy, beam=self.beam, finished=self.finished)  # type: ignore[arg-type]
            if self.stop is not None:
                plan = stopping(plan, self.stop, **self.stop_options)
            elif self.stop_options:
                raise ValueError("--patience goes with --stop patience")
            plan = by_method(plan, self.method, score)
            score.check(plan)
            score.search(plan, eos=(), context=Context(n_max=1), n=self.nbest)
        except ValueError as error:
            raise usage(reason(error).replace("language_model", "--lm")) from error
        return self

    def signature(self, model: TransformersModel) -> str:
        """What makes a result what it is, in one line."""
        options = ",".join(f"{name}={getattr(value, 'name', value)}" for name, value in self.score_options.items())
        score = f"{self.score}({options})" if options else self.score
        search = f"{self.strategy}|k:{self.beam}|score:{score}|finished:{self.finished}"
        dtype = str(model.model.dtype).removeprefix("torch.")
        return f"bestfirst|{search}|model:{model.name}|dtype:{dtype}|v:{__version__}"

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments that are given to `bestfirst.decode`."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def identity(self) -> dict[str, Any]:
        """What the results depend on."""
        named = {**self.arguments(), "score_options": {**self.score_options}, "stop_options": {**self.stop_options}}
        named.pop("row_budget", None)
        if "language_model" in named["score_options"]:
            named["score_options"]["language_model"] = fingerprint(named["score_options"]["language_model"])
        return named

    def decode(
        self,
        model: TransformersModel,
        texts: Sequence[str],
        progress: Callable[[int, Result], None] | None = None,
        trace: bool | Callable[[int], Trace | None] | None = None,
        stats: Stats | None = None,
    ) -> list[Result]:
        """Decode these texts."""
        from .. import decode

        return decode(model, texts, progress=progress, trace=trace, stats=stats, **self.arguments())


def given(**options: Any) -> dict[str, Any]:
    """The options that are on the command line."""
    return {name: value for name, value in options.items() if value not in (None, False)}


@dataclass(frozen=True)
class Scoring:
    """What a hypothesis is worth: a group of options."""

    score: options.ScoreName = "logprob"
    temperature: options.Temperature = None
    alpha: options.Alpha = None
    beta: options.Beta = None
    ratio: options.Ratio = None
    lm: options.LanguageModel = None
    weight: options.Weight = None
    epsilon: options.Epsilon = None

    def parameters(self) -> dict[str, Any]:
        """Those that are given, by the names that scores know them by."""
        named = {"language_model" if name == "lm" else name: value for name, value in vars(self).items() if name != "score"}
        return given(**named)


@dataclass(frozen=True)
class ModelChoice:
    """Which models, and on what they run: a group of options."""

    model: options.ModelName = None
    device: options.Device = None
    dtype: options.Dtype = None
    threads: options.Threads = None
    source_lang: options.SourceLang = None
    target_lang: options.TargetLang = None

    def check(self, decoding: Decoding) -> ModelChoice:
        """Look for the folders, before all that is needed to read them is loaded."""
        try:
            for name in filter(None, (self.model, decoding.score_options.get("language_model"))):
                check_folder(name)
        except ValueError as error:
            raise usage(reason(error)) from error
        if self.model is not None and not has_tokenizer(self.model):
            raise usage(f"the model folder {self.model!r} has no tokenizer, so it takes no text; add its tokenizer's files")
        return self

    def identity(self) -> dict[str, Any]:
        """What the results depend on."""
        languages = given(source_lang=self.source_lang, target_lang=self.target_lang)
        return {"sha256": fingerprint(self.model), "dtype": self.dtype or "fp32", **languages}

    def load(self, decoding: Decoding) -> tuple[TransformersModel, Decoding]:
        """The model, and the same settings with the language model they name in place of its name."""
        _silence()
        import torch

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        model = self._load(self.model, source_lang=self.source_lang, target_lang=self.target_lang)
        name = decoding.score_options.get("language_model")
        if name is not None:
            language_model = self._load(name)
            _check_vocabularies(model, language_model)
            decoding = replace(decoding, score_options={**decoding.score_options, "language_model": language_model})
        try:
            decoding.decode(model, [])  # whether they go together
        except ValueError as error:
            raise usage(reason(error)) from error
        return model, decoding

    def _load(self, name: str | None, **languages: str | None) -> TransformersModel:
        from ..models.transformers import load

        try:
            return load(name, device=self.device, dtype=self.dtype, **languages)
        except ValueError as error:
            raise usage(reason(error)) from error
        except Exception as error:  # whatever else is wrong with a stranger's model folder
            raise usage(f"cannot load a model from {name!r}: {reason(error)}") from error


def _check_vocabularies(model: TransformersModel, language_model: TransformersModel) -> None:
    ours, its = (len(m.model.get_output_embeddings().weight) for m in (model, language_model))
    if ours != its:
        names = f"the language model {language_model.name!r} has {its} tokens, the model {model.name!r} {ours}"
        raise usage(f"{names}: their vocabularies must be the same")


def _silence() -> None:
    """Of the libraries below, errors only; of this one, every warning in one line."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.simplefilter("ignore")
    warnings.filterwarnings("default", module="bestfirst")
    warnings.showwarning = lambda message, *_: say(f"warning: {message}")
