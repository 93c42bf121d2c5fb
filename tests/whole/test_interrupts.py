"""An exception that arrives before any line of a call loses no bytes, and no later call fails by it.

Signals arrive between bytecodes; a trace function that raises before one line after the other stands in for
them. A line that begins with ``with`` is traced on its way out too, where no signal is delivered.
"""

from __future__ import annotations

import ast
import gc
import linecache
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kvcache
from kvcache import KVPrefixCache
from tests.support import inside
from tests.support.full import many
from tests.support.inside import stored_arrays
from tests.support.layers import KV, Arrays, Rotating
from tests.support.models import prompt
from tests.support.poskv import PosKV

if TYPE_CHECKING:
    from collections.abc import Callable

MODELS = {
    "spans": PosKV(KV(), KV(heads=1)),
    "hybrid": PosKV(KV(), Arrays()),
    "window": PosKV(KV(), Rotating(8)),
}
OLD, OTHER = prompt(12), prompt(9, first=1)
NEW = [*OLD[:6], *prompt(12, first=2)]


class Interrupted(BaseException):
    """Nothing in the library catches it by its name."""


def before_line(number: int, call: Callable[[], object]) -> bool:
    """Runs the call with an exception before its ``number``-th line; whether it had that many."""
    seen = 0

    def local(frame: Any, event: str, _: object) -> Any:
        nonlocal seen
        if event == "line":
            name, line = frame.f_code.co_filename, frame.f_lineno
            if not linecache.getline(name, line).lstrip().startswith("with "):
                if seen == number:
                    sys.settrace(None)
                    raise Interrupted
                seen += 1
        return local

    sys.settrace(lambda frame, _event, _arg: local if "/kvcache/" in frame.f_code.co_filename else None)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return False


def _session(cache: KVPrefixCache, model: PosKV) -> None:
    with cache.session(NEW, model=model) as session:
        model.append(session.prompt_cache, session.remaining)


CALLS: dict[str, Callable[[KVPrefixCache, PosKV, Any], object]] = {
    "fetch": lambda cache, *_: cache.fetch([*OLD, 1]),
    "take": lambda cache, *_: cache.fetch([*OLD, 1], take=True),
    "store": lambda cache, _, filled: cache.store(NEW, filled),
    "donate": lambda cache, _, filled: cache.store(NEW, filled, donate=True),
    "store that joins": lambda cache, model, _: cache.store([*OTHER, 5], model.filled([*OTHER, 5])),
    "pin": lambda cache, *_: cache.pin(OLD).release(),
    "reserve": lambda cache, *_: cache.reserve(4000, protect=cache.peek([*OTHER, 1])),
    "evict": lambda cache, *_: cache.evict(1),
    "trim_to": lambda cache, *_: cache.trim_to(tokens=2),
    "drop": lambda cache, *_: cache.drop(""),
    "clear": lambda cache, *_: cache.clear(),
    "session": lambda cache, model, _: _session(cache, model),
}


@pytest.fixture(autouse=True)
def quick_collections() -> None:
    # Not thawed afterwards: all later collections, of every file, would walk through what was imported.
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", CALLS)
def test_whatever_line_an_exception_arrives_at_nothing_is_lost_and_nothing_fails_later(
    name: str, kind: str
) -> None:
    model, lines = MODELS[kind], 0
    limit = model.nbytes(40)
    entries = [(tokens, model.filled(tokens)) for tokens in (OLD, OTHER)]
    while True:
        cache = KVPrefixCache(max_bytes=limit, segment_tokens=4, gc="auto")
        for tokens, layers in entries:
            assert cache.store(tokens, layers).reason == "stored"
        filled = model.filled(NEW)
        if not before_line(lines, lambda: CALLS[name](cache, model, filled)):  # noqa: B023
            break
        # In full every line of the richest kind; the others go through the same code.
        lines += many(3, 1) if kind == "window" else many(10, 3)
        cache.validate()
        hit = cache.fetch([*OLD, 1])
        if hit:
            model.check(hit.prompt_cache, OLD[: hit.length])
        assert cache.store(OTHER, entries[1][1]).length == len(OTHER)
        cache.evict(10**9)
        cache.validate()
        assert (cache.nbytes, list(stored_arrays(cache))) == (0, [])
        figures = inside.index(cache).stats()
        assert (figures.leased_bytes, figures.reserved_bytes) == (0, 0)
        # All of the limit can be used again.
        assert cache.store(prompt(30, first=3), model.filled(prompt(30, first=3))).length == 30
        cache.close()
    assert lines > 30


def test_no_comprehension_stands_in_a_section() -> None:
    """From Python 3.12 on it is part of its function, and an exception before its first step skips the end
    of the block around it: the lock would stay taken."""
    found = []
    for path in Path(kvcache.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.With) and any("lock" in ast.unparse(item) for item in node.items):
                inside_it = (each for body in node.body for each in ast.walk(body))
                kinds = (ast.ListComp, ast.SetComp, ast.DictComp)
                found += [f"{path}:{each.lineno}" for each in inside_it if isinstance(each, kinds)]
    assert not found
