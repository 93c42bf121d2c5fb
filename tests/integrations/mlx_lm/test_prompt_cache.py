"""What an engine may rely on in mlx-lm's LRUPromptCache holds here as well; its faults do not."""

from __future__ import annotations

import inspect
import random

import mlx.core as mx
import pytest
from mlx_lm.models.cache import LRUPromptCache

from kvcache import ConfigError, KVPrefixCache
from kvcache.integrations.mlx_lm import PromptCache
from tests.support.layers import KV
from tests.support.memory import given_back, weigh
from tests.support.models import MODELS, SPANS, prompt
from tests.support.poskv import PosKV

MODEL = ("some/model", None, None)


@pytest.fixture
def model() -> PosKV:
    return MODELS["kv"]()


def _put(cache: PromptCache, model: PosKV, tokens: list[int], **options: object) -> object:
    # All of them were run: a model that does not count needs to be told, and the others may be.
    return cache.insert_cache(MODEL, tokens, model.filled(tokens), length=len(tokens), **options)


def _got(cache: PromptCache, model: PosKV, tokens: list[int]) -> int:
    """The length of a fetch, whose cache and rest are checked."""
    found, rest = cache.fetch_nearest_cache(MODEL, tokens)
    length = len(tokens) - len(rest)
    assert rest == tokens[length:]
    assert (found is None) == (length == 0)
    if found is not None:
        model.check(found, tokens[:length])
    return length


@pytest.mark.parametrize("name", ["__init__", "fetch_nearest_cache", "insert_cache", "trim_to"])
def test_the_same_arguments_under_the_same_names(name: str) -> None:
    theirs = inspect.signature(getattr(LRUPromptCache, name)).parameters
    ours = inspect.signature(getattr(PromptCache, name)).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    assert [ours[each].kind for each in theirs] == [each.kind for each in theirs.values()]


def test_the_same_public_members() -> None:
    theirs = {name for name in vars(LRUPromptCache(10)) if not name.startswith("_")}
    methods = {name for name, _ in inspect.getmembers(LRUPromptCache, callable) if not name.startswith("_")}
    methods -= {"CacheEntry", "CacheOrder"}
    assert all(hasattr(PromptCache(10), name) for name in theirs | methods | {"nbytes", "__len__"})


def test_an_empty_cache(model: PosKV) -> None:
    cache = PromptCache()
    assert (len(cache), cache.nbytes) == (0, 0)
    assert cache.fetch_nearest_cache(MODEL, [1, 2]) == (None, [1, 2])
    assert cache.fetch_nearest_cache(MODEL, []) == (None, [])
    assert not cache.trim_to(n_sequences=0, n_bytes=0)
    assert _got(cache, model, [1]) == 0


@pytest.mark.parametrize("name", SPANS)
def test_exact_shorter_longer_and_diverging(name: str) -> None:
    model, cache, tokens = MODELS[name](), PromptCache(), prompt(50)
    _put(cache, model, tokens)
    assert _got(cache, model, tokens) == 49
    assert _got(cache, model, tokens[:20]) == 19
    assert _got(cache, model, [*tokens, 7, 8]) == 50
    assert _got(cache, model, [*tokens[:30], 7, 8]) == 30
    assert _got(cache, model, [7, *tokens]) == 0


@pytest.mark.parametrize("name", sorted(set(MODELS) - set(SPANS)))
def test_models_that_need_checkpoints(name: str) -> None:
    model, cache, tokens = MODELS[name](), PromptCache(), prompt(50)
    for length in (20, 49, 50):
        _put(cache, model, tokens[:length])
    assert _got(cache, model, tokens) == 49
    assert _got(cache, model, [*tokens, 7, 8]) == 50
    assert _got(cache, model, [*tokens[:30], 7, 8]) == 20


@pytest.mark.parametrize("name", MODELS)
def test_a_prefix_of_one_token_is_found(name: str) -> None:
    model, cache = MODELS[name](), PromptCache()
    _put(cache, model, [5])
    assert _got(cache, model, [5, 6]) == 1
    assert _got(cache, model, [5]) == 0


