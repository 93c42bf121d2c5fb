"""Forward passes that raise between layers, and generations that are broken off: whatever is
stored afterwards is true to its tokens, and the next forward pass on it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .devices import runnable
from .generation import answered, assert_true_to, generate, session
from .runs import BY_NAME, CHUNK, TRUNK, Kinds, chunks, leaves, play

if TYPE_CHECKING:
    from kvcache import KVPrefixCache

    from .runs import Case

PROMPT = 5 * CHUNK + 1
NAMES = [
    "llama",
    "gemma3_text",
    "llama4",
    "qwen3_next",
    "lfm2",
    "falcon_h1",
    "mamba2",
    "rwkv7",
    "recurrent_gemma",
    "longcat_flash_ngram",
    "deepseek_v41",
]

all_kinds = pytest.mark.parametrize("case", [BY_NAME[name] for name in NAMES], ids=NAMES)


class Broken(Exception):
    """What a layer raises in these tests."""


def fail() -> None:
    raise Broken


def break_layer(patch: pytest.MonkeyPatch, model: Any, number: int, passes: int) -> None:
    """After so many passes the next one raises just before this layer."""
    target, left = model.layers[number], passes
    run = type(target).__call__

    def call(layer: Any, *args: Any, **named: Any) -> Any:
        nonlocal left
        if layer is target:
            left -= 1
            if left < 0:
                raise Broken
        return run(layer, *args, **named)

    patch.setattr(type(target), "__call__", call)


def passed(passes: int) -> int:
    """Tokens that the session knows of after so many passes of stream_generate.

    The sixth pass runs the prompt's last token, the seventh the first one generated, and then
    that one is handed out and appended.
    """
    return CHUNK * min(passes, 5) if passes <= 6 else PROMPT + passes - 6


@pytest.mark.pairwise
@all_kinds
@pytest.mark.parametrize("passes", [0, 2, 5, 6, 7])
@pytest.mark.parametrize("caught", [False, True], ids=["raised", "caught"])
@pytest.mark.parametrize("hit", [False, True], ids=["miss", "hit"])
def test_a_pass_raises_between_layers(
    case: Case, model: Any, prefixes: KVPrefixCache, passes: int, caught: bool, hit: bool
) -> None:
    """Whether the exception leaves the session or is caught inside of it."""
    for number in range(len(model.layers)):
        prefixes.clear()
        if hit and passes < 5:
            caches = case.fresh(model)
            play(case, model, caches, chunks(TRUNK, 0, CHUNK))
            prefixes.store(TRUNK[:CHUNK], caches, length=CHUNK)
        tokens, request = TRUNK[:PROMPT], session(prefixes, case, model, TRUNK[:PROMPT])
        with pytest.MonkeyPatch.context() as patch:
            interrupted(patch, model, request, tokens, number, passes, caught)
        assert_true_to(prefixes, case, model, tokens, PROMPT)
        known = passed(passes)
        if Kinds.of(request.prompt_cache).spans_only:
            assert (request.stored.length if request.stored else 0) >= known
        elif not caught:
            # Where no layer of the pass had run, what was known before it is kept.
            known = max(known, request.hit.length)
            assert request.stored is None or request.stored.length == known


def interrupted(patch, model, request, tokens, number, passes, caught) -> None:
    try:
        with request:
            break_layer(patch, model, number, passes - request.hit.length // CHUNK)
            try:
                for token in generate(model, request, 8):
                    request.append(token)
                    tokens.append(token)
            except Broken:
                if not caught:
                    raise
    except Broken:
        assert not caught


@pytest.mark.pairwise
@all_kinds
@pytest.mark.parametrize("appended", [0, 1, 3])
@pytest.mark.parametrize("how", ["break", "raise"])
def test_a_generation_is_broken_off_before_the_token_was_appended(
    case: Case, model: Any, prefixes: KVPrefixCache, appended: int, how: str
) -> None:
    """The caches are then one token ahead of the key."""
    tokens, request = TRUNK[:PROMPT], session(prefixes, case, model, TRUNK[:PROMPT])
    try:
        with request:
            for number, token in enumerate(generate(model, request, 8)):
                if number == appended:
                    if how == "break":
                        break
                    fail()
                request.append(token)
                tokens.append(token)
    except Broken:
        assert how == "raise"
    length = assert_true_to(prefixes, case, model, tokens, PROMPT)
    if Kinds.of(request.prompt_cache).spans_only:
        # Nothing was appended before the sixth pass: the key ends with the prompt all the same.
        assert length == (5 * CHUNK if how == "raise" and not appended else len(tokens))
    else:
        assert (request.stored, length) == (None, 5 * CHUNK)


@all_kinds
def test_a_finished_generation_is_stored_to_its_end(case: Case, model: Any, prefixes: KVPrefixCache) -> None:
    """What the refusals above are measured against."""
    tokens = TRUNK[:PROMPT]
    request = answered(prefixes, case, model, tokens, 4)
    assert len(tokens) == PROMPT + 4
    assert request.stored.length == PROMPT + 4
    assert assert_true_to(prefixes, case, model, tokens, PROMPT) == PROMPT + 4


@all_kinds
@pytest.mark.parametrize("chunk", [0, 2])
def test_plain_store_after_an_interrupted_pass(
    case: Case, model: Any, prefixes: KVPrefixCache, chunk: int
) -> None:
    """Layers that are out of step are refused, or cut where the caller says so."""
    done = chunk * CHUNK
    for number in range(1, len(model.layers)):
        caches = case.fresh(model)
        play(case, model, caches, chunks(TRUNK, 0, done) if done else [])
        with pytest.MonkeyPatch.context() as patch:
            break_layer(patch, model, number, 0)
            with pytest.raises(Broken):
                play(case, model, caches, [("run", TRUNK[done : done + CHUNK])])
        offsets = {cache.offset for cache in leaves(caches) if hasattr(cache, "offset")}
        if len(offsets) < 2:
            continue  # states only, or all that count tokens are on one side of the layer
        refused = prefixes.store(TRUNK[: done + CHUNK], caches)
        assert (refused.reason, refused.length, len(prefixes)) == ("offset_mismatch", 0, 0)
        assert str(min(offsets)) in refused.detail
        assert str(max(offsets)) in refused.detail
        cut = prefixes.store(TRUNK[: done + CHUNK], caches, length=min(offsets))
        why = "empty" if Kinds.of(caches).spans_only else "offset_mismatch"
        if Kinds.of(caches).spans_only and done:
            assert cut.reason == "stored"
            assert assert_true_to(prefixes, case, model, TRUNK[:done], done) == done
        else:
            assert (cut.reason, len(prefixes)) == (why, 0)
        prefixes.clear()


class Slots:
    """States in a class that is not known, and counts no tokens."""

    lengths = left_padding = None

    def __init__(self) -> None:
        self.slots: list[Any] = [None] * 3

    def __getitem__(self, number: int) -> Any:
        return self.slots[number]

    def __setitem__(self, number: int, state: Any) -> None:
        self.slots[number] = state

    @property
    def state(self) -> list[Any]:
        return self.slots


@pytest.mark.parametrize("appended", [0, 2])
def test_a_class_not_known_is_one_token_ahead(
    monkeypatch: pytest.MonkeyPatch, prefixes: KVPrefixCache, appended: int
) -> None:
    case = BY_NAME["rwkv7"]
    model = runnable(case)
    monkeypatch.setattr(type(model), "make_cache", lambda self: [Slots() for _ in self.layers])
    tokens = TRUNK[:PROMPT]
    with session(prefixes, case, model, TRUNK[:PROMPT]) as request:
        for token in generate(model, request, 8):
            if len(tokens) == PROMPT + appended:
                break
            request.append(token)
            tokens.append(token)
    assert assert_true_to(prefixes, case, model, tokens, PROMPT) == 5 * CHUNK
    assert request.stored is None
    request = answered(prefixes, case, model, TRUNK[:PROMPT], 4)
    assert request.stored.length == PROMPT + 4
