"""An engine's loop around one request, as mlx-lm's stream_generate runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvcache import KVPrefixCache
    from tests.support.poskv import PosKV


STEP = 8


def generate(
    model: PosKV,
    prompt_cache: list[Any],
    tokens: Sequence[int],
    sampled: Sequence[int],
    progress: Callable[[int, int], None],
) -> Iterator[int]:
    """What stream_generate does: all but the last prompt token in chunks, then one at a time.

    A token is run before it is handed out, and the last call of ``progress`` comes when the cache
    has run the first sampled token already.
    """
    total, done = len(tokens), 0
    progress(0, total)
    while done < total - 1:
        chunk = tokens[done : min(done + STEP, total - 1)]
        model.grow(prompt_cache, chunk)
        done += len(chunk)
        progress(done, total)
    model.grow(prompt_cache, tokens[done:])
    for number, token in enumerate(sampled):
        model.grow(prompt_cache, [token])
        if number == 0:
            progress(total, total)
        yield token


def request(
    cache: KVPrefixCache, model: PosKV, tokens: list[int], sampled: Sequence[int], **options: Any
) -> Any:
    """One request from end to end."""
    with cache.session(tokens, model=model, prefill_step_size=STEP, **options) as session:
        assert session.stored is None
        for token in generate(model, session.prompt_cache, session.remaining, sampled, session.on_progress):
            session.append(token)
    return session


class Stopped(Exception):
    """The caller has had enough."""
