"""Model folders: the path of the embedded model, checks that a folder is complete, reading safetensors weights, and diagnosis of
damaged files. Needs no torch."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from hashlib import sha256
from importlib.resources import files
from inspect import Parameter, signature
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from ..durable_files import digest
from ..errors import first_line

EMBEDDED = "tatoeba-de-en"
LONGEST_HEADER = 100 << 20  # bytes; safetensors' own limit


class ModelNotFound(ValueError):
    """The named folder or Hub model does not exist or cannot be used."""


class FilesDiffer(ModelNotFound):
    """Files of a folder contradict each other, so no library could load the model that was saved."""


class NeedsTransformers(ModelNotFound):
    """The model can only be loaded by transformers; the message says why."""


def embedded_folder() -> str:
    """The path of the model that comes with this package."""
    return str(files("bestfirst") / "data" / EMBEDDED)


def check_folder(name: str) -> None:
    """ModelNotFound, with a clearer message than transformers gives, if a folder is missing or incomplete. A name that looks like
    a path is never looked up on the Hub; any other name that is not a folder is."""
    folder = Path(name)
    if not folder.exists():
        if folder.is_absolute() or name.startswith((".", "~")) or len(folder.parts) > 2:
            raise ModelNotFound(f"no model folder at {name!r}")
        _check_hub(name)
        return
    if not folder.is_dir():
        raise ModelNotFound(f"{name!r} is a file; a model is a folder with config.json and weights")
    if not (folder / "config.json").is_file():
        raise ModelNotFound(f"the model folder {name!r} has no config.json")
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise ModelNotFound(f"the model folder {name!r} has no weights (model.safetensors)")


def has_tokenizer(name: str) -> bool:
    """Whether a folder contains a tokenizer; True for a name on the Hub, where only transformers can tell."""
    folder = Path(name)
    return not folder.is_dir() or any((folder / file).exists() for file in ("tokenizer_config.json", "tokenizer.json"))


def fingerprint(name: str | None) -> str:
    """A digest of the names, sizes and contents of all files in a model folder (None: the embedded one); for a name that is not a
    folder, the name itself. Hidden files do not count."""
    folder = Path(embedded_folder() if name is None else name)
    if not folder.is_dir():
        return str(name)
    hasher = sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            hasher.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            digest(path, hasher)
    return hasher.hexdigest()


def _check_hub(name: str) -> None:
    """ModelNotFound unless the Hub or its cache has this model. Asks once, where transformers would retry for half a minute."""
    from huggingface_hub import model_info, try_to_load_from_cache

    try:
        if not isinstance(try_to_load_from_cache(name, "config.json"), str):
            model_info(name, timeout=10)
    except Exception as error:  # its type depends on the HTTP library that huggingface_hub uses
        answered = getattr(error, "response", None) is not None
        unknown = "none of that name on the hub" if answered else "the hub, where it may be, cannot be reached"
        said = f"no model folder at {name!r}, and {unknown}"
        raise ModelNotFound(f"{said}: {first_line(error)}") from error


# -- weights -------------------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """The location of a tensor in a safetensors file."""

    file: Any  # memory map of the file
    dtype: str  # as safetensors names it
    shape: tuple[int, ...]
    begin: int  # byte offset in the file


class WeightFiles:
    """A mapping from tensor names to weights for all safetensors files of a folder, read lazily by memory map. Each lookup
    returns a float32 copy, whatever the stored dtype (F32, F16, BF16, F64)."""

    def __init__(self, folder: Path) -> None:
        self._places: dict[str, Place] = {}
        for path in sorted(folder.glob("*.safetensors")):
            self._read_header(path)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._place(name).shape

    def __getitem__(self, name: str) -> Any:
        import numpy as np

        place = self._place(name)
        kinds = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "F64": np.float64}
        if place.dtype not in kinds:
            raise FilesDiffer(f"its weight {name!r} is of type {place.dtype}, not F32, F16 or BF16")
        stored = np.frombuffer(place.file, kinds[place.dtype], prod(place.shape), place.begin).reshape(place.shape)
        if place.dtype == "BF16":
            return (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float32)

    def _place(self, name: str) -> Place:
        if name not in self._places:
            raise ModelNotFound(f"its weights lack {name!r}")
        return self._places[name]

    def _read_header(self, path: Path) -> None:
        """Add the tensors of one file. ModelNotFound if its header is invalid or names bytes outside of the file."""
        with open(path, "rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, LONGEST_HEADER):
                raise ModelNotFound(f"{path.name} is damaged: its header does not fit into it")
            try:
                header = json.loads(file.read(length))
                tensors: dict[str, tuple[Any, ...]] = {
                    name: (str(entry["dtype"]), tuple(map(int, entry["shape"])), *map(int, entry["data_offsets"]))
                    for name, entry in header.items()
                    if name != "__metadata__"
                }
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise ModelNotFound(f"{path.name} is damaged: its header is not one of safetensors") from error
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        for name, (dtype, shape, begin, end) in tensors.items():
            width = {"F64": 8, "F32": 4}.get(dtype, 2 if "16" in dtype else 0)
            if not 0 <= begin <= end <= size - 8 - length or (width and end - begin != width * prod(shape)):
                raise ModelNotFound(f"{path.name} is damaged: {name!r} does not lie in it")
            self._places[name] = Place(mapped, dtype, shape, 8 + length + begin)


# -- diagnosis of damaged folders ------------------------------------------------------------------------------------------


def describe_damage(name: str, error: Exception) -> str:
    """One line that says why loading failed with `error`: the damaged file or field where it can be found, since libraries often
    report only their internals; else the first line of the error."""
    folder, message = Path(name), str(error).strip()
    if "trust_remote_code" in message:
        return "it needs Python files that come with it; read them, and if you trust them, load it with trust_remote_code=True"
    if folder.is_dir():
        cause = _broken_json(folder) or _unknown_value(folder, error)
        cause = cause or _bad_weights(folder, error) or _missing_vocabulary(folder, error)
        if cause is not None:
            return cause
    lines = [line.strip() for line in message.splitlines()] or [type(error).__name__]
    if lines[0].startswith("Validation error") and len(lines) > 1:  # "Validation error for field 'd_model':"
        return f"config.json: {lines[1].removeprefix('TypeError: ').partition('. Errors')[0]}"
    return lines[0]


def _broken_json(folder: Path) -> str | None:
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            return f"{path.name} is no JSON: {first_line(error)}"
        if not isinstance(content, dict) and path.name.endswith(("config.json", "tokenizer.json")):
            return f"{path.name} must be a JSON object, and is a {type(content).__name__}"
    return None


def _unknown_value(folder: Path, error: Exception) -> str | None:
    """The field of config.json whose value is the name that a table of transformers lacks."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    unknown = error.args[0] if isinstance(error, KeyError) and error.args else None
    fields = [name for name, value in config.items() if isinstance(value, str) and value == unknown]
    return f"config.json: {fields[0]!r} is {unknown!r}, which transformers does not know" if fields else None


def _bad_weights(folder: Path, error: Exception) -> str | None:
    if type(error).__name__ == "SafetensorError":
        names = ", ".join(sorted(path.name for path in folder.glob("*.safetensors")))
        return f"{names} is damaged: {error}"
    if "weights_only" in str(error) or type(error).__name__ == "UnpicklingError":
        names = ", ".join(sorted(path.name for path in folder.glob("*.bin")))
        return f"{names} is damaged, or holds more than weights; have model.safetensors instead"
    return None


def _missing_vocabulary(folder: Path, error: Exception) -> str | None:
    """The vocabulary file that is missing or empty: transformers' tokenizers fail on it with unrelated internal errors."""
    import transformers

    if "backend tokenizer" in str(error) and not (folder / "tokenizer.json").is_file():
        return "its tokenizer lacks tokenizer.json"
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
