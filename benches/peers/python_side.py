"""The workloads on the Python contenders, interleaved. Yields the same lines as the Rust side."""

from __future__ import annotations

import gc
import itertools
import time
import tracemalloc
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from benches.peers.contenders import CONTENDERS, Contender, in_rotation
from benches.workloads import SIZES, memcmp, memmove, prompt, queries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

# Where a search is quadratic it takes seconds; its rounds end after this long.
SECONDS = 12.0
ROUNDS = 60


class Line(NamedTuple):
    section: str
    case: str
    size: int
    contender: str
    median: float
    best: float


def nanoseconds(call: Callable[..., object], *arguments: Any) -> float:
    start = time.perf_counter_ns()
    call(*arguments)
    return time.perf_counter_ns() - start


def interleaved(
    timed: dict[str, Callable[[], float]], say: Callable[[str], None], what: str
) -> dict[str, list[float]]:
    """One sample of each in every round; whatever has used up its time sits out."""
    say(what)
    samples: dict[str, list[float]] = {name: [] for name in timed}
    spent = dict.fromkeys(timed, 0.0)
    for _ in range(ROUNDS):
        for name, once in timed.items():
            if spent[name] < SECONDS or len(samples[name]) < 3:
                start = time.perf_counter()
                samples[name].append(once())
                spent[name] += time.perf_counter() - start
    return samples


def lines(section: str, case: str, size: int, samples: dict[str, list[float]]) -> Iterator[Line]:
    for name, values in samples.items():
        yield Line(section, case, size, name, median(values), min(values))


def looks_up(contender: Contender, asked: list[Any]) -> Callable[[], float]:
    following = in_rotation(contender, asked)
    return lambda: nanoseconds(contender.lookup, following())


def lookup(say: Callable[[str], None]) -> Iterator[Line]:
    for size in SIZES:
        stored = prompt(size)
        contenders = {name: make() for name, make in CONTENDERS.items()}
        for contender in contenders.values():
            contender.insert(contender.given(stored))
        for case, place, expected in (
            ("full hit", "end", size),
            ("leaves half-way", "middle", size // 2),
            ("miss", "nowhere", 0),
        ):
            asked = queries(stored, place)
            for name, contender in contenders.items():
                # The quadratic ones answer late enough without a rehearsal.
                if size < SIZES[-1]:
                    found = contender.lookup(contender.given(asked[0]))
                    assert found in {expected, expected - 1}, f"{name} matched {found}, not {expected}"
            timed = {name: looks_up(contender, asked) for name, contender in contenders.items()}
            limit = memcmp(size)
            timed["memcmp"] = lambda limit=limit: limit() * 1e9
            yield from lines("lookup", case, size, interleaved(timed, say, f"lookup, {case}, {size}"))


def inserts(make: Callable[[], Contender], base: np.ndarray, fresh: list[np.ndarray]) -> Callable[[], float]:
    rotation = itertools.cycle(fresh)

    def once() -> float:
        contender = make()
        contender.insert(contender.given(base))
        return nanoseconds(contender.insert, contender.given(next(rotation)))

    return once


def insert(say: Callable[[str], None]) -> Iterator[Line]:
    for size in SIZES:
        base = prompt(size)
        fresh = queries(base, "nowhere", 12)
        # exo's entries are a list: appending to it says nothing.
        timed = {name: inserts(make, base, fresh) for name, make in CONTENDERS.items() if "exo" not in name}
        limit = memmove(size)
        timed["memmove"] = lambda limit=limit: limit() * 1e9
        yield from lines("insert", "nothing shared", size, interleaved(timed, say, f"insert, {size}"))


def stored(say: Callable[[str], None]) -> Iterator[Line]:
    """One path of 8K tokens among many short sequences. A million would take mlx-lm 5 GB."""
    path = prompt(8_192)
    for count in (1, 100, 10_000):
        timed = {}
        for name, make in CONTENDERS.items():
            if name == "mlx-lm LRUPromptCache" or ("exo" in name and count > 1_000) or "vllm" in name:
                continue
            contender = make()
            for number in range(count):
                contender.insert(contender.given(prompt(16 + number % 17, number + 1)))
            contender.insert(contender.given(path))
            timed[name] = looks_up(contender, queries(path, "end"))
        samples = interleaved(timed, say, f"stored, {count}")
        yield from lines("stored", "lookup of the 8K path, warm", count, samples)


def evict(say: Callable[[str], None]) -> Iterator[Line]:
    for count in (1_000, 10_000):
        timed = {}
        for name in ("kvcache, list", "mlx-lm LRUPromptCache"):
            contender = CONTENDERS[name]()
            for number in range(count):
                contender.insert(contender.given(prompt(32, number)))
            timed[name] = lambda contender=contender: nanoseconds(contender.evict)
        yield from lines(
            "evict", "one sequence of 32 tokens", count, interleaved(timed, say, f"evict, {count}")
        )


def chat(say: Callable[[str], None]) -> Iterator[Line]:
    turns, turn = 32, 1_024
    history = prompt(turns * turn)
    samples: dict[str, list[float]] = {}
    for name in ("kvcache, list", "kvcache, int32 array", "mlx-lm PromptTrie"):
        say(f"chat, {name}")
        for _ in range(3):
            contender = CONTENDERS[name]()
            given = [contender.given(history[: end * turn]) for end in range(1, turns + 1)]

            def talk(contender: Contender = contender, given: list[Any] = given) -> None:
                for tokens in given:
                    contender.lookup(tokens)
                    contender.insert(tokens)

            samples.setdefault(name, []).append(nanoseconds(talk))
    yield from lines("chat", f"{turns} turns of 1,024 tokens, each looked up and stored", turns, samples)


def memory(say: Callable[[str], None]) -> Iterator[Line]:
    say("memory")
    size, count = 8_192, 16
    given = [prompt(size, seed).tolist() for seed in range(count)]
    own = CONTENDERS["kvcache, list"]()
    for tokens in given:
        own.insert(tokens)
    per_token = own.index.stats().index_bytes / (size * count)
    yield Line("memory", "16 prompts of 8,192 tokens", size * count, "kvcache", per_token, per_token)
    gc.collect()
    tracemalloc.start()
    trie = CONTENDERS["mlx-lm PromptTrie"]()
    for tokens in given:
        trie.insert(tokens)
    per_token = tracemalloc.get_traced_memory()[0] / (size * count)
    tracemalloc.stop()
    yield Line(
        "memory", "16 prompts of 8,192 tokens", size * count, "mlx-lm PromptTrie", per_token, per_token
    )


SECTIONS = (lookup, insert, stored, evict, chat, memory)


def run(say: Callable[[str], None], wanted: list[str]) -> Iterator[Line]:
    gc.collect()
    gc.disable()
    for section in SECTIONS:
        if not wanted or section.__name__ in wanted:
            yield from section(say)
    gc.enable()
