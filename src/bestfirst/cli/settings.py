"""Groups of options and what they stand for: the library's settings, and the models, checked before anything slow is loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..models.folder import check_folder, fingerprint, has_tokenizer
from ..settings import Decoding
from . import options
from .console import silence_libraries
from .failure import reason, usage

if TYPE_CHECKING:
    from ..models.transformers import TransformersModel

WORDS = ("finished", "method", "score", "stop", "strategy")  # names that are words too: meant only where a value is given
NAMES = (
    *("alpha", "beta", "epsilon", "length_penalty", "max_calls", "max_length", "nbest", "queue_capacity", "ratio"),
    *("row_budget", "temperature", "weight", "whole_sequence"),
)
FLAGS = {name: "--" + name.replace("_", "-") for name in (*WORDS, *NAMES)} | {"language_model": "--lm"}


def phrased(error: Exception) -> str:
    """What the library says of its settings, as it concerns the command line: `max_length must` becomes `--max-length must`."""
    text = reason(error).replace("beam (", "--beam (")
    text = re.sub(rf"\b({'|'.join(FLAGS)})='?([\w-]+)'?", lambda match: f"{FLAGS[match[1]]} {match[2]}", text)
    return re.sub(
        rf"(?<![\w-])({'|'.join(name for name in FLAGS if name not in WORDS)})(?![\w-])", lambda match: FLAGS[match[1]], text
    )


def decoding_from(**settings: Any) -> Decoding:
    """The library's settings. What it finds wrong with them ends the command."""
    try:
        return Decoding(**settings)
    except ValueError as error:
        raise usage(phrased(error)) from error


def given(**named: Any) -> dict[str, Any]:
    """The options that are on the command line; 0 is an answer."""
    return {name: value for name, value in named.items() if value is not None and value is not False}


# -- groups of options: `bestfirst.cli.groups` ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Search:
    """How to search: what every command can be asked."""

    beam: options.Beam = 5
    finished: options.FinishedRule = "leave"
    max_length: options.MaxLength = None

    def settings(self) -> dict[str, Any]:
        """As `Decoding` has them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class AnySearch(Search):
    """How to search, with whatever strategy."""

    strategy: options.StrategyName = "best-first"
    prefix: options.Prefix = None
    max_calls: options.MaxCalls = None
    row_budget: options.RowBudget = None
    queue_capacity: options.QueueCapacity = None
    stop: options.Stop = None
    patience: options.Patience = None

    def settings(self) -> dict[str, Any]:
        named = super().settings()
        factor = named.pop("patience")
        if factor is not None and self.stop is None:
            raise usage("--patience goes with --stop patience")
        return {**named, "stop_options": given(factor=factor)}


@dataclass(frozen=True)
class Scoring:
    """What a hypothesis is worth."""

    score: options.ScoreName = "logprob"
    length_penalty: options.LengthPenalty = None
    temperature: options.Temperature = None
    alpha: options.Alpha = None
    beta: options.Beta = None
    ratio: options.Ratio = None
    lm: options.LanguageModel = None
    weight: options.Weight = None
    epsilon: options.Epsilon = None

    def settings(self) -> dict[str, Any]:
        """As `Decoding` has them: all but three are parameters of the score, by the names that it knows them by."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        own: dict[str, Any] = {name: named.pop(name) for name in ("score", "length_penalty", "method") if name in named}
        return {**own, "score_options": given(language_model=named.pop("lm"), **named)}


@dataclass(frozen=True)
class AnyScoring(Scoring):
    """What a hypothesis is worth, and how to search where no beam search's answer is promised."""

    method: options.Method = "exact"
    whole_sequence: options.WholeSequence = False


@dataclass(frozen=True)
class ModelChoice:
    """Which models, and on what they run."""

    model: options.ModelName = None
    device: options.Device = None
    dtype: options.Dtype = None
    threads: options.Threads = None
    source_lang: options.SourceLang = None
    target_lang: options.TargetLang = None
    trust_remote_code: options.TrustRemoteCode = False

    def check(self, decoding: Decoding) -> ModelChoice:
        """Look for the folders, before all that is needed to read them is loaded."""
        if self.device is not None and self.device.partition(":")[0] == "meta":
            raise usage(f"cannot use device {self.device!r}: it computes nothing; choose cpu, cuda or mps")
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
        silence_libraries()
        import torch

        from ..decoding import decode

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        model = self._load(self.model, source_lang=self.source_lang, target_lang=self.target_lang)
        name = decoding.score_options.get("language_model")
        if name is not None:
            language_model = self._load(name)
            _check_vocabularies(model, language_model)
            decoding = decoding.using(score_options={**decoding.score_options, "language_model": language_model})
        try:
            if isinstance(decoding.prefix, str):
                model.target(decoding.prefix)  # raises for what it cannot write
            decode(model, [], decoding)  # whether they go together
        except ValueError as error:
            raise usage(reason(error)) from error
        return model, decoding

    def _load(self, name: str | None, **languages: str | None) -> TransformersModel:
        from ..models.transformers import load

        try:
            trusted = self.trust_remote_code
            return load(name, device=self.device, dtype=self.dtype, trust_remote_code=trusted, **languages)
        except ValueError as error:
            raise usage(reason(error).replace("trust_remote_code=True", "--trust-remote-code")) from error
        except Exception as error:  # whatever else is wrong with a stranger's model folder
            raise usage(f"cannot load a model from {name!r}: {reason(error)}") from error


def _check_vocabularies(model: TransformersModel, language_model: TransformersModel) -> None:
    ours, its = (len(m.model.get_output_embeddings().weight) for m in (model, language_model))
    if ours != its:
        names = f"the language model {language_model.name!r} has {its} tokens, the model {model.name!r} {ours}"
        raise usage(f"{names}: their vocabularies must be the same")


# -- settings written down -----------------------------------------------------------------------------------------------


def identity(decoding: Decoding) -> dict[str, Any]:
    """What the results depend on; of a language model, what is in its folder."""
    named = decoding.identity()
    if (name := decoding.score_options.get("language_model")) is not None:
        named["score_options"] = {**named["score_options"], "language_model": fingerprint(name)}
    return named


def signature(decoding: Decoding, model: TransformersModel) -> str:
    """What makes a result what it is, in one line."""
    dtype = str(model.model.dtype).removeprefix("torch.")
    return f"bestfirst|{decoding.signature}|model:{model.name}|dtype:{dtype}|v:{__version__}"
