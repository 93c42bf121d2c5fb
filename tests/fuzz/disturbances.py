"""What gets in the way of a call: exceptions before a line, memory that is not to be had, nested calls.

Each takes the world and a call, runs the call, and raises only what it names in ``EXPECTED``.
"""

from __future__ import annotations

import linecache
import sys
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from kvcache import AllocationError, BusyError
from tests.support import inside
from tests.support.failures import allocation_failure, failing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fuzz.books import Books

    Call = Callable[[], Any]


class Interrupted(BaseException):
    """As a signal's: nothing in the library catches it by its name."""


class Broken(Exception):
    """A defect of somebody else's."""


class Disturbed(Exception):
    """A call did not end by itself.

    Attributes:
        evicted: Bytes that were evicted in the attempt, where the error says so.
    """

    def __init__(self, evicted: int | None) -> None:
        super().__init__(evicted)
        self.evicted = evicted


@cache
def _opens_a_block(name: str, line: int) -> bool:
    """A line that begins with ``with`` is traced on its way out too, where no signal is delivered."""
    return linecache.getline(name, line).lstrip().startswith("with ")


def interrupt(world: Books, call: Call) -> Any:
    """Raises before a random line inside kvcache."""
    number, seen = int(2 ** world.random.uniform(0, 10.5)), 0

    def local(frame: Any, event: str, _: object) -> Any:
        nonlocal seen
        if event == "line" and not _opens_a_block(frame.f_code.co_filename, frame.f_lineno):
            seen += 1
            if seen == number:
                sys.settrace(None)
                world.note(f"interrupted at {frame.f_code.co_filename.rsplit('/')[-1]}:{frame.f_lineno}")
                raise Interrupted
        return local

    before = sys.gettrace()
    sys.settrace(lambda frame, _event, _arg: local if "/kvcache/" in frame.f_code.co_filename else None)
    try:
        return call()
    finally:
        sys.settrace(before)


def starve(world: Books, call: Call) -> Any:
    """One array operation cannot allocate, or all from one on."""
    first, lasting = world.random.randrange(1, 12), world.random.random() < 0.3
    with failing(lambda number: number == first or (lasting and number > first), allocation_failure):
        return call()


def spoil(world: Books, call: Call) -> Any:
    """One array operation fails for another reason."""
    first = world.random.randrange(1, 12)
    with failing(lambda number: number == first, Broken):
        return call()


def nest(world: Books, call: Call) -> Any:
    """Has other calls run right after the lock was taken: they answer or are refused at once."""
    random, cache = world.random, world.cache
    prompt = world.prompt(world.space())
    name = random.choice(["stats", "len", "nbytes", "peek", "fetch", "evict", "pin", "unpin", "clear"])
    world.note(f"nested {name}")

    def inner() -> None:
        actions: dict[str, Call] = {
            "stats": cache.stats,
            "len": lambda: len(cache),
            "nbytes": lambda: cache.nbytes,
            "peek": lambda: cache.peek(prompt.ids),
            "fetch": lambda: cache.fetch(prompt.ids),
            "evict": lambda: cache.evict(100),
            "pin": lambda: cache.pin(prompt.ids),
            "unpin": lambda: world.pins and world.pins.pop()[0].release(),
            "clear": cache.clear,
        }
        with suppress(BusyError):
            actions[name]()

    with _in_sections(world, inner):
        return call()


@contextmanager
def _in_sections(world: Books, inner: Callable[[], None]) -> Iterator[None]:
    contents = inside.contents(world.cache)
    opened = contents.opened

    def interrupted() -> Any:
        contents.opened = opened
        try:
            inner()
        finally:
            contents.opened = interrupted
        return opened()

    contents.opened = interrupted
    try:
        yield
    finally:
        del contents.opened


def stop_the_clock(world: Books, call: Call) -> Any:
    """The caller's clock raises at one of its next readings."""
    world.failing_clock = world.random.randrange(1, 4)
    try:
        return call()
    finally:
        world.failing_clock = 0


def break_the_source(world: Books, call: Call) -> Any:
    """The pressure source raises."""
    world.failing_pressure = True
    try:
        return call()
    finally:
        world.failing_pressure = False


EXPECTED: Final[dict[Callable[[Books, Call], Any], tuple[type[BaseException], ...]]] = {
    interrupt: (Interrupted,),
    starve: (AllocationError, RuntimeError),
    spoil: (Broken,),
    nest: (),
    stop_the_clock: (Broken,),
    break_the_source: (Broken,),
}


def disturbed(world: Books, disturbance: Callable[[Books, Call], Any], call: Call) -> Any:
    """What the call returns.

    Raises:
        Disturbed: The call failed as it should. No frame of it is kept.
    """
    world.note(disturbance.__name__)
    try:
        return disturbance(world, call)
    except EXPECTED[disturbance] as error:
        if type(error) is RuntimeError and "Unable to allocate" not in str(error):
            raise
        evicted = error.evicted.nbytes if isinstance(error, AllocationError) else None
        world.note(f"failed with {type(error).__name__}")
    raise Disturbed(evicted)
