"""exo's snapshots as checkpoints: what is stored of a prefill, agreed among ranks.

A snapshot holds the layers that cannot be cut, as they were at one token; the others are cut there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from loguru import logger

from kvcache.layers.base import Refusal, SpanAdapter
from kvcache.layers.prompt_cache import Prompt
from kvcache.layers.registry import adapter_of, is_list
from kvcache.layers.window import Rotating

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache.integrations.exo.request import Request
    from kvcache.ranks.group import Ranks

# No length and no count: above all that a rank proposes.
_FAR: Final = (1 << 31) - 1


class _Bid(NamedTuple):
    """A rank's prefill.

    Attributes:
        length: Tokens that its layers hold; 0 where they do not say.
        end: Where it can store the whole; 0 where it cannot.
        spans_only: All its layers can be cut at any token.
        most: Its snapshots that can be stored.
        fewest: The same; larger than any count if it needs none.
    """

    length: int
    end: int
    spans_only: int
    most: int
    fewest: int


def agreed(
    ranks: Ranks, request: Request, cache: list[Any], snapshots: Sequence[Any]
) -> tuple[dict[int, list[Any]], int]:
    """What to store: prompt caches by their length, and the length to store the whole at, or 0.

    All ranks get the same lengths. A rank of span layers has no snapshots and can be cut anywhere;
    one of states alone does not know its length. Both follow the others. One collective, and one
    more where any rank has snapshots.
    """
    own: dict[int, list[Any]] = {}
    spans_only = False

    def propose() -> _Bid:
        nonlocal own, spans_only
        length, spans_only = _length(cache)
        if spans_only:
            return _Bid(length, length or _FAR, spans_only=True, most=0, fewest=_FAR)
        own, sound = _rebuilt(request, cache, snapshots, length)
        # 0 keeps the other ranks from storing the whole, too.
        end = (length or _FAR) if sound else 0
        return _Bid(length, end, spans_only=False, most=len(own), fewest=len(own))

    lows, highs = ranks.propose(_Bid, propose)
    longest, shortest, all_spans = highs.length, lows.end, bool(lows.spans_only)
    if not 0 < longest <= len(request):
        logger.warning(
            "nothing is stored for {} tokens: the layers do not say how many they hold, differ, or hold more",
            len(request),
        )
        return {}, 0
    end = request.before(shortest)
    if end < longest and not all_spans:
        end = 0
    count, fewest = highs.most, lows.fewest
    if count == 0 or count != fewest:
        return {}, end

    def places() -> list[int]:
        mine = sorted(own)
        return [*(mine or [0] * count), *(mine or [_FAR] * count)]

    lowest, highest = ranks.propose_values(places, 2 * count)
    both = zip(highest[:count], lowest[count:], strict=True)
    found = {at: rewound(cache, None, at) if spans_only else own.get(at) for at, low in both if at == low}
    # What cannot be made here is refused here, and therefore everywhere: nobody waits.
    return {at: layers or [] for at, layers in found.items() if at != end}, end


def _rebuilt(
    request: Request, cache: list[Any], snapshots: Sequence[Any], length: int
) -> tuple[dict[int, list[Any]], bool]:
    """Prompt caches by the snapshots' lengths, and whether the whole can be stored as it is.

    After a chunk of one token a rotated window is no longer in temporal order, and exo's snapshots do
    not keep where it begins; the whole was rolled back to such a snapshot if one was its last.
    """
    places = {snapshot.token_count for snapshot in snapshots}
    found = {}
    for snapshot in snapshots:
        at = snapshot.token_count
        if 0 < at <= length and at == request.before(at):
            layers = rewound(cache, snapshot.states, at)
            if layers is not None and not (at - 1 in places and _rotated(layers)):
                found[at] = layers
    return found, not (length - 1 in places and _rotated(cache))


def _length(cache: list[Any]) -> tuple[int, bool]:
    """Tokens that the layers hold, 0 where they do not say or are out of step; whether all can be cut."""
    try:
        prompt = Prompt(cache)
    except Refusal as refusal:
        logger.warning("nothing is stored: {}", refusal.detail)
        return 0, False
    known = {offset for offset in prompt.offsets if offset is not None}
    if not known or (len(known) > 1 and not prompt.spans_only):
        return 0, prompt.spans_only
    return min(known), prompt.spans_only


def _rotated(layers: list[Any]) -> bool:
    """Whether a window among them has dropped tokens."""
    try:
        prompt = Prompt(layers)
    except Refusal:
        return False
    pairs = zip(prompt.adapters, prompt.caches, strict=True)
    return any(isinstance(adapter, Rotating) and cache.offset > cache.max_size for adapter, cache in pairs)


def rewound(prompt_cache: Sequence[Any], states: Sequence[Any] | None, length: int) -> list[Any] | None:
    """The layers as they were after ``length`` tokens. Copies nothing: the arrays are the caller's.

    Args:
        prompt_cache: The layers as they are now.
        states: A snapshot's layers; None where a layer is to be cut, or all are.
        length: Tokens, at least 1.

    Returns:
        None if some layer can neither be cut nor is in the snapshot.
    """
    given = states if states is not None else [None] * len(prompt_cache)
    if len(given) != len(prompt_cache):
        return None
    pairs = zip(prompt_cache, given, strict=True)
    layers = [_cut(layer, length) if state is None else state for layer, state in pairs]
    return None if any(layer is None for layer in layers) else layers


def _cut(layer: Any, length: int) -> Any:
    cls = type(layer)
    if is_list(cls):
        members = [_cut(member, length) for member in layer.caches]
        return None if any(member is None for member in members) else cls(*members)
    adapter = adapter_of(cls)
    offset = adapter.offset(layer)
    if offset is None or offset < length:
        return None
    if isinstance(adapter, SpanAdapter):
        return adapter.build(cls, adapter.static(layer), adapter.arrays(layer), length)
    try:
        image = adapter.image(layer)
    except Refusal:
        return None
    if not image.trimmable:
        return None
    views = [array[..., :length, :] for array in image.arrays]
    return adapter.build(cls, adapter.static(layer), image.meta, views, length)
