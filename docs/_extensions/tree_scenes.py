"""Scenes for drawings: each runs a real ``KVPrefixCache`` and reads the tree out of its index.

A letter is a token. The index's outline has hashes of paths and no tokens, so a node's letters are looked for
among the sequences stored, and a hash that none of them has is an error: a drawing shows what is there.
"""

# mlx-lm carries no types.
# mypy: allow-untyped-calls

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache

from kvcache import KVPrefixCache
from kvcache._core import Tokens, path_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NODE: Final = re.compile(
    r"(layout (?P<layout>\d+).*)?tokens (?P<start>\d+)\.\.(?P<end>\d+) \((?P<hash>[0-9a-f]{32})\), "
    r"(?P<leases>\d+) leases"
    r"(?P<checkpoint>, checkpoint with \d+ leases)?"
)
_WIDTH: Final = 4


@dataclass
class Node:
    """One node of the tree.

    Attributes:
        letters: Its own tokens.
        path: All tokens from the root to its end.
        checkpoint: Whether there is a checkpoint at its end.
        age: Its place in the eviction order, 1 is the next victim; None where it is no unit of its own.
        is_new: Whether the last step copied it.
        children: By first token.
    """

    letters: str
    path: str
    checkpoint: bool
    age: int | None = None
    is_new: bool = False
    children: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Frame:
    """The tree after one step.

    Attributes:
        title: What was done.
        note: What the call returned and what the ledger says.
        roots: The root's children.
    """

    title: str
    note: str
    roots: list[Node]


def split() -> list[Frame]:
    """A store, a store that parts from it inside a node, and an eviction."""
    with KVPrefixCache(segment_tokens=4) as cache:
        scene = _Scene(cache, lambda: [KVCache()])
        scene.store("abcdef")
        scene.store("abxy")
        scene.evict(1)
        return scene.frames


def checkpoints() -> list[Frame]:
    """A model with a state layer: a checkpoint in mid-prompt, one at its end, and an eviction."""
    with KVPrefixCache(segment_tokens=4) as cache:
        scene = _Scene(cache, lambda: [KVCache(), ArraysCache(1)])
        scene.store("abcd")
        scene.store("abcdefg")
        scene.evict(1)
        return scene.frames


SCENES: Final[dict[str, Callable[[], list[Frame]]]] = {"split": split, "checkpoints": checkpoints}


class _Scene:
    def __init__(self, cache: KVPrefixCache, make: Callable[[], list[Any]]) -> None:
        self.frames: list[Frame] = []
        self._cache = cache
        self._make = make
        self._stored: list[str] = []

    def store(self, letters: str) -> None:
        """Stores a sequence as a model with these layers would have computed it."""
        layers = self._make()
        for layer in layers:
            if isinstance(layer, ArraysCache):
                layer[0] = mx.ones((1, _WIDTH))
            else:
                layer.update_and_fetch(*(mx.ones((1, 1, len(letters), _WIDTH)) for _ in range(2)))
        self._stored.append(letters)
        done = self._cache.store([ord(letter) for letter in letters], layers)
        assert done.reason == "stored"  # noqa: S101 - else the page would show something else
        self._add(f'store("{letters}")', f"{_count(done.new_tokens, 'new token')}, {done.nbytes} bytes added")

    def evict(self, nbytes: int) -> None:
        """Evicts at least ``nbytes``."""
        done = self._cache.evict(nbytes)
        dropped = f"{_count(done.segments, 'segment')}, {_count(done.tokens, 'token')}"
        if done.checkpoints:
            dropped = f"{_count(done.checkpoints, 'checkpoint')}, {dropped}"
        self._add(f"evict({nbytes})", f"{dropped}, {done.nbytes} bytes dropped")

    def _add(self, title: str, note: str) -> None:
        self._cache.validate()
        lines = self._cache._context.contents.read(lambda index: index.outline())
        roots = _read(lines, self._stored)
        before = {(node.path, node.letters) for node in _walk(self.frames[-1].roots if self.frames else [])}
        for node in _walk(roots):
            node.is_new = (node.path, node.letters) not in before
        held = f"{_count(self._cache.ntokens, 'token')}, {self._cache.nbytes} bytes held"
        self.frames.append(Frame(title, f"{note}; {held}", roots))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _read(lines: list[str], stored: list[str]) -> list[Node]:
    """The tree that the outline's lines describe: nodes in preorder, then the order of eviction."""
    roots: list[Node] = []
    path: list[Node] = []
    by_hash: dict[tuple[int, str], Node] = {}
    age = 0
    for line in lines:
        found = _NODE.search(line)
        if found is None:
            continue
        start, end = int(found["start"]), int(found["end"])
        if line.startswith("unit: "):
            age += 1
            by_hash[start, found["hash"]].age = age
            continue
        while path and len(path[-1].path) > start:
            path.pop()
        above = path[-1].path if path else ""
        fitting = (each for each in stored if each.startswith(above) and len(each) >= end)
        layout = int(found["layout"]).to_bytes(8, "little")
        whole = next(each for each in fitting if _hash(each[:end], layout) == found["hash"])
        node = Node(whole[start:end], whole[:end], found["checkpoint"] is not None)
        (path[-1].children if path else roots).append(node)
        by_hash[start, found["hash"]] = node
        path.append(node)
    return roots


def _walk(nodes: list[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        yield from _walk(node.children)


def _hash(letters: str, layout: bytes) -> str:
    """The hash of a path, as the outline has it."""
    return path_hash(Tokens([ord(letter) for letter in letters]), "", layout).hex()
