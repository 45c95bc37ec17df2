"""Model folders: where the embedded one lies, and whether there can be a model where one is named. Needs no torch."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from pathlib import Path

EMBEDDED = "tatoeba-de-en"


class ModelNotFound(ValueError):
    """There is no usable model where one was named."""


def embedded_folder() -> str:
    """Where the model that comes with this package lies."""
    return str(files("bestfirst") / "data" / EMBEDDED)


def check_folder(name: str) -> None:
    """Say what is missing before transformers does, and never ask a hub for what is meant as a folder."""
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
    """Whether this folder holds a tokenizer too; of a name that is no folder, only transformers knows."""
    folder = Path(name)
    return not folder.is_dir() or any((folder / file).exists() for file in ("tokenizer_config.json", "tokenizer.json"))


def fingerprint(name: str | None) -> str:
    """A digest of all files of a model folder; of a name that is no folder, the name."""
    folder = Path(embedded_folder() if name is None else name)
    if not folder.is_dir():
        return str(name)
    found = sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            found.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            with path.open("rb", buffering=0) as stream:
                while block := stream.read(1 << 20):
                    found.update(block)
    return found.hexdigest()


def _check_hub(name: str) -> None:
    """Ask once, where transformers would try for half a minute: is a model of this name in the hub's cache, or on the hub?"""
    from huggingface_hub import model_info, try_to_load_from_cache

    try:
        if not isinstance(try_to_load_from_cache(name, "config.json"), str):
            model_info(name, timeout=10)
    except Exception as error:  # of whatever library the hub is reached with
        reason = str(error).strip().split("\n")[0]
        raise ModelNotFound(f"no model folder at {name!r}, and none of that name on the hub: {reason}") from error
