"""Damage: what is wrong with a model folder, in one line that names the file or field, where libraries name their own insides."""

from __future__ import annotations

import json
from inspect import Parameter, signature
from pathlib import Path


def damage(name: str, error: Exception) -> str:
    """What made `error`, as far as the folder's files tell; else what it says itself."""
    folder, said = Path(name), str(error).strip()
    if "trust_remote_code" in said:
        return "it needs Python files that come with it; read them, and if you trust them, load it with trust_remote_code=True"
    if folder.is_dir():
        found = _broken_json(folder) or _bad_weights(folder, error) or _missing_vocabulary(folder, error)
        if found is not None:
            return found
    lines = [line.strip() for line in said.splitlines()] or [type(error).__name__]
    if lines[0].endswith(":") and len(lines) > 1:  # "Validation error for field 'd_model':"
        return f"config.json: {lines[1].removeprefix('TypeError: ').partition('. Errors')[0]}"
    return lines[0]


def _broken_json(folder: Path) -> str | None:
    for path in sorted(folder.glob("*.json")):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            return f"{path.name} is no JSON: {str(error).splitlines()[0]}"
        if not isinstance(found, dict) and path.name.endswith("config.json"):
            return f"{path.name} must be a JSON object, and is a {type(found).__name__}"
    return None


def _bad_weights(folder: Path, error: Exception) -> str | None:
    if type(error).__name__ == "SafetensorError":
        names = ", ".join(sorted(path.name for path in folder.glob("*.safetensors")))
        return f"{names} is damaged: {error}"
    if "weights_only" in str(error) or type(error).__name__ == "UnpicklingError":
        names = ", ".join(sorted(path.name for path in folder.glob("*.bin")))
        return f"{names} is damaged, or holds more than weights; have model.safetensors instead"
    return None


def _missing_vocabulary(folder: Path, error: Exception) -> str | None:
    """Tokenizers find out that a file is not there, or empty, by what it does to their insides."""
    import transformers

    if not any(sign in str(error) for sign in ("NoneType", "model_proto", "INTERNAL")):
        return None
    try:
        named = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["tokenizer_class"]
        tokenizer = getattr(transformers, named)
        required = [name for name, each in signature(tokenizer).parameters.items() if each.default is Parameter.empty]
        files = [file for name, file in tokenizer.vocab_files_names.items() if name in required]
    except (OSError, LookupError, AttributeError):
        return None
    for file in files:
        if not (folder / file).is_file():
            return f"its tokenizer lacks {file}"
        if not (folder / file).stat().st_size:
            return f"{file} is empty"
    return None
