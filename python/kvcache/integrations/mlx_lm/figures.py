"""Figures of a running server: Prometheus metrics and a JSON object."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from kvcache._core import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from kvcache.integrations.mlx_lm.prompt_cache import PromptCache

_NAMESPACES: Final = 10
# Name in Prometheus, field of Stats, what it says.
_COUNTERS: Final = (
    ("kvcache_lookups", "lookups", "Requests that looked for a stored prefix"),
    ("kvcache_hits", "hits", "Lookups that reused at least one token"),
    ("kvcache_lookup_tokens", "lookup_tokens", "Prompt tokens looked up"),
    ("kvcache_hit_tokens", "hit_tokens", "Prompt tokens reused"),
    ("kvcache_stores", "stores", "Calls to store, including those that only change a label"),
    ("kvcache_stored_tokens", "stored_tokens", "Tokens of KV copied into the cache"),
    ("kvcache_evictions", "evictions", "Segments and checkpoints evicted"),
    ("kvcache_evicted_tokens", "evicted_tokens", "Tokens of KV evicted"),
    ("kvcache_evicted_bytes", "evicted_bytes", "Bytes evicted, by the ledger"),
    ("kvcache_reclaim_cycles", "reclaim_cycles", "Eviction cycles, each with one reclaim"),
    ("kvcache_reclaim_seconds", "reclaim_seconds", "Time spent giving evicted memory back"),
)
_GAUGES: Final = (
    ("kvcache_bytes", "nbytes", "Bytes held, by the ledger"),
    ("kvcache_tokens", "ntokens", "Tokens of KV held; a shared prefix counts once"),
    ("kvcache_segments", "segments", "Segments held"),
    ("kvcache_checkpoints", "checkpoints", "Checkpoints held"),
    ("kvcache_buffers", "buffers", "MLX arrays held"),
    ("kvcache_index_bytes", "index_bytes", "Heap bytes of the native index"),
)
_BY_REASON: Final = (
    ("kvcache_misses", "misses_by_reason", "Lookups that reused nothing"),
    ("kvcache_refused_stores", "refused_by_reason", "Stores that kept less than all or nothing"),
)


def memory() -> dict[str, int]:
    """MLX's own counters, in bytes."""
    return {
        "active": mx.get_active_memory(),
        "cached": mx.get_cache_memory(),
        "peak": mx.get_peak_memory(),
    }


def as_json(prompt_cache: PromptCache) -> dict[str, Any]:
    """Version, limits, figures, and the namespaces that hold the most bytes."""
    cache = prompt_cache.cache
    spaces = []
    for model, name in prompt_cache.namespaces.items():
        stats = cache.stats(name)
        if stats.nbytes:
            fields = ("nbytes", "ntokens", "sequences", "lookups", "hits", "lookup_tokens", "hit_tokens")
            spaces.append({"model": _readable(model)} | {field: getattr(stats, field) for field in fields})
    spaces.sort(key=lambda space: space["nbytes"], reverse=True)
    return {
        "version": __version__,
        "limits": {"max_size": prompt_cache.max_size, "max_bytes": prompt_cache.max_bytes},
        "sequences": len(prompt_cache),
        "by_type": prompt_cache.stats_by_type(),
        "stats": asdict(cache.stats()),
        "memory": memory(),
        "largest_namespaces": spaces[:_NAMESPACES],
    }


def as_metrics(prompt_cache: PromptCache) -> bytes:
    """The figures in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Figures(prompt_cache))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, prompt_cache: PromptCache) -> None:
        self._prompt_cache = prompt_cache

    def collect(self) -> Iterator[Metric]:
        stats = self._prompt_cache.cache.stats()
        for name, field, text in _COUNTERS:
            yield CounterMetricFamily(name, text, value=getattr(stats, field))
        for name, field, text in _GAUGES:
            yield GaugeMetricFamily(name, text, value=getattr(stats, field))
        for name, field, text in _BY_REASON:
            family = CounterMetricFamily(name, text, labels=["reason"])
            for reason, count in sorted(getattr(stats, field).items()):
                family.add_metric([reason], count)
            yield family
        if self._prompt_cache.max_bytes is not None:
            limit = self._prompt_cache.max_bytes
            yield GaugeMetricFamily("kvcache_limit_bytes", "Bytes that may be held", value=limit)
        yield from self._by_type()
        mlx = GaugeMetricFamily("mlx_memory_bytes", "MLX's own counters", labels=["kind"])
        for kind, nbytes in memory().items():
            mlx.add_metric([kind], nbytes)
        yield mlx

    def _by_type(self) -> Iterator[Metric]:
        sequences = GaugeMetricFamily("kvcache_sequences", "Sequences held", labels=["type"])
        nbytes = GaugeMetricFamily("kvcache_type_bytes", "Bytes held by who stored them", labels=["type"])
        for cache_type, figures in self._prompt_cache.stats_by_type().items():
            sequences.add_metric([cache_type], figures["n_sequences"])
            nbytes.add_metric([cache_type], figures["n_bytes"])
        yield sequences
        yield nbytes


def _readable(model: Any) -> Any:
    """mlx-lm's server names a model by a tuple of texts; anything else is shown as it prints."""
    if isinstance(model, tuple):
        return [_readable(part) for part in model]
    return model if model is None or isinstance(model, str) else repr(model)
