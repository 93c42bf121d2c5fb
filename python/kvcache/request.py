"""Requests: a call's arguments, checked before anything acts on them."""

from __future__ import annotations

from array import array
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

import mlx.core as mx
import numpy as np

from kvcache._core import Tokens
from kvcache.arguments import text, whole
from kvcache.media import media_keys, read_media

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvcache.media import MediaSpan


@dataclass(frozen=True)
class StoreOptions:
    """How to store a prompt cache.

    Attributes:
        length: Tokens to store; None for all that the layers hold.
        prompt_length: Where the prompt ends and the answer begins; None if unknown.
        label: The label that counts the store in the statistics.
        donate: Whether to release the caller's layers one by one.
    """

    length: int | None = None
    prompt_length: int | None = None
    label: str = ""
    donate: bool = False

    def checked(self) -> Self:
        """Returns the options if they are valid.

        Raises:
            TypeError: A length is not an int, or the label is not a str.
            ConfigError: A length is negative.
        """
        if self.prompt_length is not None:
            whole("prompt_length", self.prompt_length)
        if self.length is not None:
            whole("length", self.length)
        if not isinstance(self.label, str):
            raise TypeError(f"label must be a str, found {type(self.label).__name__}")
        return self


_NO_OPTIONS: Final = StoreOptions()


@dataclass
class Request:
    """One call's prompt, options and time.

    Attributes:
        tokens: The prompt as the caller passed it.
        namespace: The namespace of the prompt.
        media: The prompt's media spans, sorted by start.
        key: The tokens in the form that the index takes.
        spans: The media spans in the form that the index takes.
        stamp: The caller's time in microseconds; 0 if the call does not count as a use.
        options: The options of a store.
    """

    tokens: Any
    namespace: str
    media: tuple[MediaSpan, ...]
    key: Tokens
    spans: list[tuple[int, int, bytes]]
    stamp: int
    options: StoreOptions = _NO_OPTIONS
    _failure: Exception | None = field(default=None, repr=False)

    @classmethod
    def read(
        cls,
        tokens: Any,
        namespace: str,
        media: Iterable[MediaSpan],
        clock: Callable[[], int] | None,
        *,
        options: StoreOptions | None = None,
        defer: bool = False,
    ) -> Self:
        """Checks a call's arguments, and reads the clock if there is one.

        Args:
            tokens: The prompt.
            namespace: Its namespace.
            media: Its media spans.
            clock: Returns the caller's time in microseconds; None if the call does not count as a use.
            options: The options of a store.
            defer: Return a failed request instead of raising; :meth:`require` then raises. The ranks of a
                group must all learn of a failure before any of them raises.

        Raises:
            TokenError: A token id is out of range, or there is more than one row.
            TypeError: An argument has the wrong type.
            ConfigError: Media spans overlap or end past the tokens, the namespace has lone surrogates, or an
                option is invalid.
        """
        try:
            options = _NO_OPTIONS if options is None else options.checked()
            if not (type(namespace) is str and namespace.isascii()):
                text("namespace", namespace)
            key = Tokens(tokens)
            spans = () if type(media) is tuple and not media else read_media(media, len(key))
            stamp = 0 if clock is None else clock()
            return cls(tokens, namespace, spans, key, media_keys(spans) if spans else [], stamp, options)
        except Exception as error:
            if not defer:
                raise
            return cls.failed(error)

    @classmethod
    def failed(cls, error: Exception) -> Self:
        """A request that raises in :meth:`require`."""
        return cls((), "", (), Tokens(()), [], 0, _failure=error)

    def require(self) -> None:
        """Raises the deferred error, if there is one."""
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            # The frame and the exception would reference each other.
            del failure

    @property
    def limit(self) -> int:
        """Most tokens that can be reused: the engine needs at least one to run."""
        return max(len(self.key) - 1, 0)

    def before_media(self, length: int) -> int:
        """The last position up to ``length`` that is not inside a media span."""
        for start, span, _ in self.spans:
            if start < length < start + span:
                return start
        return length

    def within(self, length: int) -> list[tuple[int, int, bytes]]:
        """The media spans that end within the first ``length`` tokens."""
        return [span for span in self.spans if span[0] + span[1] <= length]

    def head(self, length: int) -> Request:
        """The same request for the first ``length`` tokens."""
        return replace(self, key=self.key.head(length), spans=self.within(length))

    def rest(self, length: int) -> Any:
        """The caller's tokens after the first ``length``."""
        return rest(self.tokens, length)


def copied(tokens: Any) -> Any:
    """Copies the tokens into a buffer of the same type; a list if the type cannot be copied."""
    if isinstance(tokens, mx.array):
        return mx.array(tokens)
    if isinstance(tokens, list | tuple | array | np.ndarray):
        return copy(tokens)
    ids = memoryview(tokens).tolist()
    return ids[0] if ids and isinstance(ids[0], list) else ids


def rest(tokens: Any, length: int) -> Any:
    """``tokens[length:]``, or ``tokens[:, length:]`` for an array with one row."""
    if isinstance(tokens, memoryview) and tokens.ndim == 2:
        # A memoryview of two dimensions cannot be sliced.
        rows: list[Any] = tokens.tolist()
        return rows[0][length:]
    return tokens[:, length:] if getattr(tokens, "ndim", 1) == 2 else tokens[length:]
