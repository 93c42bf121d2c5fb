"""A prefix index of a few lines: nodes in a list by age, matched token by token."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(eq=False)
class Node:
    """A run of at most ``grain`` tokens below another."""

    keys: list[int]
    bytes_per_token: int
    parent: Node | None
    children: list[Node] = field(default_factory=list)
    ends: set[int] = field(default_factory=set)  # where stores ended, in tokens from the root

    def nbytes(self) -> int:
        return len(self.keys) * self.bytes_per_token

    def above(self) -> Iterator[Node]:
        """Itself and its ancestors, the root left out."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class Oracle:
    """Nodes in a list by age, matched token by token. Slow, and short enough to be believed."""

    def __init__(self, max_bytes: int | None, grain: int) -> None:
        self.max_bytes = 10**18 if max_bytes is None else max_bytes
        self.grain = grain
        self.roots: dict[str, Node] = {}
        self.order: list[Node] = []  # from the oldest to the most recently used

    def nbytes(self) -> int:
        return sum(node.nbytes() for node in self.order)

    def ntokens(self) -> int:
        return sum(len(node.keys) for node in self.order)

    def walk(self, namespace: str, tokens: list[int]) -> tuple[int, Node, int]:
        """(tokens matched, deepest node, tokens of it that matched)."""
        node = self.roots.setdefault(namespace, Node([], 0, None))
        matched = inside = 0
        while True:
            rest = tokens[matched:]
            child = next((child for child in node.children if rest[:1] == child.keys[:1]), None)
            if child is None:
                return matched, node, inside
            inside = 0
            while inside < len(child.keys) and rest[inside : inside + 1] == child.keys[inside : inside + 1]:
                inside += 1
            matched, node = matched + inside, child
            if inside < len(child.keys):
                return matched, node, inside

    def touch(self, node: Node) -> None:
        """Leaf first, so that the ancestor ends up the more recent."""
        for each in node.above():
            if each in self.order:
                self.order.remove(each)
            self.order.append(each)

    def match(self, namespace: str, tokens: list[int], touch: bool) -> int:
        matched, node, _ = self.walk(namespace, tokens)
        if touch:
            self.touch(node)
        return matched

    def evict_one(self, spared: set[int]) -> int:
        """The oldest node goes; the order makes it a leaf."""
        node = next(node for node in self.order if id(node) not in spared)
        assert not node.children
        self.order.remove(node)
        node.parent.children.remove(node)
        return node.nbytes()

    def evict(self, nbytes: int) -> int:
        gone = 0
        while gone < nbytes and self.order:
            gone += self.evict_one(set())
        return gone

    def insert(self, namespace: str, tokens: list[int], bytes_per_token: int) -> tuple[int, int]:
        """(tokens held, tokens new). Only for what fits whole."""
        matched, node, inside = self.walk(namespace, tokens)
        if matched == len(tokens):
            node.ends.add(matched)
            self.touch(node)
            self.join(node)
            return matched, 0
        cut = node.keys and inside < len(node.keys)
        new = (len(tokens) - matched) * bytes_per_token
        # Both halves of a split are held beside the whole for a moment.
        need = new + (node.nbytes() if cut else 0)
        spared = {id(each) for each in node.above()}
        while self.nbytes() + need > self.max_bytes:
            self.evict_one(spared)
        if cut:
            upper = Node(node.keys[:inside], node.bytes_per_token, node.parent, [node])
            node.parent.children.remove(node)
            node.parent.children.append(upper)
            node.keys, node.parent = node.keys[inside:], upper
            upper.ends = {end for end in node.ends if end <= matched}
            node.ends -= upper.ends
            # The lease that covered the node ends: leaf first, both at the recent end.
            self.order.append(upper)
            for each in node.above():
                self.order.remove(each)
                self.order.append(each)
            node = upper
        ends = [at for at in range(matched + 1, len(tokens)) if at % self.grain == 0]
        for start, end in pairwise([matched, *ends, len(tokens)]):
            leaf = Node(tokens[start:end], bytes_per_token, node)
            node.children.append(leaf)
            node = leaf
        node.ends.add(len(tokens))
        self.touch(node)
        self.join(node)
        return len(tokens), len(tokens) - matched

    def join(self, node: Node) -> None:
        """From here upwards, what lies in one block with nothing else between becomes one node.

        The end of a store is something, unless both are no more than crumbs.
        """
        while (parent := node.parent) is not None:
            end = sum(len(each.keys) for each in node.above())
            start = sum(len(each.keys) for each in parent.above()) - len(parent.keys)
            if (
                parent.parent is not None
                and (start + len(parent.keys) not in parent.ends or end - start <= self.grain // 16)
                and parent.children == [node]
                and parent.bytes_per_token == node.bytes_per_token
                and start // self.grain == (end - 1) // self.grain
            ):
                parent.parent.children.remove(parent)
                parent.parent.children.append(node)
                node.keys, node.parent = parent.keys + node.keys, parent.parent
                node.ends |= parent.ends
                self.order.remove(parent)
            else:
                node = parent

    def fits(self, namespace: str, tokens: list[int], bytes_per_token: int) -> bool:
        """Whether all of it does beside the path that it hangs on."""
        matched, node, inside = self.walk(namespace, tokens)
        cut = inside < len(node.keys)
        kept = sum(each.nbytes() for each in node.above()) + (node.nbytes() if cut else 0)
        return kept + (len(tokens) - matched) * bytes_per_token <= self.max_bytes
