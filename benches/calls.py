"""How much Python a call runs: files crossed and functions called in the package, traced.

``python benches/calls.py`` prints the figures of a fetch hit and of a first store, ``--list`` each call in
order. A reader who follows a call by hand goes through the same files.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

import kvcache

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

PACKAGE = Path(kvcache.__file__).parent


class Trace:
    """The calls of one run, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def run(self, action: Callable[[], object]) -> Trace:
        """Runs the action and notes every Python function of the package that it calls."""
        sys.setprofile(self._note)
        try:
            action()
        finally:
            sys.setprofile(None)
        return self

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            self.calls.append((str(path.relative_to(PACKAGE)), frame.f_code.co_qualname))

    @property
    def files(self) -> Counter[str]:
        """Calls by file."""
        return Counter(file for file, _ in self.calls)


def layers(count: int, tokens: int) -> list[Any]:
    """Full-attention layer caches of one sequence."""
    made = [KVCache() for _ in range(count)]
    for layer in made:
        layer.update_and_fetch(mx.ones((1, 2, tokens, 8)), mx.ones((1, 2, tokens, 8)))
    mx.eval([layer.state for layer in made])
    return made


def traced(count: int) -> dict[str, Trace]:
    """A first store and a hit on it, of a model with that many layers."""
    cache, tokens = kvcache.KVPrefixCache(), list(range(100))
    # What is imported or computed once.
    cache.store([1, 2], layers(count, 2))
    cache.store([2, 2], layers(count, 2))
    cache.fetch([1, 2, 3])
    prompt_cache = layers(count, 100)
    store = Trace().run(lambda: cache.store(tokens, prompt_cache))
    fetch = Trace().run(lambda: cache.fetch([*tokens, 7]))
    return {"fetch hit": fetch, "first store": store}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=2, help="of the model")
    parser.add_argument("--list", action="store_true", help="each call in order")
    options = parser.parse_args()
    for name, trace in traced(options.layers).items():
        print(f"{name}: {len(trace.files)} files, {len(trace.calls)} calls ({options.layers} layers)")
        for file, calls in trace.files.most_common():
            print(f"  {calls:4}  {file}")
        if options.list:
            for file, function in trace.calls:
                print(f"    {file}: {function}")


if __name__ == "__main__":
    main()
