"""What the ranks of a group tell each other, by name. Values have 32 bits."""

from __future__ import annotations

from typing import Final, NamedTuple

# Stands in a bid for "no position" and "no layout".
NONE: Final = -1


class Units(NamedTuple):
    """How many units a rank would evict."""

    units: int


class Nothing(NamedTuple):
    """Only whether the action succeeded."""


class MatchBid(NamedTuple):
    """What a rank found for a prompt.

    Attributes:
        length: Tokens that it could reuse.
        layout: The layout's number; 0 where nothing is found.
        units: To be evicted before the copy.
        reason: Of a miss, by its number.
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
    """How a rank read the prompt cache that it is to store.

    Attributes:
        storable: Whether it can store it.
        refusal: Why not, by its number.
        length: Tokens that it is to be stored for.
        known_length: The same where its layers count tokens, or the caller does; else 0.
        checkpointed: Whether it has layers that are kept in checkpoints.
        trimmable: Whether a checkpoint of it would serve shorter lengths.
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
    """The newest number by which a rank knows its layout, or ``NONE``."""

    layout: int


class DraftBid(NamedTuple):
    """A store that a rank has drafted.

    Attributes:
        outcome: By its number.
        matched: Tokens that it holds already.
        length: Tokens that fit with everything that is leased kept.
        length_recopied: Tokens that fit if what this store itself keeps may go.
    """

    outcome: int
    matched: int
    length: int
    length_recopied: int


class RoomBid(NamedTuple):
    """Whether a rank can make room under its ledger, and the units that this takes."""

    possible: int
    units: int


class FitsBid(NamedTuple):
    """Whether a store fits under a rank's ``memory_limit``."""

    fits: int


class SessionBid(NamedTuple):
    """A rank at the start of a session.

    Attributes:
        spans_only: All its layers can be cut at any token.
        known: Its namespace holds something, so the bytes of a token are known.
    """

    spans_only: int
    known: int


class LengthBid(NamedTuple):
    """Tokens that all layers of a rank are known to have run."""

    length: int


class OutcomeBid(NamedTuple):
    """How array work ended on a rank: see :mod:`kvcache.operations.allocate`."""

    outcome: int


class CheckBid(NamedTuple):
    """The call that a rank is about to make, and its index, as numbers that differ where they differ."""

    call: int
    closed: int
    lines: int
    outline: int
