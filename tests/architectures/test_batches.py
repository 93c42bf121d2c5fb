"""Caches that came out of a batch by extract(): stored and continued like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from kvcache import KVPrefixCache

from .devices import assert_repeated, repeated
from .runs import BY_NAME, TRUNK, play

if TYPE_CHECKING:
    import numpy as np

    from .runs import Case

# Chunked, quantised and deepseek_v41's own caches have no batches.
NAMES = [
    "llama",
    "qwen3",
    "gemma3_text",
    "gpt_oss",
    "qwen3_next",
    "mamba2",
    "jamba",
    "falcon_h1",
    "deepseek_v3",
    "deepseek_v32",
    "lfm2",
    "recurrent_gemma",
    "baichuan_m1",
    "exaone4",
]
# Nothing of it is held for the trunk: rows of a batch are not bit for bit those of a single run.
UNLIKE = TRUNK[48:]


def batch_of(case: Case, model: Any, keys: list[list[int]]) -> list[Any]:
    """Prompts of several lengths, prefilled one by one and merged."""
    singles = []
    for key in keys:
        caches = case.fresh(model)
        play(case, model, caches, [("run", key)])
        singles.append(caches)
    return [layers[0].merge(list(layers)) for layers in zip(*singles, strict=True)]


@pytest.mark.pairwise
@pytest.mark.parametrize("case", [BY_NAME[name] for name in NAMES], ids=NAMES)
@pytest.mark.parametrize("lengths", [(10, 5), (30, 21), (20, 9), (14, 14)], ids=str)
@pytest.mark.parametrize("decoded", [0, 1, 4, 12])
def test_extracted_caches(case: Case, model: Any, lengths: tuple[int, int], decoded: int) -> None:
    """Windows before, while and after they rotate; left padding in front of the shorter one."""
    keys = [TRUNK[: lengths[0]], UNLIKE[: lengths[1]]]
    batch = batch_of(case, model, keys)
    for _ in range(decoded):
        tokens = [TRUNK[len(keys[0])], UNLIKE[len(keys[1])]]
        model(mx.array(tokens)[:, None], cache=batch)
        keys = [[*key, token] for key, token in zip(keys, tokens, strict=True)]
    steps = [("run", [7]), ("run", [1, 2, 3, 4, 5]), ("run", [7]), ("run", [8])]
    with KVPrefixCache(segment_tokens=8) as prefixes:
        assert prefixes.store(keys[0], batch).reason == "batched"
        for number, key in enumerate(keys):
            stored = prefixes.store(key, [layer.extract(number) for layer in batch], length=len(key))
            assert (stored.reason, stored.length) == ("stored", len(key))
            prefixes.validate()
        for number, key in enumerate(keys):

            def extracted(number: int = number) -> list[np.ndarray]:
                return play(case, model, [layer.extract(number) for layer in batch], steps)

            hit = prefixes.fetch([*key, 0])
            assert hit.length == len(key)
            found = play(case, model, hit.prompt_cache, steps)
            assert_repeated(found, repeated(extracted))
        prefixes.validate()
