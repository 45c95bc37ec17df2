"""bestfirst inside other libraries: `bestfirst.generate` for Hugging Face `generate(custom_generate=...)`."""

from pathlib import Path


def hub_folder() -> str:
    """A folder after the Hub's convention for `custom_generate`: use it by its path, or upload it as a repository of its own."""
    return str(Path(__file__).with_name("hub"))


__all__ = ["hub_folder"]
