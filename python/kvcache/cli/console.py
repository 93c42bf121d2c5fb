"""What every subcommand says to its user: failures in one sentence, progress on stderr."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Final, Self, TextIO, cast

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console
    from rich.progress import Progress, TaskID

_QUOTED_CHARACTERS = 200
# A disk or a quota that is full, a file that may not grow, a device that fails.
CANNOT_WRITE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class CliError(Exception):
    """A known failure; its text is the one sentence that the user reads."""


def quote(error: BaseException | str) -> str:
    """The first line of somebody else's message, shortened so that it fits into a sentence."""
    lines = str(error).strip().splitlines()
    line = lines[0].strip().rstrip(".") if lines else ""
    if not line:
        line = "no reason given" if isinstance(error, str) else type(error).__name__
    return line if len(line) <= _QUOTED_CHARACTERS else f"{line[: _QUOTED_CHARACTERS - 1]}…"


def say(sentence: str) -> None:
    """A sentence for the user on stderr. One that cannot be written is no reason to fail."""
    with contextlib.suppress(OSError, ValueError):
        print(f"kvcache: {sentence}", file=sys.stderr, flush=True)


def show_any_text() -> None:
    """Shows characters that cannot be encoded, as in some file names, as backslash escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_output(stream: TextIO | None) -> None:
    """Discards buffered output: the interpreter would fail on it at exit (status 120)."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), cast("TextIO", stream).fileno())


def settle_stderr() -> None:
    """Writes what stderr still holds, or drops it."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        drop_output(sys.stderr)


def report_console(*, to_stderr: bool, width: int | None = None) -> Console:
    """Where a report is printed, without colours in numbers; ``width`` where there is no terminal."""
    # rich takes a tenth of a second to import, which a mistyped option should not pay.
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            # rich's own ends the process with status 1.
            raise BrokenPipeError

    console = Plain(stderr=to_stderr, highlight=False)
    if width is None or console.is_terminal:
        return console
    return Plain(stderr=to_stderr, highlight=False, width=width)


class Steps:
    """Progress of a job of several steps, as a context manager.

    On a terminal: one bar on stderr with the step's name and the time so far, gone at the end. Elsewhere (a
    log, a pipe): one plain line per name, since a bar would show nothing until it is over.

    Args:
        total: Number of steps; None where it is not known.
    """

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            # rich takes a tenth of a second to import, which a mistyped option should not pay.
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, name: str) -> None:
        """Names what is being done now."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=name)
        else:
            with contextlib.suppress(OSError, ValueError):
                print(f"{name} …", file=sys.stderr, flush=True)

    def advance(self) -> None:
        """One step is done."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task)
