"""`kvcache serve`: mlx-lm's own server with our cache in place."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from kvcache.cli.console import CliError, say
from kvcache.cli.demo import check_folder
from kvcache.integrations.stopping import StopSignals, exit_now

_LONGEST = 86_400


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand and its own options; all others are passed on to mlx-lm's server."""
    parser = subparsers.add_parser(
        "serve",
        help="mlx-lm's server with this cache",
        usage="kvcache serve --model PATH [--cache-bytes SIZE] [--metrics-port N] [any mlx_lm.server option]",
        description="Runs mlx_lm.server with this cache in place. GET /metrics (Prometheus) and GET /cache "
        "(JSON) say what the cache does.",
        epilog="Every option of mlx_lm.server is taken too: `mlx_lm.server --help` lists them. "
        "--prompt-cache-size has no default here.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model", required=True, metavar="PATH", help="an mlx-lm model folder, or a hub name"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to serve on (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument("--port", type=_port, default=8080, metavar="N", help="port (default: 8080)")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument(
        "--cache-bytes",
        type=_size,
        metavar="SIZE",
        help="bytes of KV that the cache holds at most, such as 8GB (default: a quarter of the memory "
        "that the device recommends to use)",
    )
    limit.add_argument(
        "--prompt-cache-bytes",
        type=_mlx_lm_size,
        metavar="SIZE",
        help="mlx_lm.server's option: the same limit, in which requests that run in a batch are counted too",
    )
    parser.add_argument(
        "--metrics-port",
        type=_port,
        metavar="N",
        help="serve /metrics and /cache on this port instead of the server's",
    )
    parser.add_argument(
        "--shutdown-timeout",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="how long requests under way have to end after SIGINT or SIGTERM (default: 30)",
    )
    parser.set_defaults(run=run, passed_on=[])


def _size(text: str) -> int:
    from kvcache.errors import ConfigError
    from kvcache.sizes import parse_size

    try:
        return parse_size(text, "the size")
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _mlx_lm_size(text: str) -> int:
    """mlx-lm also writes 4G for 4GB; its own parser meets other texts with a traceback."""
    return _size(f"{text}B" if text.endswith(("G", "M")) else text)


def _port(text: str) -> int:
    if not text.isdecimal() or len(text) > 5 or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, found {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST:
        raise argparse.ArgumentTypeError(
            f"a time is a number of seconds from 0 to {_LONGEST}, found {text!r}"
        )
    return seconds


def run(args: argparse.Namespace) -> int:
    """Runs the server until it is stopped. After SIGINT or SIGTERM the process ends here, with status 0.

    Returns:
        Never: the server ends by a signal or an exception.

    Raises:
        CliError: A model folder or a port that cannot be used, or a server that could not go on.
        SystemExit: Options that mlx-lm's server refuses; it has printed why.
    """
    if _is_local(args.model):
        check_folder(Path(args.model))
        # Model and tokenizer are local; transformers would ask a hub about the tokenizer all the same.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with StopSignals() as signals:
        try:
            _serve(args, signals)
        except CliError as error:
            if not signals.waited:
                raise
            say(str(error))
            exit_now(1)
        # Inside the context: a second signal ends the process at once, up to here.
        exit_now(0)


def _serve(args: argparse.Namespace, signals: StopSignals) -> None:
    # MLX and mlx-lm take seconds to import; a usage error or a missing folder should not.
    from mlx_lm import server

    from kvcache import KVCacheError
    from kvcache.integrations.mlx_lm.patching import installed, replaced
    from kvcache.integrations.mlx_lm.serving import NO_SIZE, FreezingModelProvider, Serving

    _log_through_logging()
    arguments = ["kvcache serve", "--model", args.model, "--host", args.host, "--port", str(args.port)]
    if args.prompt_cache_bytes is not None:
        arguments += ["--prompt-cache-bytes", str(args.prompt_cache_bytes)]
    arguments += ["--prompt-cache-size", str(NO_SIZE), *args.passed_on]
    try:
        with installed(max_size=None, max_bytes=None, policy="lru") as installation:
            serving = Serving(
                installation, signals, args.cache_bytes, args.metrics_port, args.shutdown_timeout
            )
            names = {"run": serving.run, "ModelProvider": FreezingModelProvider}
            with replaced(server, **names), replaced(sys, argv=arguments):
                server.main()  # type: ignore[no-untyped-call] # mlx-lm carries no types
    except KVCacheError as error:
        raise CliError(str(error)) from error


def _is_local(model: str) -> bool:
    """Whether it names a folder; `owner/name` that does not exist here is a name on the hub."""
    return Path(model).exists() or model.startswith(("/", ".", "~")) or model.count("/") != 1


def _log_through_logging() -> None:
    """What kvcache has to say goes where mlx-lm's server logs, at the level of --log-level."""
    import logging

    from loguru import logger

    log = logging.getLogger("kvcache")
    logger.remove()
    logger.add(lambda line: log.log(line.record["level"].no, line.rstrip()), format="{message}")
    logger.enable("kvcache")
