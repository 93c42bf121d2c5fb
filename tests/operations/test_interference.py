"""Other threads that change the tree between a store's copies and its commit."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from kvcache import ClosedError, KVPrefixCache
from kvcache.operations import store as storing
from tests.support.failures import assert_settled
from tests.support.memory import active, charged, charges
from tests.support.models import MODELS, prompt
from tests.support.patience import PATIENCE
from tests.support.poskv import held, nbytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.poskv import PosKV


OLD = prompt(40), prompt(20) + prompt(30, first=1), prompt(25, first=2)


kinds = pytest.mark.parametrize("kind", ["kv", "rotating-keep", "all"])


def _cache(model: PosKV, **options: Any) -> KVPrefixCache:
    cache = KVPrefixCache(segment_tokens=16, **options)
    for tokens in OLD:
        assert cache.store(tokens, model.filled(tokens)).reason == "stored"
    return cache


def _meanwhile(monkeypatch: pytest.MonkeyPatch, action: Callable[[], Any]) -> None:
    """Runs ``action`` in another thread between the next store's copies and its commit."""
    cut = storing.cut

    def interrupted(*arguments: Any) -> Any:
        monkeypatch.setattr(storing, "cut", cut)
        copies = cut(*arguments)
        thread = threading.Thread(target=action)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the store holds a lock while it copies"
        return copies

    monkeypatch.setattr(storing, "cut", interrupted)


@kinds
@pytest.mark.parametrize("donate", [False, True])
def test_a_cache_closed_during_a_store(kind: str, donate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, base = MODELS[kind](), active()
    cache = _cache(model)
    _meanwhile(monkeypatch, cache.close)
    tokens = prompt(30) + [5]
    prompt_cache = model.filled(tokens)
    with pytest.raises(ClosedError):
        cache.store(tokens, prompt_cache, donate=donate)
    with pytest.raises(ClosedError):
        cache.fetch(tokens)
    own = nbytes(prompt_cache)
    assert own == 0 or not donate or kind == "all"
    assert active() - base == charges(held(prompt_cache))
    cache.close()


@kinds
@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("meanwhile", ["same", "longer", "drop", "evict", "other"])
def test_a_tree_that_changed_during_a_store(
    kind: str, donate: bool, meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, base = MODELS[kind](), active()
    cache = _cache(model)
    tokens = prompt(30) + [5, 6]
    actions: dict[str, Callable[[], Any]] = {
        "same": lambda: cache.store(tokens, model.filled(tokens)),
        "longer": lambda: cache.store([*tokens, 9], model.filled([*tokens, 9])),
        "drop": lambda: cache.drop(""),
        "evict": lambda: cache.evict(cache.nbytes),
        "other": lambda: cache.store([*prompt(30), 7], model.filled([*prompt(30), 7])),
    }
    _meanwhile(monkeypatch, actions[meanwhile])
    prompt_cache = model.filled(tokens)
    stored = cache.store(tokens, prompt_cache, donate=donate)
    assert_settled(cache)
    hit = cache.fetch([*tokens, 1])
    model.check(hit.prompt_cache or model.make_cache(), tokens[: hit.length])
    assert stored.length == hit.length
    lossless = {"same", "evict", *(["longer"] if model.spans else [])}
    if not donate or meanwhile in lossless:
        assert stored.length == len(tokens)
    assert stored.reason in (("already", "truncated", "stored") if donate else ("already", "stored"))
    if not donate:
        model.check(prompt_cache, tokens)
    del hit, prompt_cache
    assert active() - base == charged(cache)
