"""The command. `app` lists what it can do; each of its commands is a module of this package."""

from .app import main

__all__ = ["main"]
