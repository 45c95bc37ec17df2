"""Groups of options and what they stand for: the library's settings, and the models, checked before anything slow is loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from .. import __version__, constraints
from ..drafting import MODEL
from ..models.folder import check_folder, fingerprint, has_tokenizer
from ..models.text_model import TextModel
from ..search import Result
from ..settings import DEFAULT, SPEED_SETTINGS, Decoding
from . import options
from .console import reason, silence_libraries, usage
from .options import DTYPES, ModelName, asked, given, one_of, thread_count

WORDS = ("beam", "finished", "method", "patience", "prefix", "score", "stop", "strategy")
"""Settings whose names are words too: meant where a value is given, or where one is to be left out."""
FLAGS = {
    **{each.name: "--" + each.name.replace("_", "-") for group in options.SETTINGS for each in fields(group)},
    "nbest": "--nbest",
    "language_model": "--lm",
    "stop_strings": "--stop",
}
TRUST = "Run Python files that come with the model. Read them first: they can do whatever you can."
ELSEWHERE = {"the patience factor": "--patience", "finished='shrink'": "stop='shrinking'", "a Drafter or one": "one"}
"""What the library says of things that have another name on a command line, or none."""


def phrased(error: Exception) -> str:
    """What the library says of its settings, as it concerns the command line: `max_length must` becomes `--max-length must`."""

    def flag(match: re.Match[str]) -> str:
        _, name, value = match.groups()
        if value is not None:
            return f"{FLAGS[name]} {value}"
        meant = name not in WORDS or said[: match.start()].endswith(("go with ", "leave "))
        return FLAGS[name] if meant else match[0]

    said = reason(error)
    for text, instead in ELSEWHERE.items():
        said = said.replace(text, instead)
    named = rf"(?<![\w-])('?)({'|'.join(FLAGS)})\1(?![\w-])(?:(?:=| (?='))'?([\w-]+)'?)?"
    return re.sub(named, flag, said).replace("beam (", "--beam (")


def decoding_from(**settings: Any) -> Decoding:
    """The library's settings. What it finds wrong with them ends the command."""
    try:
        return Decoding(**settings)
    except ValueError as error:
        raise usage(phrased(error)) from error


@dataclass(frozen=True)
class ModelChoice:
    """Which models, and on what they run: looked for, and loaded."""

    panel: ClassVar = options.MODEL
    model: ModelName = None
    device: str | None = asked(None, "NAME", None, "Where to run it: cpu (the default), cuda, cuda:1, mps.")
    dtype: str | None = asked(None, "NAME", one_of(*DTYPES), f"{', '.join(DTYPES)}. By default fp32. int8 is for a CPU.")
    threads: int | None = asked(None, "N", thread_count, "CPU threads. By default as many as there are.")
    source_lang: str | None = asked(None, "CODE", None, "Language of the input, for a multilingual model (deu_Latn).")
    target_lang: str | None = asked(None, "CODE", None, "Language of the output, for a multilingual model (eng_Latn).")
    trust_remote_code: bool = asked(False, None, None, TRUST, "--trust-remote-code")

    def check(self, decoding: Decoding) -> ModelChoice:
        """Look for the folders, before all that is needed to read them is loaded."""
        if self.device is not None and self.device.partition(":")[0] == "meta":
            raise usage(f"cannot use device {self.device!r}: it computes nothing; choose cpu, cuda or mps")
        if isinstance(decoding.allowed, str) and (missing := constraints.missing_file(decoding.allowed)) is not None:
            raise usage(f"there is no file {missing!r} of what is allowed")
        try:
            drafts = decoding.draft if isinstance(decoding.draft, str) and decoding.draft.startswith(MODEL) else ""
            named = (self.model, decoding.score_options.get("language_model"), drafts.removeprefix(MODEL))
            for name in filter(None, named):
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

    def load(self, decoding: Decoding) -> tuple[TextModel, Decoding]:
        """The model, and the same settings with the language model they name in place of its name."""
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
        try:
            decoding = with_drafter(decoding, device=self.device, dtype=self.dtype).read(model)
            if isinstance(decoding.prefix, str):
                model.target(decoding.prefix)  # raises for what it cannot write
            decode(model, [], decoding)  # whether they go together
        except ValueError as error:
            raise usage(reason(error)) from error
        return model, decoding

    def _load(self, name: str | None, **languages: str | None) -> TextModel:
        from ..loading import load

        try:
            trusted = self.trust_remote_code
            return load(name, device=self.device, dtype=self.dtype, trust_remote_code=trusted, **languages)
        except ValueError as error:
            raise usage(reason(error).replace("trust_remote_code=True", "--trust-remote-code")) from error
        except Exception as error:  # whatever else is wrong with a stranger's model folder
            raise usage(f"cannot load a model from {name!r}: {reason(error)}") from error


def decode_one(model: TextModel, text: str, decoding: Decoding, trace: bool = False, **changes: Any) -> Result:
    """One text, with some settings changed. Whatever is wrong with it is the result's message."""
    from ..decoding import decode

    try:
        return decode(model, [text], decoding.using(**changes), trace=trace)[0]
    except Exception as error:  # of the model's own code, or a score that this strategy cannot search with
        return Result(status="error", message=reason(error))


# -- settings written down -----------------------------------------------------------------------------------------------


def identity(decoding: Decoding) -> dict[str, Any]:
    """What the results depend on, defaults included; of a language model, what is in its folder."""
    usual = {field.name: getattr(DEFAULT, field.name) for field in fields(DEFAULT) if field.name not in SPEED_SETTINGS}
    fields_of = {**usual, **decoding.identity()}
    if (name := decoding.score_options.get("language_model")) is not None:
        fields_of["score_options"] = {**fields_of["score_options"], "language_model": fingerprint(name)}
    if decoding.allowed is not None:
        fields_of["allowed"] = constraints.fingerprint(str(decoding.allowed))
    return fields_of


def signature(decoding: Decoding, model: TextModel) -> str:
    """What makes a result what it is, in one line."""
    return f"bestfirst|{decoding.signature}|model:{model.name}|dtype:{model.dtype_name}|v:{__version__}"
