"""What `policy=` takes, wherever it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvcache import POLICIES, ConfigError, KVPrefixCache, PrefixIndex
from kvcache.integrations.exo import KVPrefixCache as ExoCache
from kvcache.integrations.mlx_lm import PromptCache, patch

if TYPE_CHECKING:
    from collections.abc import Callable


def patched(policy: Any) -> None:
    with patch(policy=policy):
        pass


takers = pytest.mark.parametrize(
    "take",
    [
        lambda policy: KVPrefixCache(policy=policy),
        lambda policy: PrefixIndex(policy=policy),
        lambda policy: PromptCache(policy=policy),
        lambda policy: ExoCache(None, policy=policy),
        patched,
    ],
    ids=["cache", "index", "PromptCache", "exo", "patch"],
)


@takers
@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_by_its_name(take: Callable[[Any], Any], policy: str) -> None:
    take(policy)


@takers
@pytest.mark.parametrize(
    ("policy", "error", "says"),
    [
        ("LRU", ConfigError, 'policy must be one of lru, found "LRU"'),
        ("arc", ConfigError, 'policy must be one of lru, found "arc"'),
        ("", ConfigError, 'found ""'),
        ("\ud800", ConfigError, "policy must be one of"),
        (None, TypeError, "policy must be a str, found NoneType"),
        (b"lru", TypeError, "policy must be a str, found bytes"),
    ],
)
def test_what_is_no_policy(
    take: Callable[[Any], Any], policy: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        take(policy)
