"""What a session takes from its engine: processors, KV options, tokens, models that do not fit."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx.utils import tree_map
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models import llama, mamba
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache
from mlx_lm.sample_utils import make_logits_processors

from kvcache import ConfigError, KVPrefixCache, MediaSpan
from tests.support.failures import assert_settled
from tests.support.layers import KV, Arrays
from tests.support.models import MODELS, prompt
from tests.support.poskv import PosKV
from tests.support.request_loop import STEP, generate

if TYPE_CHECKING:
    from collections.abc import Callable

VOCABULARY = 96


def tiny(module: Any, seed: int = 1, **arguments: Any) -> Any:
    """A model with random weights that answers with more than one token."""
    sizes = {
        "model_type": "tiny",
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
    }
    mx.random.seed(seed)
    made = module.Model(module.ModelArgs.from_dict(sizes | arguments))
    made.update(tree_map(lambda weight: weight + 0.2 * mx.random.normal(weight.shape), made.parameters()))
    made.eval()
    mx.eval(made.parameters())
    return made


def attention(seed: int = 1, **arguments: Any) -> Any:
    heads = {"num_attention_heads": 2, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
    return tiny(llama, seed, **heads | arguments)


def states() -> Any:
    sizes = {"state_size": 8, "conv_kernel": 4, "use_bias": False, "use_conv_bias": True, "time_step_rank": 4}
    return tiny(mamba, **sizes)


QUESTION = [5, 9, 23, 41, 7, 60, 61, 62, 30] * 6


def counted(tokens: Any, logits: mx.array) -> mx.array:
    """A processor of one's own: what was said most often is said no more."""
    for token, times in Counter(tokens.tolist()).items():
        logits[:, token] -= 3.0 * times
    return logits


PROCESSORS: dict[str, Callable[[], list[Any]]] = {
    "repetition": lambda: make_logits_processors(repetition_penalty=1.8, repetition_context_size=300),
    "presence": lambda: make_logits_processors(presence_penalty=5.0, presence_context_size=300),
    "frequency": lambda: make_logits_processors(frequency_penalty=3.0, frequency_context_size=300),
    "a short context": lambda: make_logits_processors(repetition_penalty=1.8, repetition_context_size=20),
    "bias": lambda: make_logits_processors(logit_bias={3: 20.0}),
    "one's own": lambda: [counted],
    "several": lambda: [counted, *make_logits_processors(repetition_penalty=1.8)],
}


def answer(cache: KVPrefixCache, model: Any, tokens: Any, processors: list[Any]) -> tuple[int, list[int]]:
    with cache.session(tokens, model=model, prefill_step_size=STEP) as session:
        for token, _ in generate_step(
            mx.array(session.remaining).reshape(-1),
            model,
            max_tokens=12,
            logits_processors=session.logits_processors(processors),
            prompt_cache=session.prompt_cache,
            prompt_progress_callback=session.on_progress,
            prefill_step_size=STEP,
        ):
            session.append(int(token))
    return session.hit.length, session._appended


@pytest.mark.pairwise
@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("make", [attention, states])
@pytest.mark.parametrize("form", [list, mx.array, lambda ids: mx.array([ids], dtype=mx.uint32)])
def test_penalties_know_what_came_from_the_cache(
    name: str, make: Callable[[], Any], form: Callable[[list[int]], Any]
) -> None:
    model, cache = make(), KVPrefixCache()
    _, cold = answer(cache, model, form(QUESTION), PROCESSORS[name]())
    reused, warm = answer(cache, model, form(QUESTION), PROCESSORS[name]())
    assert reused == len(QUESTION) - 1
    assert warm == cold


def test_penalties_know_what_the_session_itself_ran() -> None:
    """A checkpoint that later requests need is prefilled on entering: it is no part of what mlx-lm runs."""
    model, cache = states(), KVPrefixCache()
    processors = PROCESSORS["repetition"]
    for last in (1, 2):
        answer(cache, model, [*QUESTION, *[last] * 20], processors())
    _, warm = answer(cache, model, [*QUESTION, *[3] * 20], processors())
    _, cold = answer(KVPrefixCache(), model, [*QUESTION, *[3] * 20], processors())
    assert warm == cold


def test_a_draft_model_s_processors_see_the_prompt() -> None:
    model, draft = attention(), attention(seed=2)

    def run(cache: KVPrefixCache) -> tuple[int, list[int], list[int]]:
        lengths: list[int] = []

        def see(tokens: mx.array, logits: mx.array) -> mx.array:
            assert tokens[: len(QUESTION)].tolist() == QUESTION
            lengths.append(tokens.size)
            return counted(tokens, logits)

        with cache.session(QUESTION, model=model, draft_model=draft) as session:
            for token, _, _ in speculative_generate_step(
                mx.array(session.remaining),
                model,
                draft,
                max_tokens=12,
                logits_processors=session.logits_processors([see]),
                prompt_cache=session.prompt_cache,
            ):
                session.append(int(token))
        return session.hit.length, session._appended, lengths

    cache = KVPrefixCache()
    _, cold, seen = run(cache)
    reused, warm, again = run(cache)
    assert reused > len(QUESTION) // 2
    assert (warm, again) == (cold, seen)
    assert answer(KVPrefixCache(), model, QUESTION, [counted])[1] == cold


