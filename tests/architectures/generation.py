"""Requests as an engine runs them: a session around mlx-lm's stream_generate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_lm.generate import stream_generate

from .devices import assert_repeated, repeated
from .runs import CHUNK, Kinds, chunks, play, singles, trim
from .speculative import Numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from kvcache import KVPrefixCache, Session

    from .runs import Case


def session(prefixes: KVPrefixCache, case: Case, model: Any, tokens: list[int]) -> Session:
    return prefixes.session(tokens, model=model, prefill_step_size=CHUNK, kv_bits=case.bits)


def generate(model: Any, request: Session, count: int) -> Iterator[int]:
    """Tokens as stream_generate gives them; the caller appends."""
    responses = stream_generate(
        model,
        Numbers(),
        request.remaining,
        max_tokens=count,
        prompt_cache=request.prompt_cache,
        prefill_step_size=CHUNK,
        prompt_progress_callback=request.on_progress,
    )
    return (response.token for response in responses)


def answered(prefixes: KVPrefixCache, case: Case, model: Any, tokens: list[int], count: int) -> Session:
    """A whole request; its session, with ``tokens`` grown by what was generated."""
    with session(prefixes, case, model, tokens) as request:
        for token in generate(model, request, count):
            request.append(token)
            tokens.append(token)
    return request


def assert_true_to(prefixes: KVPrefixCache, case: Case, model: Any, tokens: list[int], prefilled: int) -> int:
    """Whatever is stored for ``tokens`` continues as a run without a cache does. Returns its length.

    The tokens were run in chunks up to ``prefilled``, then one by one.
    """
    prefixes.validate()
    hit = prefixes.fetch([*tokens, 1])
    if not hit:
        return 0
    whole = [*chunks(tokens, 0, prefilled), *singles(tokens, prefilled, len(tokens) - prefilled)]
    further = [("run", [3, 1, 4, 1, 5]), ("run", [9])]

    def uncached() -> list[np.ndarray]:
        reference, done = case.fresh(model), 0
        for step in whole:
            if done >= hit.length:
                break
            play(case, model, reference, [step])
            done += len(step[1])
        if done > hit.length:
            assert Kinds.of(reference).spans_only or done <= CHUNK
            trim(reference, done - hit.length)
        return play(case, model, reference, further)

    assert_repeated(play(case, model, hit.prompt_cache, further), repeated(uncached))
    return hit.length
