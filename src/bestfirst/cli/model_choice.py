"""ModelChoice: the options that choose a model, which are checked before anything slow is loaded. Also: `Decoding` from options,
with errors in terms of the command line; and the identity of settings and models, by which corpus jobs recognize their output."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from .. import constraints
from ..drafting import MODEL
from ..models.folder import check_folder, fingerprint, has_tokenizer
from ..models.text_model import TextModel
from ..search import Result
from ..settings import DEFAULT, SPEED_SETTINGS, Decoding
from . import options
from .console import reason, silence_libraries, usage, usage_errors
from .options import DTYPES, LanguageModelName, ModelName, drop_unset, flag, one_of, thread_count

ORDINARY_WORDS = ("beam", "finished", "method", "patience", "prefix", "score", "stop", "strategy")
"""Settings whose names are ordinary words too: taken for a setting only with a value, or after "go with" or "leave"."""
FLAGS = {
    **{each.name: "--" + each.name.replace("_", "-") for group in options.SETTINGS for each in fields(group)},
    "nbest": "--nbest",
    "language_model": "--lm",
    "stop_strings": "--stop",
}
TRUST = "Run Python files that come with the model. Read them first: they can do whatever you can."
REPHRASED = {"the patience factor": "--patience", "finished='shrink'": "stop='shrinking'", "a Drafter or one": "one"}
"""Phrases of the library's messages, and how they read for the command line."""


def with_option_names(error: Exception) -> str:
    """The library's message about its settings with option names: `max_length must` becomes `--max-length must`."""

    def as_flag(match: re.Match[str]) -> str:
        _, name, value = match.groups()
        if value is not None:
            return f"{FLAGS[name]} {value}"
        is_setting = name not in ORDINARY_WORDS or message[: match.start()].endswith(("go with ", "leave "))
        return FLAGS[name] if is_setting else match[0]

    message = reason(error)
    for text, instead in REPHRASED.items():
        message = message.replace(text, instead)
    setting = rf"(?<![\w-])('?)({'|'.join(FLAGS)})\1(?![\w-])(?:(?:=| (?='))'?([\w-]+)'?)?"
    return re.sub(setting, as_flag, message).replace("beam (", "--beam (")


def decoding_from(**settings: Any) -> Decoding:
    """The library's settings; ends the command with the library's message if they are wrong."""
    with usage_errors(with_option_names):
        return Decoding(**settings)


@dataclass(frozen=True)
class ModelChoice:
    """Which model, on which device and in which dtype."""

    panel: ClassVar = options.MODEL
    doing: ClassVar = "translating"
    model: ModelName = None
    device: str | None = flag(None, "NAME", None, "Where to run it: cpu (the default), cuda, cuda:1, mps.")
    dtype: str | None = flag(None, "NAME", one_of(*DTYPES), f"{', '.join(DTYPES)}. By default fp32. int8 is for a CPU.")
    threads: int | None = flag(None, "N", thread_count, "CPU threads. By default as many as there are.")
    source_lang: str | None = flag(None, "CODE", None, "Language of the input, for a multilingual model (deu_Latn).")
    target_lang: str | None = flag(None, "CODE", None, "Language of the output, for a multilingual model (eng_Latn).")
    trust_remote_code: bool = flag(False, None, None, TRUST, "--trust-remote-code")

    def check(self, decoding: Decoding) -> ModelChoice:
        """Check that the folders and files exist, before the libraries to read them are loaded. Returns itself."""
        if self.device is not None and self.device.partition(":")[0] == "meta":
            raise usage(f"cannot use device {self.device!r}: it computes nothing; choose cpu, cuda or mps")
        if isinstance(decoding.allowed, str) and (missing := constraints.missing_file(decoding.allowed)) is not None:
            raise usage(f"there is no file {missing!r} of what is allowed")
        named = [self.model, decoding.score_options.get("language_model")]
        if isinstance(decoding.draft, str) and decoding.draft.startswith(MODEL):
            named.append(decoding.draft.removeprefix(MODEL))
        with usage_errors():
            for name in named:
                if name is not None:
                    check_folder(name)
        if self.model is not None and not has_tokenizer(self.model):
            raise usage(f"the model folder {self.model!r} has no tokenizer, so it takes no text; add its tokenizer's files")
        return self

    def identity(self) -> dict[str, Any]:
        """What the results depend on, for the manifest of a corpus job."""
        languages = drop_unset(source_lang=self.source_lang, target_lang=self.target_lang)
        return {"sha256": fingerprint(self.model), "dtype": self.dtype or "fp32", **languages}

    def load(self, decoding: Decoding) -> tuple[TextModel, Decoding]:
        """The model, and the settings with the language model and the drafter loaded in place of their names."""
        silence_libraries()
        from ..decoding import decode
        from ..engine.threads import use_threads
        from ..loading import with_drafter

        model = self._load(self.model, source_lang=self.source_lang, target_lang=self.target_lang)
        name = decoding.score_options.get("language_model")
        if name is not None:
            language_model = self._load(name)
            ours, its = model.vocabulary, language_model.vocabulary
            if ours != its:
                names = f"the language model {language_model.name!r} has {its} tokens, the model {model.name!r} {ours}"
                raise usage(f"{names}: their vocabularies must be the same")
            decoding = decoding.using(score_options={**decoding.score_options, "language_model": language_model})
        if self.threads is not None:
            use_threads(self.threads)
        with usage_errors():
            decoding = with_drafter(decoding, device=self.device, dtype=self.dtype).read(model)
            if isinstance(decoding.prefix, str):
                model.target(decoding.prefix)  # raises if the tokenizer cannot write the prefix
            decode(model, [], decoding)  # raises if model and settings do not go together
        return model, decoding

    def _load(self, name: str | None, **languages: str | None) -> TextModel:
        from ..loading import load

        try:
            trusted = self.trust_remote_code
            return load(name, device=self.device, dtype=self.dtype, trust_remote_code=trusted, **languages)
        except ValueError as error:
            raise usage(reason(error).replace("trust_remote_code=True", "--trust-remote-code")) from error
        except Exception as error:  # a damaged model folder, or an error of its own code
            raise usage(f"cannot load a model from {name!r}: {reason(error)}") from error


@dataclass(frozen=True)
class LanguageModelChoice(ModelChoice):
    """Which language model: none comes with the package."""

    doing: ClassVar = "completing"
    model: LanguageModelName = None


def decode_one(model: TextModel, text: str, decoding: Decoding, trace: bool = False, **changes: Any) -> Result:
    """Decode one text with some settings changed. An error becomes the result's message."""
    from ..decoding import decode

    try:
        return decode(model, [text], decoding.using(**changes), trace=trace)[0]
    except Exception as error:  # from the model's own code, or because the strategy does not support the score
        return Result(status="error", message=reason(error))


# -- identity of settings ------------------------------------------------------------------------------------------------


def identity(decoding: Decoding) -> dict[str, Any]:
    """The settings that results depend on, defaults included; files and the language model's folder by a checksum."""
    defaults = {field.name: getattr(DEFAULT, field.name) for field in fields(DEFAULT) if field.name not in SPEED_SETTINGS}
    settings = {**defaults, **decoding.identity()}
    if (name := decoding.score_options.get("language_model")) is not None:
        settings["score_options"] = {**settings["score_options"], "language_model": fingerprint(name)}
    if decoding.allowed is not None:
        settings["allowed"] = constraints.fingerprint(str(decoding.allowed))
    return settings
