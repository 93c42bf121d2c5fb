"""Bids: what the ranks of a group tell each other, as named 32-bit values."""

from __future__ import annotations

from typing import Final, NamedTuple

# "No position" or "no layout" in a bid.
NONE: Final = -1


class Units(NamedTuple):
    """The number of units that a rank would evict."""

    units: int


class Nothing(NamedTuple):
    """An empty bid: the ranks learn only whether the action succeeded."""


class MatchBid(NamedTuple):
    """The result of a rank's lookup.

    Attributes:
        length: Tokens that it could reuse.
        layout: The layout's number; 0 on a miss.
        units: Units to evict before the copy.
        reason: The reason of the result, by number.
        matched: Tokens matched in its tree.
        checkpoint_at: Where a checkpoint would help, or ``NONE``.
    """

    length: int
    layout: int
    units: int
    reason: int
    matched: int
    checkpoint_at: int


class ReadingBid(NamedTuple):
    """A rank's view of the prompt cache to store.

    Attributes:
        storable: Whether the rank can store it.
        refusal: The reason why not, by number.
        length: Tokens to store.
        known_length: The same if the layers or the caller count tokens, else 0.
        checkpointed: Whether it has layers that need checkpoints.
        trimmable: Whether its checkpoint could also serve shorter lengths.
        layout: The layout's newest number, or ``NONE``.
    """

    storable: int
    refusal: int
    length: int
    known_length: int
    checkpointed: int
    trimmable: int
    layout: int


class LayoutBid(NamedTuple):
    """The newest number that a rank has bound to its layout, or ``NONE``."""

    layout: int


class DraftBid(NamedTuple):
    """A rank's draft of a store.

    Attributes:
        outcome: The outcome, by number.
        matched: Tokens that the rank holds already.
        length: Tokens that fit while everything leased is kept.
        length_recopied: Tokens that fit if the matched part may be evicted and copied again.
    """

    outcome: int
    matched: int
    length: int
    length_recopied: int


class RoomBid(NamedTuple):
    """Whether a rank can make room under ``max_bytes``, and how many units it must evict for it."""

    possible: int
    units: int


class FitsBid(NamedTuple):
    """Whether a store fits under a rank's ``memory_limit``."""

    fits: int


class SessionBid(NamedTuple):
    """A rank's state at the start of a session.

    Attributes:
        spans_only: Whether all its layers can be cut at any token.
        known: Whether its namespace holds something, so that the bytes of a token are known.
    """

    spans_only: int
    known: int


class LengthBid(NamedTuple):
    """Tokens that all layers of a rank are known to have run."""

    length: int


class OutcomeBid(NamedTuple):
    """The outcome of array work on a rank: see :mod:`kvcache.operations.allocate`."""

    outcome: int


class CheckBid(NamedTuple):
    """Checksums of the call that a rank is about to make and of its index."""

    call: int
    closed: int
    lines: int
    outline: int
