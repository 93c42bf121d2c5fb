"""How much a run of the tests takes in: ``make test`` a part of long products, ``make test-full`` all.

``KVCACHE_FULL=1`` asks for all, of child processes too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.pairwise import covering

if TYPE_CHECKING:
    from collections.abc import Iterable

FULL: Final = bool(os.environ.get("KVCACHE_FULL"))
# Only in a full run: a case that nothing is expected of that the default ones do not have.
only_full = pytest.mark.full


def many(default: int, full: int) -> int:
    """How many examples or rounds: fewer by default."""
    return full if FULL else default


def mark_products(items: Iterable[pytest.Item]) -> None:
    """Marks as ``full`` what a test marked ``pairwise`` can do without: every pair of values still occurs."""
    products: dict[tuple[str, str], list[Any]] = {}
    for item in items:
        if item.get_closest_marker("pairwise") is not None:
            name = getattr(item, "originalname", item.name)
            products.setdefault((item.nodeid.partition("[")[0], name), []).append(item)
    for product in products.values():
        # Parameters by identity: some have no hash, and pytest's own indices differ in every item.
        kept = covering([tuple(map(id, item.callspec.params.values())) for item in product])
        for number in set(range(len(product))) - set(kept):
            product[number].add_marker(only_full)


def keep_default(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is marked ``full``, unless this run is one, or its ``-m`` speaks of the marker."""
    if FULL or "full" in config.getoption("markexpr", ""):
        return
    left_out = [item for item in items if item.get_closest_marker("full") is not None]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("full") is None]
