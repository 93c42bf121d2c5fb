"""The fields of a request's body: what mlx-lm does not check itself."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from kvcache.integrations.mlx_lm.checking import RequestError

_INT32: Final = (1 << 31) - 1
_UINT64: Final = (1 << 64) - 1
_WHOLE: Final = (
    "max_tokens",
    "top_k",
    "num_draft_tokens",
    "repetition_context_size",
    "presence_context_size",
    "frequency_context_size",
    "top_logprobs",
)
_NUMBERS: Final = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "xtc_probability",
    "xtc_threshold",
)


def check_fields(values: Any, body: dict[str, Any]) -> None:
    """Refuses values of the right type that mlx-lm cannot use, and types that it does not look at.

    Args:
        values: Has an attribute for each number, defaults included.
        body: As it was sent.

    Raises:
        RequestError: One sentence about the first that is no good.
    """
    for name in (*_WHOLE, *_NUMBERS, "seed"):
        value = getattr(values, name)
        if isinstance(value, bool):
            raise RequestError(f"{name} must be a number, found {json.dumps(value)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise RequestError(f"{name} must be finite")
        most = _UINT64 if name == "seed" else _INT32
        if isinstance(value, int) and value > most:
            raise RequestError(f"{name} must be at most {most}")
    if isinstance(values.seed, int) and values.seed < 0:
        raise RequestError("seed must not be negative")
    for name in ("stream_options", "chat_template_kwargs", "role_mapping"):
        if not isinstance(body.get(name), dict | None):
            raise RequestError(f"{name} must be an object")
    if not isinstance(body.get("tools"), list | None):
        raise RequestError("tools must be a list")


def check_messages(messages: Any) -> None:
    """Refuses what is no list of messages.

    Raises:
        RequestError: One sentence.
    """
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list of at least one message")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RequestError("each message must be an object with a role")
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        if not isinstance(content, str | list | None) or not all(isinstance(part, dict) for part in parts):
            raise RequestError("a message's content must be a text or a list of parts")
