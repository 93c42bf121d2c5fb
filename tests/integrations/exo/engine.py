"""What exo's engine does around its prefix cache, in a few lines: for models that need no tokenizer.

A request fetches, prefills all but the last token, rolls the two tokens back that mlx-lm's
generator ran too many, and saves: so a key is two tokens longer than its KV.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, RotatingKVCache

from tests.support.poskv import PosKV, held

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache.integrations.exo import KVPrefixCache

CHUNK = 12
# Hits from here on, of at least half the prompt, are saved by an update. exo's own bound is 1,000.
LEAST_UPDATED = 20


@dataclass
class Snapshot:
    """As exo keeps them: the layers that cannot be cut, None for the others."""

    states: list[Any]
    token_count: int


@dataclass
class Region:
    content_hash: str
    start_pos: int
    end_pos: int


@dataclass
class Turn:
    """How a request went."""

    hit: int
    index: int | None
    exact: bool
    saved: int | None
    cache: list[Any]
    snapshots: list[Snapshot] = field(default_factory=list)


def uncuttable(layer: Any) -> bool:
    if isinstance(layer, CacheList):
        return not layer.is_trimmable()
    return isinstance(layer, ArraysCache | RotatingKVCache)


def _state(layer: Any) -> Any:
    if not uncuttable(layer):
        return None
    if not isinstance(layer, RotatingKVCache):
        return copy.deepcopy(layer)
    if layer.keys is None:
        return None
    state = RotatingKVCache(layer.max_size, layer.keep)
    rows = min(layer.max_size, layer.keys.shape[2])
    state.keys, state.values = (mx.array(side[..., -rows:, :]) for side in (layer.keys, layer.values))
    state.offset, state._idx = layer.offset, rows
    return state


def length(cache: Sequence[Any]) -> int:
    return max(getattr(layer, "offset", layer.size()) for layer in cache)


def snapshot(cache: Sequence[Any]) -> Snapshot:
    return Snapshot([_state(layer) for layer in cache], length(cache))


def prefill(model: Any, tokens: Sequence[int], cache: list[Any]) -> list[Snapshot]:
    """Runs all but the last token, in chunks; a snapshot before, and after each."""
    if not tokens:
        return []
    taken = [snapshot(cache)]
    body, last = tokens[:-1], tokens[-1]
    for start in range(0, len(body), CHUNK):
        run(model, body[start : start + CHUNK], cache)
        taken.append(snapshot(cache))
    run(model, [last], cache)
    run(model, [0], cache)
    for number, layer in enumerate(cache):
        if not uncuttable(layer):
            layer.trim(2)
        elif taken[-1].states[number] is not None:
            cache[number] = copy.deepcopy(taken[-1].states[number])
    return taken if any(map(uncuttable, cache)) else []


def run(model: Any, tokens: Sequence[int], cache: list[Any]) -> Any:
    logits = model(mx.array([tokens]), cache=cache)
    mx.eval(list(held(cache)))
    return logits


def request(
    prefixes: KVPrefixCache,
    model: Any,
    prompt: Sequence[int],
    regions: Sequence[Region] = (),
    tps: float = 0.0,
) -> Turn:
    """One request up to its first new token."""
    tokens = mx.array(prompt)
    cache, rest, index, exact = prefixes.get_kv_cache(model, tokens, media_regions=list(regions))
    hit = len(prompt) - len(rest)
    assert rest.tolist() == list(prompt[hit:])
    assert len(rest) >= 1
    assert (index is None) == (hit == 0)
    if isinstance(model, PosKV):
        model.check(cache, prompt[:hit])
    snapshots = prefill(model, prompt[hit:-1], cache)
    if exact and index is not None:
        tps = prefixes.prefill_tps[index]
    what = {"media_regions": list(regions), "prefill_tps": tps}
    if index is not None and hit >= LEAST_UPDATED and hit >= len(prompt) / 2:
        saved = prefixes.update_kv_cache(index, tokens, list(cache), snapshots, restore_pos=hit, **what)
    else:
        saved = prefixes.add_kv_cache(tokens, list(cache), snapshots, **what)
    prefixes.cache.validate()
    return Turn(hit, index, exact, saved, cache, snapshots)
