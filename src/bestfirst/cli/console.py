"""Console: lines on standard error, and what rich draws for a terminal or a file."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDTH = 120  # of tables that are not for a terminal


def say(message: str) -> None:
    """A line of ours on stderr."""
    tell(f"bestfirst: {message}")


def tell(text: str) -> None:
    """Print to stderr; where that is closed, nobody wants to know."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def error_console() -> Console:
    """Where progress is shown."""
    from rich.console import Console

    return Console(stderr=True)


def drawn(*parts: RenderableType, styled: bool) -> str:
    """Tables and trees as text, in colours only where `styled`; a text among them is not cut into lines."""
    from rich.console import Console
    from rich.text import Text

    console = Console(force_terminal=styled, no_color=not styled, width=None if styled else WIDTH, highlight=False)
    with console.capture() as text:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, Text))
    return text.get()


def silence_libraries() -> None:
    """Of the libraries below, errors only; of this one, every warning in one line."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.simplefilter("ignore")
    warnings.filterwarnings("default", module="bestfirst")
    warnings.simplefilter("ignore", ResourceWarning)  # of whatever is collected while our code runs; for developers
    warnings.showwarning = lambda message, *_: say(f"warning: {message}")


def discard_output() -> None:
    """Nothing more can be printed: do not try again when Python ends."""
    if sys.stdout is not None:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
