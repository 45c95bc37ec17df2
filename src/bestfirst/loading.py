"""load: a model from a folder or by name, run without torch if possible."""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from typing import Any

from .drafting import MODEL
from .models.folder import FilesDiffer, ModelNotFound, NeedsTransformers, check_folder, embedded_folder
from .models.text_model import INT8, TextModel
from .settings import Decoding

INSTALL = "pip install 'bestfirst[transformers]'"
FLOAT32 = ("fp32", "float32", "torch.float32")

_log = logging.getLogger(__name__)


def load(
    path_or_name: str | os.PathLike[str] | None = None,
    *,
    device: Any = None,
    dtype: Any = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    trust_remote_code: bool = False,
) -> TextModel:
    """Load a model; without argument the embedded German-English translator.

    A folder is read directly; any other name is passed to transformers. On a CPU, in float32, folders of Marian, BART, mBART,
    Pegasus, M2M100 and NLLB models run in compiled steps; all else needs torch and transformers, which the extra `transformers`
    installs. `source_lang` and `target_lang` are the language codes of a multilingual model, as its tokenizer spells them
    (`eng_Latn`, `de`, `de_DE`). Python files that come with a model are run only with `trust_remote_code`.
    `dtype`: "fp32" (the default), "fp16", "bf16", or "int8" for products in eight bits, on a CPU, of the models named above.
    """
    name = embedded_folder() if path_or_name is None else os.fspath(path_or_name)
    check_folder(name)
    languages = {"source_lang": source_lang, "target_lang": target_lang}
    has_transformers = find_spec("torch") is not None and find_spec("transformers") is not None
    model: TextModel | None = None
    try:
        model = _load_compiled(name, device, dtype, **languages)
    except ModelNotFound as error:
        if isinstance(error, NeedsTransformers) and not has_transformers:
            raise ModelNotFound(f"cannot load a model from {name!r} without torch and transformers: {error}; {INSTALL}") from None
        if not has_transformers or isinstance(error, FilesDiffer):
            raise ModelNotFound(f"cannot load a model from {name!r}: {error}") from error
        _log.debug("%s is run by transformers: %s", name, error)
    if model is None:
        from .models.transformers import load_transformers

        model = load_transformers(name, device=device, dtype=dtype, trust_remote_code=trust_remote_code, **languages)
    if source_lang is not None:
        model.language(source_lang, "source")  # raises if its tokenizer has no such token, and so would not use it
    return model


def with_drafter(decoding: Decoding, **how: Any) -> Decoding:
    """The same settings, with `draft="model:FOLDER"` replaced by that model, loaded as `load` does."""
    if not isinstance(decoding.draft, str) or not decoding.draft.startswith(MODEL):
        return decoding
    from .engine.smaller_model import SmallerModel

    return decoding.using(draft=SmallerModel(load(decoding.draft.removeprefix(MODEL), **how)))


def _load_compiled(name: str, device: Any, dtype: Any, **languages: str | None) -> TextModel:
    """The model in compiled steps. Raises NeedsTransformers, with the reason, if they cannot run it."""
    if device is not None and str(device) != "cpu":
        raise NeedsTransformers(f"device {str(device)!r} is torch's")
    if dtype is not None and str(dtype) not in (*FLOAT32, INT8):
        raise NeedsTransformers(f"dtype {str(dtype)!r} is torch's")
    if not os.path.isdir(name):
        raise NeedsTransformers("it is not a folder, and transformers finds models by name")
    from .engine.compiled_model import CompiledModel
    from .engine.steps.native.registers import available

    if not available():
        raise NeedsTransformers(
            "there are no compiled kernels for this machine, and numba, which compiles them, is not installed"
        )

    return CompiledModel(name, eight_bits=dtype == INT8, **languages)
