"""One of the two servers, counted from inside: python launch.py stock|ours REPORT OPTIONS...

Both are counted in the same place, the model's `__call__`; what the servers report about themselves
plays no part. When its input ends, the counts are written to REPORT, and the process ends.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from pathlib import Path

import mlx.core as mx
from mlx_lm import server

counts = {"tokens_run": 0, "calls": 0, "weights_bytes": 0, "peak_bytes": 0, "held_bytes": 0}


def counting(load):
    """mlx-lm's `load`, after which the model's class counts the tokens it is called with."""

    def load_and_count(*args, **options):
        loaded = load(*args, **options)
        cls = type(loaded[0])
        call = cls.__call__

        def counted(self, inputs, *more, **named):
            counts["tokens_run"] += inputs.size
            counts["calls"] += 1
            return call(self, inputs, *more, **named)

        cls.__call__ = counted
        gc.collect()
        mx.clear_cache()
        mx.reset_peak_memory()
        counts["weights_bytes"] = mx.get_active_memory()
        return loaded

    return load_and_count


def main() -> None:
    which, report, options = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]

    def write() -> None:
        # Not a signal: the main thread may be inside MLX, where no handler runs.
        sys.stdin.read()
        counts["peak_bytes"] = mx.get_peak_memory()
        counts["held_bytes"] = mx.get_active_memory() + mx.get_cache_memory()
        report.write_text(json.dumps(counts))
        os._exit(0)

    server.load = counting(server.load)
    threading.Thread(target=write, daemon=True).start()
    if which == "stock":
        sys.argv = ["mlx_lm.server", *options]
        server.main()
        return
    from kvcache.cli import main as kvcache

    sys.exit(kvcache(["serve", *options]))


if __name__ == "__main__":
    main()
