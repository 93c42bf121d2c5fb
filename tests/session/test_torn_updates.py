"""Updates that break off inside a layer cache, at every line: nothing wrong is ever stored."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import pytest
from mlx_lm.models import cache as mlx_lm_cache

from kvcache import KVPrefixCache
from tests.support.failures import assert_settled
from tests.support.layers import KV, Arrays, Chunked, Concatenate, List, Quantized, Rotating
from tests.support.models import MODELS, prompt
from tests.support.poskv import PosKV
from tests.support.request_loop import generate

if TYPE_CHECKING:
    from collections.abc import Callable

UPDATES = frozenset({"update_and_fetch", "_update_in_place", "_update_concat", "maybe_trim_front", "_trim"})
WINDOWS: dict[str, Callable[[], PosKV]] = {
    "rotating alone": lambda: PosKV(Rotating(4)),
    "keeping alone": lambda: PosKV(Rotating(4, keep=2)),
    "chunked alone": lambda: PosKV(Chunked(4)),
    "beside spans": lambda: PosKV(Rotating(4), KV(), Rotating(4)),
    "in lists": lambda: PosKV(List(KV(), Rotating(4)), List(Chunked(4), Arrays())),
    "spans alone": lambda: PosKV(KV(), KV()),
    "joined spans": lambda: PosKV(KV(), Concatenate(), Concatenate()),
    "quantised spans": lambda: PosKV(Quantized(), Quantized(bits=8)),
    "all": MODELS["all"],
}


class Torn:
    """Raises at one line of all updates, counted from the first."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self.seen = 0
        self._at = at
        self._error = error

    def __call__(self, frame: Any, _event: str, _arg: Any) -> Any:
        code = frame.f_code
        return self._line if code.co_filename == mlx_lm_cache.__file__ and code.co_name in UPDATES else None

    def _line(self, _frame: Any, event: str, _arg: Any) -> Any:
        if event == "line":
            self.seen += 1
            if self.seen == self._at:
                sys.settrace(None)
                raise self._error
        return self._line


def broken(model: PosKV, cache: KVPrefixCache, at: int, error: type[BaseException], *, caught: bool) -> int:
    """A request that breaks off at that line; how many lines it came to."""
    torn, tracing = Torn(at, error), sys.gettrace()
    with contextlib.suppress(error), cache.session(prompt(11), model=model) as session:
        tokens = generate(model, session.prompt_cache, session.remaining, [7, 8, 9], session.on_progress)
        sys.settrace(torn)
        try:
            for token in tokens:
                session.append(token)
        except error:
            if not caught:
                raise
        finally:
            sys.settrace(tracing)
    return torn.seen


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("caught", [False, True])
def test_an_update_breaks_off_at_every_line(name: str, caught: bool) -> None:
    model, at, useful = WINDOWS[name](), 0, 0
    tokens = [*prompt(11), 7, 8, 9]
    errors = [TimeoutError, KeyboardInterrupt, GeneratorExit]
    while True:
        at += 1
        cache = KVPrefixCache()
        if broken(model, cache, at, errors[at % 3], caught=caught) < at:
            break
        hit = cache.fetch([*tokens, 1])
        model.check(hit.prompt_cache or model.make_cache(), tokens[: hit.length])
        assert_settled(cache)
        useful += hit.length > 0
    # The checkpoint of the first chunk stays, wherever later updates break off.
    assert at > 50
    assert useful > at / 2


def test_a_row_that_is_written_and_not_counted() -> None:
    """A full window writes its newest row in place: neither its arrays nor its numbers change by that."""
    model, cache = PosKV(Rotating(4)), KVPrefixCache()
    with cache.session(prompt(6), model=model) as session:
        layer = session.prompt_cache[0]
        for token in [*prompt(6), 7]:
            model.grow(session.prompt_cache, [token])
        session.append(7)
        before = layer.keys, layer.values, layer.offset, layer._idx
        row = model.filled([99] * 8)[0].keys[..., -1:, :]
        layer.keys[..., layer._idx : layer._idx + 1, :] = row
        assert layer.keys is before[0]
        assert (layer.offset, layer._idx) == before[2:]
    assert session.stored is None
    assert len(cache) == 0


def test_marks_do_not_outlive_the_session() -> None:
    model, cache = PosKV(Rotating(4)), KVPrefixCache()
    with cache.session(prompt(6), model=model) as session:
        model.grow(session.prompt_cache, [*prompt(6), 7])
        session.append(7)
    assert session.stored.length == 7
    assert type(session.prompt_cache[0]._idx) is int