def test_tokens_of_other_forms_reach_processors_whole() -> None:
    seen: list[Any] = []

    def see(tokens: Any, logits: mx.array) -> mx.array:
        seen.append(tokens if isinstance(tokens, list) else tokens.tolist())
        return logits

    model, cache, logits = PosKV(KV()), KVPrefixCache(), mx.zeros((1, 4))
    cache.store(prompt(6), model.filled(prompt(6)))
    with cache.session([*prompt(6), 90, 91], model=model) as session:
        session.logits_processors([see])[0]([90, 91], logits)
        session.logits_processors(iter([see]))[0](mx.array([[90, 91]]), logits)
        session.logits_processors([see])[0](None, logits)
        first = session.logits_processors([see])[0]
        first(mx.array([90, 91], dtype=mx.uint32), logits)
        session.append(92)
        first(mx.array([90, 91, 92], dtype=mx.uint32), logits)
        session.logits_processors([see])[0](mx.array([92]), logits)
        assert session.logits_processors(None) == []
    whole = [*prompt(6), 90, 91]
    assert seen == [whole, [whole], whole, whole, [*whole, 92], [*whole, 92]]
    with pytest.raises(ConfigError, match="before the session was entered"):
        cache.session(prompt(6), model=model).logits_processors([see])


# What mlx-lm is told, too.


class Plain:
    """Leaves the choice of caches to mlx-lm."""

    def __init__(self, width: int = 64) -> None:
        self.layers, self._width = [0, 0], width

    def __call__(self, tokens: mx.array, cache: list[Any]) -> None:
        for layer in cache:
            side = mx.ones((1, 1, tokens.shape[1], self._width))
            layer.update_and_fetch(side, side)


class Hybrid(Plain):
    def make_cache(self) -> list[Any]:
        return [KVCache(), RotatingKVCache(8)]


def test_a_fresh_cache_is_as_long_as_mlx_lm_s() -> None:
    cache = KVPrefixCache()
    with cache.session(prompt(20), model=Plain(), max_kv_size=16) as session:
        assert [type(layer) for layer in session.prompt_cache] == [RotatingKVCache] * 2
        assert {(layer.max_size, layer.keep) for layer in session.prompt_cache} == {(16, 4)}
    with cache.session(prompt(20), model=Plain(), draft_model=Plain(), max_kv_size=16) as session:
        assert {type(layer) for layer in session.prompt_cache} == {KVCache}


@pytest.mark.pairwise
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("start", [0, 10, 35])
@pytest.mark.parametrize("width", [64, 128, 80])
def test_the_session_quantises_as_its_engine_does(group: int, bits: int, start: int, width: int) -> None:
    """From `start` on, in its groups; widths that cannot be quantised so stay as they are."""
    model, cache, shared = Hybrid(width), KVPrefixCache(), prompt(30)
    options = {"kv_bits": bits, "kv_group_size": group, "quantized_kv_start": start}
    for last in (1, 2, 3):
        tokens = [*shared, *[900 + last] * 9]
        with cache.session(tokens, model=model, prefill_step_size=STEP, **options) as session:
            if last == 2:
                layer = session.prompt_cache[0]
                whole = start <= 30 and width % group == 0
                assert type(layer) is (QuantizedKVCache if whole else KVCache)
                assert not whole or (layer.group_size, layer.bits) == (group, bits)
                assert type(session.prompt_cache[1]) is RotatingKVCache
            model(mx.array([session.remaining]), session.prompt_cache)
            model(mx.array([[7]]), session.prompt_cache)
            session.append(7)
    assert session.hit.length == 30
    assert_settled(cache)


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ({"max_kv_size": 0}, ConfigError),
        ({"max_kv_size": 4}, ConfigError),
        ({"max_kv_size": 10.0}, TypeError),
        ({"kv_group_size": 16}, ConfigError),
        ({"kv_group_size": 64.0}, ConfigError),
        ({"quantized_kv_start": -1}, ConfigError),
        ({"quantized_kv_start": None}, TypeError),
    ],
)
def test_options_that_are_none(option: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(option))):
        KVPrefixCache().session([1], **option)


# What fails before it has begun.


class Failing(PosKV):
    """Fails where a session asks for fresh caches, or runs it."""

    fails = ""

    def make_cache(self) -> list[Any]:
        if self.fails == "make_cache":
            raise OSError("no caches")
        return super().make_cache()

    def __call__(self, tokens: mx.array, cache: list[Any]) -> None:
        if self.fails == "run":
            raise OSError("no pass")
        super().__call__(tokens, cache)


