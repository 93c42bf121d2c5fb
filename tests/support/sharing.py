"""Which tests cannot be run by two threads at once, and why; for `make test-parallel`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

    import pytest

_COUNTERS: Final = "MLX's counters and its pool belong to the process"
_PATCHES: Final = "what it patches is patched for every thread"
_PROCESSES: Final = "it starts processes or servers, which test their own threads"
# Names of functions and attributes, wherever they are used on the way.
NAMES: Final = {
    **dict.fromkeys(("get_active_memory", "get_cache_memory", "get_peak_memory"), _COUNTERS),
    **dict.fromkeys(("reset_peak_memory", "clear_cache", "set_cache_limit", "set_memory_limit"), _COUNTERS),
    **dict.fromkeys(("MonkeyPatch", "setprofile", "settrace"), _PATCHES),
    **dict.fromkeys(("subprocess", "Popen", "environ"), _PROCESSES),
    "freed": "what a cycle freed is measured with the counters of the process",
    "__del__": "a collection by one thread runs the finalizers of the other",
    "collect": "a collection runs what other threads left to their finalizers",
    "get_objects": "it counts the objects of the process",
    "logger": "log sinks belong to the process",
    "setswitchinterval": "it has threads of its own, and the interpreter to itself",
}
FOLDERS: Final = {
    **dict.fromkeys(("cli", "docs", "examples", "integrations", "ranks", "shipping"), _PROCESSES),
}
# Fixtures that give each thread its own, or are the same for every test.
HARMLESS: Final = {"model", "tmp_path", "request", "loaded", "exact_allocator", "tmp_path_factory"}


def why_not(item: pytest.Function) -> str | None:
    """The reason why this test runs in one thread; None where several can run it."""
    for folder in item.path.parent.parts:
        if folder in FOLDERS:
            return FOLDERS[folder]
    shared = set(item.fixturenames) - HARMLESS - set(getattr(getattr(item, "callspec", None), "params", ()))
    if shared:
        return f"the threads would share {', '.join(sorted(shared))}"
    return next(_reasons(item.obj, set()), None)


def _reasons(thing: Any, seen: set[int]) -> Iterator[str]:
    """Walks what a test calls, as far as that is in tests/."""
    thing = inspect.unwrap(thing) if callable(thing) else thing
    if id(thing) in seen or not getattr(thing, "__module__", "").startswith("tests."):
        return
    seen.add(id(thing))
    if inspect.isclass(thing):
        for member in vars(thing).values():
            yield from _reasons(getattr(member, "fget", member), seen)
        return
    thing = getattr(thing, "__func__", thing)
    code = getattr(thing, "__code__", None)
    if code is None:
        return
    for name in _names(code):
        if name in NAMES:
            yield NAMES[name]
        yield from _reasons(thing.__globals__.get(name), seen)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _names(constant)
