"""`kvcache serve`: mlx-lm's own server with our cache in place."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from kvcache.cli.console import CliError
from kvcache.cli.demo import check_folder


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand and its own options; all others are passed on to mlx-lm's server."""
    parser = subparsers.add_parser(
        "serve",
        help="mlx-lm's server with this cache",
        usage="kvcache serve --model PATH [--cache-bytes SIZE] [--metrics-port N] [any mlx_lm.server option]",
        description="Runs mlx_lm.server with this cache in place, on 127.0.0.1 port 8080 unless --host and "
        "--port say otherwise. GET /metrics (Prometheus) and GET /cache (JSON) tell what the cache does.",
        epilog="Every option of mlx_lm.server is taken too: `mlx_lm.server --help` lists them. "
        "--prompt-cache-size has no default here.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model", required=True, metavar="PATH", help="an mlx-lm model folder, or a hub name"
    )
    parser.add_argument(
        "--cache-bytes",
        type=_size,
        metavar="SIZE",
        help="bytes of KV that the cache holds at most, such as 8GB (default: a quarter of the memory "
        "that the device recommends to use)",
    )
    parser.add_argument(
        "--metrics-port",
        type=_port,
        metavar="N",
        help="tell /metrics and /cache on this port instead of the server's",
    )
    parser.set_defaults(run=run, parser=parser, passed_on=[])


def _size(text: str) -> int:
    from kvcache.errors import ConfigError
    from kvcache.sizes import parse_size

    try:
        return parse_size(text, "the size")
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, found {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Runs the server until it is stopped.

    Returns:
        0, after SIGINT or SIGTERM.

    Raises:
        CliError: A model folder or a port that cannot be used, or a server that could not go on.
        SystemExit: Options that mlx-lm's server refuses; it has printed why.
    """
    rest: list[str] = args.passed_on
    if args.cache_bytes is not None and any(option.startswith("--prompt-cache-b") for option in rest):
        args.parser.error("--cache-bytes and --prompt-cache-bytes are the same limit: say one of them")
    if _is_local(args.model):
        check_folder(Path(args.model))
        # Model and tokenizer are local; transformers would ask a hub about the tokenizer all the same.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # MLX and mlx-lm take seconds to import; a usage error or a missing folder should not.
    from mlx_lm import server

    from kvcache import KVCacheError
    from kvcache.integrations.mlx_lm.patching import installed, replaced
    from kvcache.integrations.mlx_lm.serving import NO_SIZE, Serving

    _log_through_logging()
    arguments = ["kvcache serve", "--model", args.model, "--prompt-cache-size", str(NO_SIZE), *rest]
    try:
        with installed(max_size=None, max_bytes=None) as installation:
            serving = Serving(installation, args.cache_bytes, args.metrics_port)
            with replaced(server, "run", serving.run), replaced(sys, "argv", arguments):
                server.main()  # type: ignore[no-untyped-call] # mlx-lm carries no types
    except KVCacheError as error:
        raise CliError(str(error)) from error
    return 0


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