@pytest.mark.parametrize("name", MODELS)
def test_what_is_handed_out_is_the_callers(name: str) -> None:
    model, cache, tokens = MODELS[name](), PromptCache(), prompt(30)
    given = model.filled(tokens)
    cache.insert_cache(MODEL, tokens, given, length=len(tokens))
    model.grow(given, [9, 9])
    for _ in range(2):
        found, rest = cache.fetch_nearest_cache(MODEL, [*tokens, 1])
        assert rest == [1]
        model.check(found, tokens)
        model.grow(found, [4, 4, 4])


def test_the_tokens_keep_their_type(model: PosKV) -> None:
    cache, tokens = PromptCache(), prompt(10)
    _put(cache, model, tokens)
    found, rest = cache.fetch_nearest_cache(MODEL, tuple(tokens))
    assert rest == (tokens[9],)
    found, rest = cache.fetch_nearest_cache(MODEL, mx.array(tokens))
    assert rest.tolist() == [tokens[9]]
    model.check(found, tokens[:9])


def test_the_least_recently_used_goes_first(model: PosKV) -> None:
    cache = PromptCache(max_size=2)
    one, two, three = (prompt(20, first) for first in (1, 2, 3))
    _put(cache, model, one)
    _put(cache, model, two)
    assert _got(cache, model, one) == 19
    _put(cache, model, three)
    assert len(cache) == 2
    assert [_got(cache, model, each) for each in (one, two, three)] == [19, 0, 19]


def test_inserting_again_counts_once_and_refreshes(model: PosKV) -> None:
    cache = PromptCache(max_size=2)
    one, two, three = (prompt(20, first) for first in (1, 2, 3))
    for tokens in (one, two, one, three):
        _put(cache, model, tokens)
    assert len(cache) == 2
    assert [_got(cache, model, each) for each in (one, two, three)] == [19, 0, 19]


def test_a_growing_chat_is_one_sequence(model: PosKV) -> None:
    cache = PromptCache(max_size=3)
    chats = [prompt(100, first) for first in range(3)]
    for length in range(10, 100, 10):
        for chat in chats:
            _put(cache, model, chat[:length])
    assert len(cache) == 3
    assert [_got(cache, model, [*chat[:90], 7]) for chat in chats] == [90, 90, 90]
    _put(cache, model, prompt(10, 9))
    assert len(cache) == 3
    _put(cache, model, prompt(10, 8))
    # Of the two oldest chats nothing counts any more; a head that is left goes before the third does.
    assert len(cache) == 3
    assert _got(cache, model, [*chats[2][:90], 7]) == 90
    cache.cache.validate()


def test_every_checkpoint_counts_where_models_need_them() -> None:
    model, cache, tokens = MODELS["arrays"](), PromptCache(max_size=2), prompt(30)
    for length in (10, 20, 30):
        _put(cache, model, tokens[:length])
    assert len(cache) == 2
    assert _got(cache, model, [*tokens, 1]) == 30
    assert _got(cache, model, [*tokens[:25], 1]) == 20


def test_no_limit_on_sequences(model: PosKV) -> None:
    cache = PromptCache(max_size=None)
    for first in range(30):
        _put(cache, model, prompt(4, first))
    assert len(cache) == 30
    assert len(PromptCache(0)) == 0


def test_a_size_of_zero_keeps_nothing(model: PosKV) -> None:
    cache = PromptCache(max_size=0)
    _put(cache, model, prompt(10))
    assert (len(cache), cache.nbytes) == (0, 0)


@pytest.mark.parametrize("name", MODELS)
def test_never_over_the_byte_limit(name: str) -> None:
    model = MODELS[name]()
    limit = 3 * model.nbytes(40)
    cache = PromptCache(max_size=100, max_bytes=limit)
    for first in range(40):
        _put(cache, model, prompt(7 + first % 30, first))
        assert 0 < cache.nbytes <= limit
    assert _got(cache, model, [*prompt(16, 39), 5]) == 16
    cache.cache.validate()


