"""Texts that callers pass."""

from __future__ import annotations

from kvcache.errors import ConfigError


def check_text(name: str, text: str) -> str:
    """The text, if it is one that has bytes.

    Args:
        name: The argument's, for the sentence.
        text: What was passed.

    Raises:
        TypeError: No text.
        ConfigError: A lone surrogate, as file names and broken JSON bring them.
    """
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str, found {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{name} must be a text without lone surrogates, found one at position {error.start} of {text!r}"
        ) from None
    return text
