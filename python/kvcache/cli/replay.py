"""`kvcache replay`: what a cache of a given size would have saved on recorded traffic."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvcache.cli.console import CliError, Steps
from kvcache.errors import KVCacheError
from kvcache.replay.budgets import Budget, looks_like_budget, parse_budget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache.replay.model_size import ModelSize
    from kvcache.replay.traces import Trace

_DEFAULT_BUDGETS: Final = "1%,2%,5%,10%,20%,50%,100%"
_LARGEST_NUMBER: Final = 2**31
_TICKS_PER_STEP: Final = 256


class _Budgets(argparse.Action):
    """Takes `--budget 1% 4GB`, `--budget 1%,4GB` and the option given again."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        _option: str | None = None,
    ) -> None:
        given: list[str] = list(values or ())
        # The first is always this option's; traces may follow the last.
        count = 1
        while count < len(given) and looks_like_budget(given[count]):
            count += 1
        try:
            budgets = [parse_budget(text) for value in given[:count] for text in value.split(",")]
        except KVCacheError as error:
            raise argparse.ArgumentError(self, str(error)) from error
        namespace.budget = [*(namespace.budget or ()), *budgets]
        namespace.more_traces = [*namespace.more_traces, *map(Path, given[count:])]


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:20]) <= _LARGEST_NUMBER:
        raise argparse.ArgumentTypeError(
            f"it takes a whole number from 1 to {_LARGEST_NUMBER}, found {text!r}"
        )
    return int(text)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand and its options."""
    parser = subparsers.add_parser(
        "replay",
        help="replay recorded traffic at several budgets: hit rate, and the best that was possible",
        description="Runs recorded requests through the real index, bookkeeping only, once for each budget: "
        "token hit rate, prefill tokens saved, evictions, and the offline optimum, so that you can decide "
        "how much memory to give. A trace has one prompt a line, a JSON list of token ids or an object with "
        'such a list under "tokens"; or it is a block trace. Answers are not stored; requests come one at a '
        "time.",
    )
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE", help="a JSONL file")
    parser.add_argument(
        "--budget",
        nargs="+",
        action=_Budgets,
        metavar="SIZE",
        help="bytes (4GB, 512MiB) or a share of the trace's unique tokens (10%%); several with commas or "
        f"spaces (default: {_DEFAULT_BUDGETS.replace('%', '%%')})",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--bytes-per-token", type=_number, metavar="N", help="bytes of KV that a token takes")
    size.add_argument("--model", type=Path, metavar="PATH", help="work that out from a model's config.json")
    parser.add_argument(
        "--segment-tokens", type=_number, default=1024, metavar="N", help="the grain of eviction (1024)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw hit rate against budget (.png, .svg)")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object on the last line of stdout; the report goes to stderr",
    )
    parser.set_defaults(run=run, usage_error=_usage_error(parser), more_traces=[])


def run(args: argparse.Namespace) -> int:
    """Replays the traces.

    Returns:
        0, or 2 where the arguments do not fit together.

    Raises:
        CliError: A trace, the model or the plot's file cannot be used.
    """
    paths: list[Path] = [*args.traces, *args.more_traces]
    budgets: list[Budget] = args.budget or [parse_budget(text) for text in _DEFAULT_BUDGETS.split(",")]
    budgets = list(dict.fromkeys(budgets))
    if not paths:
        return int(args.usage_error("name at least one TRACE"))
    in_bytes = next((budget for budget in budgets if budget.nbytes is not None), None)
    if in_bytes is not None and args.bytes_per_token is None and args.model is None:
        return int(args.usage_error(f"the budget {in_bytes.text} needs --bytes-per-token or --model as well"))
    # numpy, rich and matplotlib are slow to import; a usage error should not wait for them.
    from kvcache.cli import replay_plot, replay_report
    from kvcache.replay.study import study

    if args.plot is not None:
        replay_plot.check(args.plot)
    model = None if args.model is None else _model(args.model)
    bytes_per_token = args.bytes_per_token if model is None else model.bytes_per_token
    traces = _read(paths)
    # Each budget is run twice: for the optimum and through the index.
    ticks = 2 * len(budgets) * sum(len(trace.units) for trace in traces)
    studies = []
    with Steps(max(1, ticks // _TICKS_PER_STEP)) as steps:
        counter = _Ticks(steps)
        for trace in traces:
            found = study(
                trace,
                budgets,
                segment_tokens=args.segment_tokens,
                bytes_per_token=bytes_per_token,
                begin=steps.begin,
                tick=counter.tick,
            )
            studies.append(found)
    replay_report.print_report(studies, model, to_stderr=args.json)
    if args.plot is not None:
        replay_plot.draw(studies, args.plot)
    if args.json:
        print(json.dumps(replay_report.as_json(studies, model)), flush=True)
    return 0


class _Ticks:
    """Moves the bar once for many requests, since drawing costs more than replaying."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._count = 0

    def tick(self) -> None:
        self._count += 1
        if self._count % _TICKS_PER_STEP == 0:
            self._steps.advance()


def _usage_error(parser: argparse.ArgumentParser) -> Any:
    def complain(sentence: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            parser.print_usage(sys.stderr)
            print(f"{parser.prog}: error: {sentence}", file=sys.stderr)
        return 2

    return complain


def _model(path: Path) -> ModelSize:
    from kvcache.replay.model_size import model_size

    try:
        return model_size(path)
    except KVCacheError as error:
        raise CliError(f"--model: {error}; give --bytes-per-token instead.") from error


def _read(paths: Sequence[Path]) -> list[Trace]:
    from kvcache.replay.traces import read_trace

    traces = []
    with Steps(len(paths)) as steps:
        for path in paths:
            steps.begin(f"reading {path.name}")
            try:
                traces.append(read_trace(path))
            except KVCacheError as error:
                raise CliError(str(error)) from error
            steps.advance()
    return traces