@pytest.mark.parametrize("name", MODELS)
def test_an_oversize_entry_pushes_nothing_out(name: str) -> None:
    model = MODELS[name]()
    limit = model.nbytes(100)
    cache = PromptCache(max_bytes=limit)
    for first in (1, 2):
        _put(cache, model, prompt(20, first))
    stored = _put(cache, model, prompt(5000))
    # The window of a rotating layer may make 5000 tokens no larger than 100; those of a state are not.
    if model.nbytes(5000) <= limit:
        assert stored.reason == "stored"
        return
    assert stored.reason in {"truncated", "too_large"}
    assert stored.detail
    assert not stored.evicted
    assert [_got(cache, model, [*prompt(20, first), 7]) for first in (1, 2)] == [20, 20]
    assert cache.nbytes <= limit


def test_an_oversize_entry_fills_free_room(model: PosKV) -> None:
    tokens = prompt(5000)
    cache = PromptCache(max_bytes=model.nbytes(3000))
    assert _put(cache, model, tokens).length == 3000
    assert _got(cache, model, tokens) == 3000
    assert _put(cache, model, tokens).length == 3000
    cache = PromptCache(max_bytes=model.nbytes(3000))
    _put(cache, model, prompt(500, 9))
    assert 1000 < _put(cache, model, tokens).length < 2500
    assert _got(cache, model, [*prompt(500, 9), 1]) == 500


def test_a_shared_prefix_is_held_once(model: PosKV) -> None:
    cache, system = PromptCache(), prompt(1000)
    for first in range(1, 5):
        _put(cache, model, system + prompt(50, first))
    assert cache.nbytes == model.nbytes(1200)
    assert len(cache) == 4


