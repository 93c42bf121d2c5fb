"""Budgets as people write them: bytes, or a share of what a trace would fill."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kvcache.arguments import shown
from kvcache.errors import ConfigError
from kvcache.sizes import parse_size

# Times what a trace would fill: far more than makes any difference.
_MOST: Final = 10_000
_SHARE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*%", re.ASCII)
_LOOKS_LIKE: Final = re.compile(r"[+-]?\d+(?:\.\d+)?\s*[a-z%]*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Budget:
    """Room for a cache; one of `share` and `nbytes` is None.

    Attributes:
        text: As it was written.
        share: Of the trace's unique tokens; 0.1 is 10 %.
        nbytes: Bytes.
    """

    text: str
    share: float | None
    nbytes: int | None

    def tokens(self, unique_units: int, unit_tokens: int, bytes_per_token: int) -> int:
        """The whole tokens that fit; of a share, to the nearest whole unit and at least one."""
        if self.share is not None:
            return max(1, round(self.share * unique_units)) * unit_tokens
        return (self.nbytes or 0) // bytes_per_token


def parse_budget(text: str) -> Budget:
    """Reads ``"10%"``, ``"0.5 %"``, ``"4GB"`` or ``"512MiB"``.

    Raises:
        ConfigError: It is neither, or nothing.
    """
    text = text.strip()
    found = _SHARE.fullmatch(text)
    if found is not None:
        share = float(found[1]) / 100
        if share > _MOST:
            raise ConfigError(f"a budget is a share of at most {_MOST * 100}%, found {shown(text)}")
        budget = Budget(text, share, None)
    else:
        try:
            budget = Budget(text, None, parse_size(text, "a budget"))
        except ConfigError as error:
            raise ConfigError(
                f"a budget is a share like 10% or a size like 4GB, found {shown(text)}"
            ) from error
    if not (budget.share or budget.nbytes):
        raise ConfigError(f"a budget must be more than nothing, found {text!r}")
    return budget


def looks_like_budget(text: str) -> bool:
    """Whether somebody meant this as one budget or several with commas, right or wrong."""
    return all(_LOOKS_LIKE.fullmatch(part.strip()) for part in text.split(","))
