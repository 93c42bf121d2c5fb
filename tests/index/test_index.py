"""PrefixIndex from Python: its names, and a naive oracle beside it under random operations."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvcache import ConfigError, PrefixIndex, TokenError
from tests.support.full import many
from tests.support.naive_index import Oracle

BASES = ([1, 2, 3, 1, 2, 3, 3, 2, 1, 1, 2, 2] * 3, [1, 2, 3, 4, 4, 4, 1, 2, 4, 4, 3, 3] * 3, [5] * 36)


prompts = st.builds(
    lambda base, cut, tail: BASES[base][:cut] + tail,
    st.integers(0, 2),
    st.integers(0, 36),
    st.lists(st.integers(1, 4), max_size=5),
)


spaces = st.sampled_from(["", "b"])


class Differential(RuleBasedStateMachine):
    """The index and the oracle get the same calls."""

    @initialize(
        max_bytes=st.sampled_from([None, 40, 90, 200]),
        grain=st.sampled_from([1, 2, 5, 8, 1024]),
        width=st.sampled_from([1, 3]),
    )
    def start(self, max_bytes: int | None, grain: int, width: int) -> None:
        self.index = PrefixIndex(max_bytes=max_bytes, segment_tokens=grain)
        self.oracle = Oracle(max_bytes, grain)
        self.width = width

    @rule(tokens=prompts, namespace=spaces, touch=st.booleans(), as_array=st.booleans())
    def match(self, tokens: list[int], namespace: str, touch: bool, as_array: bool) -> None:
        given = np.array(tokens, np.int32) if as_array else tokens
        found = self.index.match_prefix(given, namespace=namespace, touch=touch)
        assert found.length == found.matched == self.oracle.match(namespace, tokens, touch)
        assert bool(found) == (found.length > 0)

    @rule(tokens=prompts, namespace=spaces)
    def insert(self, tokens: list[int], namespace: str) -> None:
        whole = self.oracle.fits(namespace, tokens, self.width)
        if not whole:
            # What is kept of a prompt that does not fit is the Rust oracle's to say.
            return
        before = self.oracle.nbytes()
        held, new = self.oracle.insert(namespace, tokens, self.width)
        inserted = self.index.insert(tokens, namespace=namespace, bytes_per_token=self.width)
        assert (inserted.length, inserted.new_tokens) == (held, new)
        assert inserted.evicted.nbytes == before + new * self.width - self.oracle.nbytes()
        assert inserted.evicted.tokens * self.width == inserted.evicted.nbytes

    @rule(nbytes=st.integers(0, 60))
    def evict(self, nbytes: int) -> None:
        evicted = self.index.evict(nbytes)
        assert evicted.nbytes == self.oracle.evict(nbytes)
        assert bool(evicted) == (evicted.nbytes > 0) == bool(evicted.ids)

    @rule()
    def clear(self) -> None:
        assert self.index.clear().nbytes == self.oracle.evict(10**9)

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "index"):
            return
        self.index.validate()
        stats = self.index.stats()
        assert (stats.nbytes, stats.ntokens) == (self.oracle.nbytes(), self.oracle.ntokens())
        assert stats.nodes == stats.segments == len(self.oracle.order)
        assert stats.nbytes <= self.oracle.max_bytes


Differential.TestCase.settings = settings(max_examples=many(60, 120), stateful_step_count=40)


TestDifferential = Differential.TestCase


def test_names_are_those_of_the_api() -> None:
    names = {name for name in dir(PrefixIndex) if not name.startswith("_")}
    assert names == {"match_prefix", "insert", "evict", "clear", "stats", "validate"}
    for method, parameters in (
        (PrefixIndex.match_prefix, ["self", "tokens", "namespace", "touch"]),
        (PrefixIndex.insert, ["self", "tokens", "namespace", "bytes_per_token"]),
        (PrefixIndex.evict, ["self", "nbytes"]),
    ):
        assert list(inspect.signature(method).parameters) == parameters
    index = PrefixIndex()
    inserted = index.insert([1, 2, 3], bytes_per_token=7)
    assert (inserted.new_tokens, inserted.evicted.ids, inserted.evicted.tokens) == (3, [], 0)
    stats = index.stats()
    figures = ("nbytes", "ntokens", "nodes", "segments", "index_bytes")
    assert [getattr(stats, name) > 0 for name in figures] == [True] * 5
    evicted = index.evict(1)
    assert (len(evicted.ids), evicted.tokens, evicted.nbytes) == (1, 3, 21)
    with pytest.raises(AttributeError):
        stats.nbytes = 0


def test_an_id_is_reported_once_and_never_again() -> None:
    index, seen = PrefixIndex(max_bytes=60, segment_tokens=4), set()
    for at in range(300):
        tokens = BASES[at % 3][: at % 30 + 1] + [at % 7]
        for evicted in (index.insert(tokens).evicted, index.evict(at % 5)):
            assert not seen & set(evicted.ids)
            assert len(set(evicted.ids)) == len(evicted.ids)
            seen |= set(evicted.ids)
    assert len(seen) > 100


@pytest.mark.parametrize(
    "arguments", [{"max_bytes": -1}, {"max_buffers": -1}, {"segment_tokens": 0}, {"segment_tokens": -3}]
)
def test_parameters_out_of_range(arguments: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        PrefixIndex(**arguments)


def test_bad_arguments_change_nothing() -> None:
    index = PrefixIndex()
    index.insert([1, 2, 3])
    for call in (
        lambda: index.evict(-1),
        lambda: index.insert([1, 2], bytes_per_token=-1),
        lambda: index.insert([1, 2**31]),
        lambda: index.match_prefix([-1]),
    ):
        with pytest.raises((ConfigError, TokenError)):
            call()
    for call in (
        lambda: index.evict(1.5),
        lambda: index.insert([1], namespace=None),
        lambda: index.match_prefix(None),
    ):
        with pytest.raises(TypeError):
            call()
    index.validate()
    assert index.stats().ntokens == 3


def test_what_does_not_fit_is_cut() -> None:
    """REPORTS 4, 25: the limit holds after each call, and the head is kept."""
    index = PrefixIndex(max_bytes=10, segment_tokens=4)
    for at in range(100):
        index.insert([at, at, at])
        assert index.stats().nbytes <= 10
    assert index.insert(list(range(1000, 1030))).length == 10
    assert index.match_prefix(list(range(1000, 1030))).length == 10
    assert index.insert(list(range(1000, 1030))).new_tokens == 0
    index.validate()


def test_a_match_without_a_touch_leaves_the_order() -> None:
    for touch, survivor in ((True, [1]), (False, [2])):
        index = PrefixIndex()
        index.insert([1])
        index.insert([2])
        index.match_prefix([1], touch=touch)
        index.evict(1)
        assert [token for token in (1, 2) if index.match_prefix([token])] == survivor


def test_a_lookup_says_why() -> None:
    index = PrefixIndex()
    index.insert([1, 2, 3])
    reasons = [index.match_prefix(tokens).reason for tokens in ([], [9], [1], [1, 2, 3, 4])]
    assert reasons == ["too_short", "no_entry", "hit", "hit"]
    assert index.match_prefix([1, 2, 3], namespace="other").length == 0