def test_evicted_memory_comes_back(model: PosKV) -> None:
    cache = PromptCache(max_size=100)
    for first in range(5):
        _put(cache, model, prompt(100, first))
    before, held = weigh(cache.cache), cache.nbytes
    evicted = cache.trim_to(n_bytes=held // 2)
    assert cache.nbytes <= held // 2
    assert evicted.nbytes == held - cache.nbytes
    assert given_back(before, cache.cache) == evicted.freed


def test_trimming(model: PosKV) -> None:
    cache = PromptCache(max_size=100)
    for first in range(6):
        _put(cache, model, prompt(30, first))
    assert cache.trim_to(n_sequences=4).cycles == 1
    assert [_got(cache, model, prompt(30, first)) for first in range(6)] == [0, 0, 29, 29, 29, 29]
    cache.trim_to(n_bytes=model.nbytes(60))
    assert (len(cache), cache.nbytes) == (2, model.nbytes(60))
    cache.trim_to()
    cache.trim_to(n_sequences=1 << 63, n_bytes=1 << 63)
    assert len(cache) == 2
    cache.trim_to(n_bytes=-5)
    assert (len(cache), cache.nbytes) == (0, 0)
    _put(cache, model, prompt(30))
    cache.trim_to(n_sequences=-1)
    assert (len(cache), cache.nbytes) == (0, 0)


def test_types_are_labels(model: PosKV) -> None:
    cache, system = PromptCache(), prompt(40)
    assert list(cache.stats_by_type()) == ["assistant", "user", "system"]
    _put(cache, model, system, cache_type="system")
    _put(cache, model, system + prompt(10, 1), cache_type="user")
    _put(cache, model, system + prompt(10, 2))
    stats = cache.stats_by_type()
    assert {name: figures["n_bytes"] for name, figures in stats.items()} == {
        "assistant": model.nbytes(10),
        "user": model.nbytes(10),
        "system": model.nbytes(40),
    }
    assert {name: figures["n_sequences"] for name, figures in stats.items()} == {
        "assistant": 1,
        "user": 1,
        "system": 0,  # two longer ones continue it
    }
    assert sum(figures["n_bytes"] for figures in stats.values()) == cache.nbytes
    assert sum(figures["n_sequences"] for figures in stats.values()) == len(cache)


def test_types_do_not_order_evictions(model: PosKV) -> None:
    cache = PromptCache(max_size=2)
    for first, cache_type in enumerate(("system", "assistant", "user")):
        _put(cache, model, prompt(10, first), cache_type=cache_type)
    assert [_got(cache, model, prompt(10, first)) for first in range(3)] == [0, 9, 9]


@pytest.mark.parametrize("cache_type", ["tool", "", None, 3, "System"])
def test_an_unknown_type_is_one_sentence(model: PosKV, cache_type: object) -> None:
    cache = PromptCache()
    with pytest.raises(ConfigError, match=r"^cache_type must be one of 'assistant', 'user', 'system', found"):
        _put(cache, model, [1, 2], cache_type=cache_type)
    assert len(cache) == 0


def test_models_never_mix(model: PosKV) -> None:
    cache, tokens = PromptCache(max_size=100), prompt(20)
    names = [
        ("a", None, None), ("a", "None", None), "('a', None, None)", ("a", "b", None), ("a", None, "b"),
        ("a,b",), ("a", "b"), (("a",), "b"), "a", b"a", None, "None", 1, "1", 1.5, frozenset("a"),
    ]  # fmt: skip
    for at, name in enumerate(names):
        assert cache.fetch_nearest_cache(name, tokens)[0] is None, name
        cache.insert_cache(name, [*tokens[:10], at], model.filled([*tokens[:10], at]))
    for at, name in enumerate(names):
        assert cache.fetch_nearest_cache(name, [*tokens[:10], at, 1])[1] == [1]


def test_a_model_that_cannot_be_hashed() -> None:
    with pytest.raises(TypeError, match=r"^model must be hashable, found list$"):
        PromptCache().fetch_nearest_cache(["a"], [1, 2])


@pytest.mark.parametrize("lag", [1, 2, 5])
def test_main_and_draft_out_of_step(lag: int) -> None:
    main, draft = PosKV(KV(), KV()), PosKV(KV(heads=1))
    tokens, cache = prompt(54), PromptCache()
    both = main.filled(tokens) + draft.filled(tokens[:-lag])
    stored = cache.insert_cache(MODEL, tokens, both)
    assert (stored.reason, stored.length) == ("stored", 54 - lag)
    found, rest = cache.fetch_nearest_cache(MODEL, [*tokens, 1])
    assert len(rest) == lag + 1
    main.check(found[:2], tokens[:-lag])
    draft.check(found[2:], tokens[:-lag])
    # The tokens may end where the draft model does.
    assert cache.insert_cache(MODEL, tokens[:-lag], both).length == 54 - lag


def test_a_key_longer_than_the_cache_is_cut(model: PosKV) -> None:
    cache, tokens = PromptCache(), prompt(20)
    assert cache.insert_cache(MODEL, [*tokens, 7], model.filled(tokens)).length == 20
    assert _got(cache, model, [*tokens, 7, 8]) == 20


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"state-only"}))
def test_tokens_shorter_than_the_cache_are_refused(name: str) -> None:
    model, cache, tokens = MODELS[name](), PromptCache(), prompt(20)
    _put(cache, model, tokens[:5])
    before = cache.nbytes
    stored = cache.insert_cache(MODEL, tokens[:15], model.filled(tokens))
    assert stored.reason == "key_too_short"
    assert "15 tokens are too few for a cache that holds 20" in stored.detail
    assert (cache.nbytes, len(cache)) == (before, 1)


def test_an_empty_cache_is_refused(model: PosKV) -> None:
    cache = PromptCache(max_bytes="1MB")
    assert cache.insert_cache(MODEL, [1, 2], model.make_cache()).reason == "empty"
    assert cache.insert_cache(MODEL, [], []).reason == "empty"
    with pytest.raises(TypeError, match="prompt_cache must be a list"):
        cache.insert_cache(MODEL, [1, 2], None)


def test_images_are_told_apart_by_content(model: PosKV) -> None:
    cache, text = PromptCache(), prompt(10)
    cat, dog = -1 - (1 << 59), -77
    pictured = [*text, *[cat] * 6, *[dog] * 6, 5, 6]
    plain = [max(token, 0) for token in pictured]
    cache.insert_cache(MODEL, pictured, model.filled(plain))
    assert [_length(cache, each) for each in (pictured, [*pictured, 1])] == [23, 24]
    assert _length(cache, [*text, *[dog] * 6, *[dog] * 6, 5, 6]) == 10
    assert _length(cache, [*text, *[cat] * 6, *[cat] * 6, 5, 6]) == 10
    assert _length(cache, [*text, *[cat] * 6, *[dog] * 7, 5]) == 16
    # A match never ends inside an image.
    assert _length(cache, [*text, *[cat] * 6, *[dog] * 3]) == 16
    assert _length(cache, plain) == 10


