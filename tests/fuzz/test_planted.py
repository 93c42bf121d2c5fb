"""The harness finds what is broken on purpose: each fault within a few hundred operations."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvcache import Eviction, arrays, media
from kvcache.operations import compact, copy, evict, fetch
from kvcache.stats import Counters
from kvcache.storage import contents, segments
from tests.fuzz.runner import WorldFailure, run

if TYPE_CHECKING:
    from collections.abc import Callable

# Operations within which the harness has to have seen it.
OPERATIONS = 1500

Patch = pytest.MonkeyPatch


def _replace(patch: Patch, function: Callable[..., Any], replacement: Callable[..., Any]) -> None:
    """In every module that calls it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("kvcache.") and getattr(module, function.__name__, None) is function:
            patch.setattr(module, function.__name__, replacement)


def _join_loses_a_part(patch: Patch) -> None:
    join = segments.SegmentStore.join

    def lossy(self: Any, number: int, replaced: Any) -> None:
        join(self, number, replaced)
        self.parts[number] = self.parts[number][:-1] or self.parts[number]

    patch.setattr(segments.SegmentStore, "join", lossy)


def _join_turns_parts_round(patch: Patch) -> None:
    join = segments.SegmentStore.join

    def turned(self: Any, number: int, replaced: Any) -> None:
        join(self, number, replaced)
        self.parts[number].reverse()

    patch.setattr(segments.SegmentStore, "join", turned)


def _compaction_turns_parts_round(patch: Patch) -> None:
    merge = compact._merge
    patch.setattr(compact, "_merge", lambda old, runs: merge(list(reversed(old)), runs))


def _nothing_is_settled(patch: Patch) -> None:
    patch.setattr(contents.Contents, "settle", lambda self: self.index.settled() or [])


def _stored_arrays_are_handed_out(patch: Patch) -> None:
    join = arrays.join

    def shared(pieces: Any, capacity: int) -> Any:
        array, tokens = pieces[0]
        if len(pieces) == 1 and tokens == array.shape[-2] == capacity:
            return array
        return join(pieces, capacity)

    patch.setattr(arrays, "join", shared)
    patch.setattr(arrays, "detach", lambda array: array)


def _a_cut_starts_too_late(patch: Patch) -> None:
    cut = arrays.cut
    patch.setattr(
        arrays, "cut", lambda array, start, end: cut(array, min(start + 1, end - 1) if start else 0, end)
    )


def _counters_are_off(patch: Patch) -> None:
    fetched = Counters.fetched
    patch.setattr(
        Counters, "fetched", lambda self, name, hit, tokens: fetched(self, name, hit, tokens + (tokens > 3))
    )


def _evictions_are_not_reported(patch: Patch) -> None:
    finish = evict.finish
    _replace(patch, finish, lambda context, removed: replace(finish(context, removed), nbytes=0))


def _a_lease_stays(patch: Patch) -> None:
    kept: list[Any] = []
    patch.setattr(contents.Contents, "release", lambda _self, lease, _stamp: kept.append(lease))


def _a_hit_has_one_token_too_many(patch: Patch) -> None:
    hit_of = fetch._hit

    def longer(*arguments: Any) -> Any:
        hit = hit_of(*arguments)
        return replace(hit, length=hit.length + (hit.length > 2))

    patch.setattr(fetch, "_hit", longer)


def _media_play_no_part(patch: Patch) -> None:
    _replace(patch, media.media_keys, lambda _: [])


def _images_are_of_zeros(patch: Patch) -> None:
    restore = copy._restore

    def wrong(image: Any, length: int | None, made: list[Any]) -> Any:
        zeros = [array * 0 for array in image.arrays]
        return restore(replace(image, arrays=zeros), length, made)

    patch.setattr(copy, "_restore", wrong)


def _a_plan_stays_open(patch: Patch) -> None:
    kept: list[Any] = []
    _replace(patch, evict.abort, lambda _context, plan: kept.append(plan) or Eviction())


def _what_is_donated_is_kept(patch: Patch) -> None:
    cut = copy.cut
    _replace(
        patch, cut, lambda planned, prompt, images, halved, _: cut(planned, prompt, images, halved, False)
    )


def _everything_is_evicted(patch: Patch) -> None:
    some = evict.evict

    def all_of_it(context: Any, need: Any) -> Any:
        return some(context, lambda index: evict.Need(nbytes=need(index).nbytes and 10**12))

    _replace(patch, some, all_of_it)


FAULTS: dict[str, Callable[[Patch], None]] = {
    name[1:]: value
    for name, value in list(globals().items())
    if name.startswith("_") and not name.startswith("__") and callable(value) and value is not _replace
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[name](monkeypatch)
    with pytest.raises(WorldFailure):
        run(seed=1, operations=OPERATIONS)
