"""The `kvcache` command.

One module per subcommand, each with `add_parser(subparsers)` and `run(args) -> int`. This module and the
subcommands' own import nothing heavy, so that `--help` and a mistyped option answer at once; what needs MLX
is imported inside `run`.

Exit codes: 0 done, 1 a failure that one sentence on stderr explains (or a demo whose promise did not hold),
2 a usage error, 130 interrupted, 141 the reader of the output went away (`kvcache doctor | head -1`).
"""

from __future__ import annotations

import argparse
import sys
from importlib import metadata
from typing import TYPE_CHECKING

from kvcache.cli import demo, doctor, replay, serve
from kvcache.cli.console import CANNOT_WRITE, CliError, drop_output, say, settle_stderr, show_any_text
from kvcache.errors import no_mlx

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from _typeshed import SupportsWrite

__all__ = ["CliError", "main"]

_SUBCOMMANDS = (demo, replay, serve, doctor)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: Arguments without the program's name; None takes the process's own.

    Returns:
        The process's exit code.
    """
    show_any_text()
    try:
        code = _run(argv)
        if sys.stdout is not None:
            # Here and not at the interpreter's exit, where a failure can no longer be explained.
            sys.stdout.flush()
    except BrokenPipeError:
        drop_output(sys.stdout)
        return 141
    except OSError as error:
        # What names a file is no failure of the output.
        if error.filename is not None or error.errno not in CANNOT_WRITE:
            raise
        drop_output(sys.stdout)
        say(f"the output cannot be written: {error.strerror}.")
        return 1
    finally:
        settle_stderr()
    return code


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = _parse(argv)
        run: Callable[[argparse.Namespace], int] = args.run
        return run(args)
    except SystemExit as stop:  # argparse has printed the usage, the help or the version
        return stop.code if isinstance(stop.code, int) else 2
    except CliError as error:
        say(str(error))
        return 1
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "mlx":
            raise
        # The package has put it into a sentence of its own where it was the one to notice.
        say(str(error if error.__cause__ else no_mlx(error)))
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    # A subcommand that passes options on to another program has this attribute from its defaults.
    if hasattr(args, "passed_on"):
        args.passed_on = rest
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return args


class _Parser(argparse.ArgumentParser):
    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Argparse's own takes help that cannot be written for help that was read."""
        if file is None or file is sys.stderr:
            super()._print_message(message, file)
        else:
            file.write(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="kvcache", description="Prefix cache for MLX inference engines.")
    parser.add_argument("--version", action="version", version=f"kvcache {_version()}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for subcommand in _SUBCOMMANDS:
        subcommand.add_parser(subparsers)
    return parser


def _version() -> str:
    try:
        return metadata.version("kvcache")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "(not installed)"