def _length(cache: PromptCache, tokens: list[int]) -> int:
    _, rest = cache.fetch_nearest_cache(MODEL, tokens)
    return len(tokens) - len(rest)


def test_a_lack_of_memory_is_a_miss(model: PosKV, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, tokens = PromptCache(), prompt(20)
    _put(cache, model, tokens)
    prompt_cache = model.filled(prompt(20, 1))

    def fail(_arrays: object) -> None:
        raise RuntimeError("[malloc] Unable to allocate 1 bytes.")

    monkeypatch.setattr("kvcache.arrays.evaluate", fail)
    assert cache.fetch_nearest_cache(MODEL, tokens) == (None, tokens)
    assert cache.last_fetch.tokens is tokens
    stored = cache.insert_cache(MODEL, prompt(20, 1), prompt_cache)
    assert (stored.reason, stored.length) == ("too_large", 0)
    cache.cache.validate()


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"max_size": -1}, ConfigError, "max_size must not be negative, found -1"),
        ({"max_size": "3"}, TypeError, "max_size must be an int, found str"),
        ({"max_bytes": -1}, ConfigError, "max_bytes must be from 0 to"),
        ({"max_bytes": "8 gigs"}, ConfigError, "max_bytes must be a size like '4GB'"),
        ({"gc": "never"}, ConfigError, "gc must be 'auto', 'always' or 'full'"),
    ],
)
def test_bad_limits(options: dict[str, object], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        PromptCache(**options)


def test_mlx_lms_own_default_is_no_limit() -> None:
    assert PromptCache(10, 1 << 63).max_bytes is None
    assert PromptCache(10, "1.5kB").max_bytes == 1500


def test_never_less_than_mlx_lms_own(model: PosKV) -> None:
    """Unlimited, on random chats: what theirs finds, this finds; beyond an exact repeat also more."""
    rng = random.Random(5)
    ours, theirs = PromptCache(None), LRUPromptCache(10**6)
    known = [prompt(12)]
    for _ in range(120):
        base = rng.choice(known)
        tokens = base[: rng.randint(2, len(base))] + [rng.randrange(3) for _ in range(rng.randint(0, 6))]
        _, rest = theirs.fetch_nearest_cache(MODEL, tokens)
        assert _got(ours, model, tokens) >= min(len(tokens) - len(rest), len(tokens) - 1)
        known.append(tokens)
        prompt_cache = model.filled(tokens)
        ours.insert_cache(MODEL, tokens, prompt_cache)
        theirs.insert_cache(MODEL, tokens, prompt_cache)
        # mlx-lm counts the beginning of a longer sequence once more where it was inserted later.
        ends = {tuple(one) for one in known[1:]}
        begun = {other[: len(one)] for one in ends for other in ends if len(other) > len(one)}
        assert len(ours) == len(ends - begun) <= len(theirs)
    ours.cache.validate()


@pytest.mark.parametrize("name", ["kv", "arrays", "all"])
def test_random_use_within_tight_limits(name: str) -> None:
    rng, model = random.Random(name), MODELS[name]()
    limit = 4 * model.nbytes(25)
    cache = PromptCache(5, limit)
    known = [prompt(10)]
    for step in range(150):
        base = rng.choice(known[-8:])
        tokens = base[: rng.randint(1, len(base))] + [rng.randrange(4) for _ in range(rng.randint(1, 12))]
        known.append(tokens)
        _got(cache, model, tokens)
        _put(cache, model, tokens, cache_type=rng.choice(("assistant", "user", "system")))
        assert len(cache) <= 5
        assert cache.nbytes <= limit
        if step % 10 == 0:
            cache.cache.validate()
    assert isinstance(cache.cache, KVPrefixCache)
    cache.cache.validate()
