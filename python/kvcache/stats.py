"""Statistics: counters of what calls returned, and the index's figures."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from kvcache.eviction import Eviction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcache._core import IndexStats
    from kvcache.results import Hit, Stored

# Counters are kept for this many of the most recently used namespaces.
_MAX_NAMESPACES: Final = 1024


class LabelFigures(NamedTuple):
    """Figures of what is held under one label.

    Attributes:
        sequences: Stored sequences: distinct ends of stores that are still fully present.
        entries: Sequences that no other one continues; for models that need checkpoints, all sequences.
        ntokens: Tokens, counted under the label that stored them first.
        nbytes: Bytes, counted likewise.
    """

    sequences: int
    entries: int
    ntokens: int
    nbytes: int


@dataclass(frozen=True)
class Stats:
    """Figures of a cache or of one namespace. Counters equal what calls returned.

    Attributes:
        lookups: Fetches.
        hits: Fetches that reused at least one token.
        lookup_tokens: Tokens asked for by fetches.
        hit_tokens: Tokens reused.
        misses_by_reason: Fetches that reused nothing, by ``Hit.reason``.
        stores: Calls of store.
        stored_tokens: Tokens of KV copied by stores.
        refused_by_reason: Stores that ended neither "stored" nor "already", by ``Stored.reason``.
        evictions: Segments and checkpoints evicted.
        evicted_tokens: Tokens evicted.
        evicted_bytes: Bytes evicted, by the ledger.
        reclaim_cycles: Eviction cycles.
        reclaim_seconds: Time spent reclaiming memory.
        nbytes: Bytes held now, by the ledger.
        ntokens: Tokens of KV held now; a shared prefix counts once.
        nodes: Nodes of the tree.
        segments: Segments held.
        checkpoints: Checkpoints held.
        buffers: MLX arrays held.
        sequences: Stored sequences: distinct ends of stores that are still fully present.
        entries: Sequences that no other one continues; for models that need checkpoints, all sequences.
        index_bytes: Heap bytes of the native index; 0 for a single namespace.
        by_label: Figures of each label used; empty for a single namespace.

    Evictions do not belong to a single namespace, so a namespace's figures are 0 for them.
    """

    lookups: int = 0
    hits: int = 0
    lookup_tokens: int = 0
    hit_tokens: int = 0
    misses_by_reason: Mapping[str, int] = field(default_factory=dict)
    stores: int = 0
    stored_tokens: int = 0
    refused_by_reason: Mapping[str, int] = field(default_factory=dict)
    evictions: int = 0
    evicted_tokens: int = 0
    evicted_bytes: int = 0
    reclaim_cycles: int = 0
    reclaim_seconds: float = 0.0
    nbytes: int = 0
    ntokens: int = 0
    nodes: int = 0
    segments: int = 0
    checkpoints: int = 0
    buffers: int = 0
    sequences: int = 0
    entries: int = 0
    index_bytes: int = 0
    by_label: Mapping[str, LabelFigures] = field(default_factory=dict)


@dataclass
class _Use:
    """Counters of lookups and stores."""

    lookups: int = 0
    hits: int = 0
    lookup_tokens: int = 0
    hit_tokens: int = 0
    misses: Counter[str] = field(default_factory=Counter)
    stores: int = 0
    stored_tokens: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def fetched(self, hit: Hit, tokens: int) -> None:
        self.lookups += 1
        self.lookup_tokens += tokens
        self.hit_tokens += hit.length
        if hit.length:
            self.hits += 1
        else:
            self.misses[hit.reason] += 1

    def stored(self, stored: Stored) -> None:
        self.stores += 1
        self.stored_tokens += stored.new_tokens
        if stored.reason not in ("stored", "already"):
            self.refused[stored.reason] += 1


class Counters:
    """Counts what calls return; the caller holds the cache's lock."""

    def __init__(self) -> None:
        self._total = _Use()
        self._by_namespace: OrderedDict[str, _Use] = OrderedDict()
        self._evicted = Eviction()

    def fetched(self, namespace: str, hit: Hit, tokens: int) -> None:
        """Counts a fetch of ``tokens``."""
        self._total.fetched(hit, tokens)
        self._use(namespace).fetched(hit, tokens)

    def stored(self, namespace: str, stored: Stored) -> None:
        """Counts a store; what it evicted is counted by :meth:`evicted`."""
        self._total.stored(stored)
        self._use(namespace).stored(stored)

    def evicted(self, eviction: Eviction) -> None:
        """Counts an eviction cycle."""
        self._evicted += eviction

    def forget(self, namespace: str) -> None:
        """Drops a namespace's counters."""
        self._by_namespace.pop(namespace, None)

    def stats(self, index: IndexStats, namespace: str | None, by_label: Mapping[str, LabelFigures]) -> Stats:
        """Combines the counters with the index's figures."""
        use = self._total if namespace is None else self._by_namespace.get(namespace, _Use())
        evicted = self._evicted if namespace is None else Eviction()
        return Stats(
            lookups=use.lookups,
            hits=use.hits,
            lookup_tokens=use.lookup_tokens,
            hit_tokens=use.hit_tokens,
            misses_by_reason=dict(use.misses),
            stores=use.stores,
            stored_tokens=use.stored_tokens,
            refused_by_reason=dict(use.refused),
            evictions=evicted.segments + evicted.checkpoints,
            evicted_tokens=evicted.tokens,
            evicted_bytes=evicted.nbytes,
            reclaim_cycles=evicted.cycles,
            reclaim_seconds=evicted.seconds,
            nbytes=index.nbytes,
            ntokens=index.ntokens,
            nodes=index.nodes,
            segments=index.segments,
            checkpoints=index.checkpoints,
            buffers=index.buffers,
            sequences=index.sequences,
            entries=index.entries,
            index_bytes=index.index_bytes,
            by_label=by_label,
        )

    def _use(self, namespace: str) -> _Use:
        use = self._by_namespace.setdefault(namespace, _Use())
        self._by_namespace.move_to_end(namespace)
        if len(self._by_namespace) > _MAX_NAMESPACES:
            self._by_namespace.popitem(last=False)
        return use
