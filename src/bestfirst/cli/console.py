"""Console: messages and a progress bar on stderr; tables drawn by rich; `Output`, which writes unbuffered, so that nothing is
lost when a command ends early; and `reports`, which turns exceptions into one line and an exit code, never a traceback."""

from __future__ import annotations

import functools
import io
import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import Stopped, Unusable, reason

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH = 120  # of tables that are not printed to a terminal
PARTLY = 1  # some of the work failed, the rest is done
USAGE = 2  # nothing was done: the command line, the input file or the model folder is wrong
INTERRUPTED = 130  # 128 + SIGINT
CLOSED_PIPE = 141  # 128 + SIGPIPE

Command = TypeVar("Command", bound=Callable[..., int])


def say(message: str) -> None:
    """Print "bestfirst: MESSAGE" to stderr."""
    print_to_stderr(f"bestfirst: {message}")


def print_to_stderr(text: str) -> None:
    """Print to stderr, if it is open."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def render_rich(*parts: RenderableType, styled: bool) -> str:
    """rich tables and trees as text, in colours only if `styled`. A `Text` among them is not wrapped."""
    from rich.console import Console
    from rich.text import Text

    console = Console(force_terminal=styled, no_color=not styled, width=None if styled else WIDTH, highlight=False)
    with console.capture() as text:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, Text))
    return text.get()


def silence_libraries() -> None:
    """Show only errors of the libraries below, and each warning of this package in one line, those that the engine logs too."""
    import logging

    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: say(f"warning: {record.getMessage()}")  # type: ignore[method-assign]
    logging.getLogger("bestfirst.engine").handlers = [handler]
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.simplefilter("ignore")
    warnings.filterwarnings("default", module="bestfirst")
    warnings.simplefilter("ignore", ResourceWarning)  # of objects collected while this package's code runs
    warnings.showwarning = lambda message, *_: say(f"warning: {message}")


def discard_output() -> None:
    """Redirect stdout to the null device, so that Python does not fail again on it at exit."""
    if sys.stdout is not None:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


Bar = Callable[..., None]
"""Changes a progress bar: takes the arguments of rich's `Progress.update`, or with `start=True` those of `Progress.reset`."""


@contextmanager
def progress_bar(
    total: Callable[[], int | None], hidden: bool = False, what: str = "loading the model", **options: Any
) -> Iterator[Bar]:
    """A progress bar of lines on stderr, which shows nothing if stderr is no terminal, or if it is `hidden`. `total` returns the
    number of lines, and is only called if there is a bar; `options` are those of rich's `Progress`."""
    if hidden or sys.stderr is None or not sys.stderr.isatty():
        yield lambda **changes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    counts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[saved]}"))
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    progress = Progress(*counts, *times, console=Console(stderr=True), redirect_stdout=False, **options)
    task = progress.add_task(what, total=total(), saved="")
    with progress:
        yield lambda **changes: (progress.reset if "start" in changes else progress.update)(task, **changes)


class CommandError(Stopped):
    """Ends the command with one line on stderr and an exit code."""

    def __init__(self, message: str, code: int = PARTLY) -> None:
        super().__init__(message)
        self.code = code


def usage(message: str) -> CommandError:
    """The error for a wrong command line, input file or model folder, found before any work was done."""
    return CommandError(message, USAGE)


@contextmanager
def usage_errors(say: Callable[[Exception], str] = reason) -> Iterator[None]:
    """Errors of values in the block become usage errors, with their reason or what `say` makes of them as the message."""
    try:
        yield
    except ValueError as error:
        raise usage(say(error)) from error


def reports(command: Command) -> Command:
    """Decorate a function that returns an exit code: its exceptions become a line on stderr and an exit code."""

    @functools.wraps(command)
    def reporting(*args: object, **kwargs: object) -> int:
        try:
            return command(*args, **kwargs)
        except (Unusable, Stopped) as failure:
            say(str(failure))
            return USAGE if isinstance(failure, Unusable) else getattr(failure, "code", PARTLY)
        except BrokenPipeError:
            discard_output()
            return CLOSED_PIPE  # the reader has stopped reading, as `head` does
        except OSError as error:  # of a print; functions that write files raise CommandError with the name
            discard_output()
            say(reason(error))
            return PARTLY
        except KeyboardInterrupt:
            say("interrupted")
            return INTERRUPTED

    return reporting  # type: ignore[return-value]


def open_file(path: str, mode: str = "r", hint: str = "") -> io.FileIO:
    """The file of this name, unbuffered, for reading, or for writing with mode "a". `hint` is added if it does not exist."""
    try:
        return io.FileIO(path, mode)
    except OSError as error:
        hint = hint if isinstance(error, FileNotFoundError) else ""
        raise usage(f"cannot {'read' if mode == 'r' else 'write to'} {path!r}: {reason(error)}{hint}") from error


class Output:
    """A file or standard output, unbuffered. A file keeps its old content until `begin`, since much can fail before."""

    def __init__(self, path: str | None, *, apart_from: Sequence[io.FileIO] = (), overwrite: bool = True) -> None:
        """`apart_from`: files that this must not be. Without `overwrite`, a file with content is refused."""
        named = path not in (None, "-")
        self._new = str(path) if named and not os.path.lexists(str(path)) else None  # removed on close unless `begin` is called
        self.name = repr(path) if named else "standard output"
        self._named = named
        self.file = open_file(str(path), "a") if named else _standard_output()
        status = os.fstat(self.file.fileno())
        self._regular = stat.S_ISREG(status.st_mode)
        if self._regular and any(os.path.samestat(status, os.fstat(other.fileno())) for other in apart_from):
            raise usage(f"{self.name} is a file that this command reads or writes already; name another")
        if named and self._regular and status.st_size and not overwrite:
            raise usage(f"{self.name} exists, and is of another job; replace it with --overwrite, or name another output")

    def begin(self) -> None:
        """The work starts: remove a file's old content."""
        self._new = None
        if self._named and self._regular:
            self.file.truncate(0)

    def write(self, text: str) -> None:
        """Write whole lines."""
        data = memoryview(text.encode("utf-8", "replace"))
        try:
            while data:
                data = data[os.write(self.file.fileno(), data) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        try:
            self.file.close()
        except OSError as error:
            raise self._failure(error) from error
        if self._new is not None:
            with suppress(OSError):
                os.unlink(self._new)
            self._new = None

    def _failure(self, error: OSError) -> CommandError:
        return CommandError(f"cannot write to {self.name}: {reason(error)}", PARTLY)


def _standard_output() -> io.FileIO:
    if sys.stdout is None:
        raise usage("standard output is closed; name an output file with -o")
    return io.FileIO(sys.stdout.fileno(), "w", closefd=False)
