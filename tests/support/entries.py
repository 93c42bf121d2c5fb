"""Filling a cache with prompts of one model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.models import prompt

if TYPE_CHECKING:
    from kvcache import KVPrefixCache
    from tests.support.poskv import PosKV


def stored(model: PosKV, cache: KVPrefixCache, *prompts: list[int]) -> None:
    """Stores each prompt, run in chunks, and keeps nothing of what the caller had."""
    for tokens in prompts:
        assert cache.store(tokens, model.filled(tokens, chunk=5), length=len(tokens)).reason == "stored"


def fill(cache: KVPrefixCache, model: PosKV, entries: int, length: int) -> None:
    """Stores prompts that share nothing, numbered from 0."""
    for first in range(entries):
        tokens = prompt(length, first=first)
        assert cache.store(tokens, model.filled(tokens)).reason == "stored"


def alive(cache: KVPrefixCache, entries: int, length: int) -> list[int]:
    """The numbers of those that are still held whole."""
    return [
        first for first in range(entries) if cache.peek([*prompt(length, first=first), 1]).length == length
    ]
