"""A prefix cache for MLX inference engines.

``KVPrefixCache`` stores the KV state of past requests and returns the longest prefix that a new request can
reuse. ``PrefixIndex`` is its native index on its own. Importing this package imports neither mlx nor mlx_lm;
using ``KVPrefixCache`` imports mlx.

It logs through loguru, silently until the application calls ``logger.enable("kvcache")``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from loguru import logger

from kvcache._core import POLICIES, PrefixIndex, __version__
from kvcache.errors import (
    AllocationError,
    BusyError,
    ClosedError,
    ConfigError,
    InternalError,
    KVCacheError,
    RankError,
    TokenError,
    no_mlx,
)
from kvcache.eviction import Eviction
from kvcache.media import MediaSpan
from kvcache.memory.pressure import PressureSource, SystemMemoryPressure
from kvcache.namespaces import model_namespace
from kvcache.results import Hit, Stored
from kvcache.stats import Stats

if TYPE_CHECKING:
    from kvcache import layers
    from kvcache.cache import KVPrefixCache
    from kvcache.operations.pin import Pin
    from kvcache.session import Session

__all__ = [
    "POLICIES",
    "AllocationError",
    "BusyError",
    "ClosedError",
    "ConfigError",
    "Eviction",
    "Hit",
    "InternalError",
    "KVCacheError",
    "KVPrefixCache",
    "MediaSpan",
    "Pin",
    "PrefixIndex",
    "PressureSource",
    "RankError",
    "Session",
    "Stats",
    "Stored",
    "SystemMemoryPressure",
    "TokenError",
    "__version__",
    "layers",
    "model_namespace",
]

# These need mlx and are imported on first use.
_LAZY = {"KVPrefixCache": "kvcache.cache", "Pin": "kvcache.operations.pin", "Session": "kvcache.session"}

logger.disable("kvcache")


def __getattr__(name: str) -> Any:
    if name == "layers":
        _require_mlx(name)
        return import_module("kvcache.layers")
    if name in _LAZY:
        _require_mlx(name)
        value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'kvcache' has no attribute {name!r}")


def _require_mlx(name: str) -> None:
    try:
        import_module("mlx.core")
    except ImportError as error:
        raise ImportError(f"kvcache.{name}: {no_mlx(error)}", name="mlx") from error


def __dir__() -> list[str]:
    return sorted(__all__)