@pytest.mark.pairwise
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("take", [False, True])
@pytest.mark.parametrize("wrong", ["deeper", "shallower"])
def test_a_model_that_does_not_fit_costs_nothing(kind: str, take: bool, wrong: str) -> None:
    model, cache = MODELS[kind](), KVPrefixCache()
    cache.store(prompt(40), model.filled(prompt(40)), length=40)
    before = cache.stats()
    other = PosKV(*model.layers, KV()) if wrong == "deeper" else PosKV(model.layers[0])
    with (
        pytest.raises(ConfigError, match="holds caches of"),
        cache.session([*prompt(40), 5], model=other, take=take),
    ):
        pytest.fail("the block must not run")
    after = cache.stats()
    assert (after.nbytes, after.ntokens, after.checkpoints) == (before.nbytes, 40, before.checkpoints)
    model.check(cache.fetch([*prompt(40), 5]).prompt_cache, prompt(40))
    assert_settled(cache)


@pytest.mark.pairwise
@pytest.mark.parametrize("take", [False, True])
@pytest.mark.parametrize("fails", ["make_cache", "run", "pressure"])
@pytest.mark.parametrize("layers", [(KV(),), (KV(), Arrays()), (Arrays(),)])
def test_what_fails_on_entering_leaves_what_was_stored(take: bool, fails: str, layers: Any) -> None:
    class Pressure:
        calls = 0

        def excess_bytes(self) -> int:
            self.calls += 1
            if fails == "pressure" and armed and self.calls > 1:
                raise OSError("no pressure")
            return 0

    armed, pressure = False, Pressure()
    model, cache = Failing(*layers), KVPrefixCache(pressure=pressure)
    for last in (1, 2):
        tokens = [*prompt(30), *prompt(9, first=last)]
        made = model.make_cache()
        model.grow(made, tokens[:20])
        cache.store(tokens[:20], made, length=20)
        model.grow(made, tokens[20:])
        cache.store(tokens, made, length=39)
    held = cache.stats()
    asked = [*prompt(30), *prompt(9, first=3)]
    assert cache.peek(asked).length in (20, 30)
    armed, model.fails, pressure.calls = True, fails, 0
    try:
        with cache.session(asked, model=model, take=take):
            pass
    except OSError:
        pass
    else:
        assert fails in ("run", "pressure"), "it did not come to that"
    armed, model.fails = False, ""
    assert cache.stats().ntokens == held.ntokens
    assert cache.peek(asked).length in (20, 30)
    assert_settled(cache)


def test_media_are_read_once() -> None:
    model, cache, tokens = PosKV(KV()), KVPrefixCache(), [1, *[99] * 4, 2, 3]
    cat = (MediaSpan(1, 4, each) for each in ["cat"])
    with cache.session(tokens, model=model, media=cat) as session:
        model.grow(session.prompt_cache, session.remaining)
    assert session.stored.length == 7
    for call in (cache.fetch, cache.peek):
        assert call([*tokens, 4], media=(MediaSpan(1, 4, each) for each in ["dog"])).length == 1
        assert call([*tokens, 4], media=iter([MediaSpan(1, 4, "cat")])).length == 7
    with cache.pin(tokens, media=iter([MediaSpan(1, 4, "dog")])) as pin:
        assert pin.tokens in (1, 7)  # a node that is matched in part is pinned whole
    stored = cache.store(tokens, model.filled(tokens), media=iter([MediaSpan(1, 4, "dog")]))
    assert stored.new_tokens == 6


@pytest.mark.parametrize(
    "media",
    [
        [MediaSpan(1, 6, "a"), MediaSpan(2, 1, "b")],
        [MediaSpan(0, 1, "z"), MediaSpan(2, 6, "a"), MediaSpan(3, 1, "b")],
        [MediaSpan(3, 1, "b"), MediaSpan(1, 6, "a")],
        [MediaSpan(1, 2, "a"), MediaSpan(1, 2, "a")],
        [MediaSpan(6, 3, "a")],
        [MediaSpan(2**62, 2**62, "a")],
        [3],
        3,
    ],
)
def test_one_rule_for_spans_in_every_call(media: Any) -> None:
    model, tokens, said = PosKV(KV()), [1, 2, 3, 4, 9, 9, 9, 9], set()
    cache = KVPrefixCache()
    for call in (
        cache.fetch,
        cache.peek,
        cache.pin,
        lambda tokens, media: cache.store(tokens, model.filled(tokens[:2]), media=media),
        lambda tokens, media: cache.store(tokens, model.filled(tokens), length=1, media=media),
        lambda tokens, media: cache.session(tokens, model=model, media=media),
    ):
        with pytest.raises((ConfigError, TypeError)) as caught:
            call(tokens, media=media)
        said.add((caught.type, str(caught.value)))
    assert len(said) == 1
    assert len(cache) == 0


@pytest.mark.parametrize("kind", MODELS)
def test_a_request_s_key_is_what_was_run(kind: str) -> None:
    """Nobody tells a session the length of a model whose layers count nothing: it counts itself."""
    model, cache = MODELS[kind](), KVPrefixCache()
    with cache.session(prompt(20), model=model, prefill_step_size=STEP) as session:
        for token in generate(model, session.prompt_cache, session.remaining, [7, 8], session.on_progress):
            session.append(token)
    assert (session.stored.reason, session.stored.length) == ("stored", 22)
    assert cache.stats().refused_by_reason == {}
    model.check(cache.fetch([*prompt(20), 7, 8, 9]).prompt_cache, [*prompt(20), 7, 8])
