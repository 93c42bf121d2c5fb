"""What a lookup costs, in nodes visited: CI asserts counts, never seconds."""

import math
import random

import pytest

from kvcache import PrefixIndex

SEGMENT = 64


def prompt(seed, length):
    return random.Random(seed).choices(range(50_000), k=length)


def nodes(tokens, segment=SEGMENT):
    return math.ceil(tokens / segment)


@pytest.fixture
def index():
    return PrefixIndex(segment_tokens=SEGMENT)


@pytest.mark.parametrize("length", [1, SEGMENT - 1, SEGMENT, SEGMENT + 1, 1_000, 10_000])
def test_a_full_hit_visits_one_node_a_segment(index, length):
    tokens = prompt(length, length)
    index.insert(tokens)
    found = index.match_prefix(tokens)
    assert found.length == length
    assert found.nodes_visited == nodes(length)


@pytest.mark.parametrize("segment", [16, 128, 1_024, 4_096])
def test_visits_follow_the_segment_length(segment):
    index = PrefixIndex(segment_tokens=segment)
    tokens = prompt(segment, 8_192)
    index.insert(tokens)
    assert index.match_prefix(tokens).nodes_visited == nodes(8_192, segment)


def test_a_divergence_ends_the_visit_there(index):
    tokens = prompt(1, 10_000)
    index.insert(tokens)
    for at in (1, SEGMENT - 1, SEGMENT, 5_000, 9_999):
        query = [*tokens[:at], tokens[at] + 50_000, *tokens[at + 1 :]]
        found = index.match_prefix(query)
        assert found.length == at
        assert found.nodes_visited == nodes(at)


def test_a_miss_visits_nothing(index):
    index.insert(prompt(1, 1_000))
    assert index.match_prefix([50_001] * 1_000).nodes_visited == 0
    assert PrefixIndex().match_prefix([1, 2, 3]).nodes_visited == 0


@pytest.mark.parametrize("stored", [0, 100, 10_000])
def test_other_prompts_play_no_part(index, stored):
    tokens = prompt("looked up", 8_000)
    index.insert(tokens)
    for number in range(stored):
        # From no common token up to a hundred: siblings at the root, and splits along the path.
        shared = number % 100
        index.insert([*tokens[:shared], 50_000 + number, *range(10)])
    found = index.match_prefix(tokens)
    assert found.length == 8_000
    # A split adds a node; the shared parts lie in the first two segments and are cut at most 100 times.
    assert found.nodes_visited <= nodes(8_000) + min(stored, 100)


def test_unrelated_prompts_add_no_visit(index):
    tokens = prompt("looked up", 8_000)
    index.insert(tokens)
    before = index.match_prefix(tokens).nodes_visited
    for number in range(10_000):
        index.insert([50_000 + number, *range(20)])
    assert index.match_prefix(tokens).nodes_visited == before == nodes(8_000)
    assert index.match_prefix([50_007, *range(20)]).nodes_visited == 1


def test_a_bushy_node_costs_one_visit(index):
    system = prompt("system", SEGMENT)
    for number in range(20_000):
        index.insert([*system, number, number + 1])
    for number in (0, 9_999, 19_999):
        found = index.match_prefix([*system, number, number + 1])
        assert (found.length, found.nodes_visited) == (SEGMENT + 2, 2)


def test_other_namespaces_play_no_part(index):
    tokens = prompt(3, 1_000)
    index.insert(tokens, namespace="mine")
    for number in range(1_000):
        index.insert(tokens[:200], namespace=f"other {number}")
    assert index.match_prefix(tokens, namespace="mine").nodes_visited == nodes(1_000)


def test_a_long_chat_is_a_chain_of_its_turns():
    """Stored turn by turn, a chat takes a node a turn at worst, beside those its length needs."""
    index = PrefixIndex(segment_tokens=SEGMENT)
    tokens = prompt("chat", 20_000)
    turns = range(100, 20_001, 100)
    for end in turns:
        index.insert(tokens[:end])
    assert index.match_prefix(tokens).nodes_visited <= nodes(20_000) + len(turns)
    assert index.stats().nodes <= nodes(20_000) + len(turns)


def test_looking_leaves_the_tree_alone(index):
    tokens = prompt(5, 5_000)
    index.insert(tokens)
    before = index.stats()
    for at in range(0, 5_000, 37):
        index.match_prefix([*tokens[:at], 50_001])
    after = index.stats()
    assert (after.nodes, after.ntokens, after.index_bytes) == (
        before.nodes,
        before.ntokens,
        before.index_bytes,
    )
