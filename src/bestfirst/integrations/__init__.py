"""bestfirst inside other libraries: `bestfirst.generate` for Hugging Face `generate(custom_generate=...)`."""

from pathlib import Path


def hub_folder() -> str:
    """The path of a folder in the Hub's `custom_generate` format: pass it to `generate`, or upload it as a repository."""
    return str(Path(__file__).with_name("hub"))


__all__ = ["hub_folder"]
