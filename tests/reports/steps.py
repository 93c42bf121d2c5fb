"""What an engine does with the cache, in short words, with everything checked that always holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.poskv import held

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache import Hit, KVPrefixCache, Session, Stored
    from tests.support.poskv import PosKV

STEP = 2048


def put(cache: KVPrefixCache, model: PosKV, tokens: list[int], **options: Any) -> Stored:
    """A request that ran ``tokens`` from the first and stores them."""
    return cache.store(tokens, model.filled(tokens), **{"length": len(tokens)} | options)


def get(
    cache: KVPrefixCache,
    model: PosKV,
    tokens: list[int],
    content: Sequence[int] | None = None,
    **options: Any,
) -> Hit:
    """Fetches twice; what the first caller did to its copy must not show in the second one.

    Each layer handed out must hold exactly the first ``hit.length`` tokens.

    Args:
        cache: What is asked.
        model: Made what is stored.
        tokens: The prompt.
        content: What the model saw where the prompt has placeholders.
        options: Of the fetch.
    """
    seen = tokens if content is None else content
    for _ in range(2):
        hit = cache.fetch(tokens, **options)
        assert 0 <= hit.length <= max(len(tokens) - 1, 0)
        assert hit.remaining == tokens[hit.length :]
        assert bool(hit) == (hit.reason == "hit") == (hit.prompt_cache is not None)
        if not hit:
            break
        model.check(hit.prompt_cache, seen[: hit.length])
        model.grow(hit.prompt_cache, [77, 78])
        for array in held(hit.prompt_cache):
            array[...] = 0
    cache.validate()
    return hit


def prefill(session: Session, model: PosKV, upto: int | None = None) -> None:
    """Runs the remaining tokens but the last one, in chunks, as ``stream_generate`` does.

    Args:
        session: The request.
        model: Runs.
        upto: Stop after so many tokens of the whole prompt.
    """
    tokens, total, done = session.remaining, len(session.remaining), 0
    before = model.layers[0].length(session.prompt_cache[0])
    while done < total - 1 and (upto is None or before + done < upto):
        chunk = tokens[done : min(done + STEP, total - 1)]
        model.grow(session.prompt_cache, chunk)
        done += len(chunk)
        session.on_progress(done, total)


def request(
    cache: KVPrefixCache, model: PosKV, tokens: list[int], answer: Sequence[int] = (), **options: Any
) -> Session:
    """A whole request: prefill, the last prompt token, then each token of the answer."""
    with cache.session(tokens, model=model, prefill_step_size=STEP, **options) as session:
        prefill(session, model)
        model.grow(session.prompt_cache, tokens[-1:])
        for token in answer:
            model.grow(session.prompt_cache, [token])
            session.append(token)
    return session
