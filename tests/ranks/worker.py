"""One rank: runs a scenario and leaves its result in a file. Started by ``launch``."""

from __future__ import annotations

import faulthandler
import gc
import json
import sys
from importlib import import_module
from pathlib import Path

import mlx.core as mx


def main(scenario: str, out: str, options: str, seconds: str) -> None:
    faulthandler.dump_traceback_later(float(seconds), exit=True)
    mx.set_default_device(mx.cpu)
    mx.set_cache_limit(0)
    module = import_module(f"tests.ranks.{scenario}")
    gc.collect()
    gc.freeze()
    group = mx.distributed.init(strict=True, backend="ring")
    result = module.run(group, json.loads(options))
    # Written whole or not at all: a reader never finds half a result.
    target = Path(out) / f"rank{group.rank()}.json"
    target.with_suffix(".part").write_text(json.dumps(result))
    target.with_suffix(".part").rename(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
