"""What a call was asked for, checked before anything acts on it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

from kvcache._core import Tokens
from kvcache.arguments import text, whole
from kvcache.media import media_keys, read_media

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvcache.media import MediaSpan


@dataclass(frozen=True)
class StoreOptions:
    """How a prompt cache is to be stored.

    Attributes:
        length: Store this many tokens only; None: all that the layers hold.
        prompt_length: Where the prompt ends and the answer begins; None: not known.
        label: Counted by label.
        donate: The caller's layers are let go of one by one.
    """

    length: int | None = None
    prompt_length: int | None = None
    label: str = ""
    donate: bool = False

    def checked(self) -> Self:
        """The options, if they can be used.

        Raises:
            TypeError: A length that is no int, a label that is no text.
            ConfigError: A negative length.
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
    """A prompt, what is asked for it, and when.

    Attributes:
        tokens: As the caller passed them.
        namespace: What must never mix with others.
        media: Spans of the prompt, in order of their start.
        key: The tokens as the index takes them.
        spans: The media as the index takes them.
        stamp: The caller's time in microseconds; 0 where the call does not count as a use.
        options: Of a store.
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
        """Checks a call's arguments, and reads the clock where one is given.

        Args:
            tokens: The prompt.
            namespace: Its namespace.
            media: Its media spans.
            clock: The caller's time in microseconds.
            options: Of a store.
            defer: Return a request that fails in :meth:`require`: the ranks of a group have to learn of a
                failure before any of them raises.

        Raises:
            TokenError: A token id that is out of range, or more than one row.
            TypeError: Another type.
            ConfigError: Media spans that overlap, or that end past the tokens; a namespace that is no
                Unicode text; options that cannot be used.
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
        """Raises what reading raised, if it was deferred."""
        failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            # A frame that holds the exception which holds the frame would be a cycle.
            del failure

    @property
    def limit(self) -> int:
        """Tokens that can be reused at most: the engine needs one to run."""
        return max(len(self.key) - 1, 0)

    def before_media(self, length: int) -> int:
        """The last position up to ``length`` that is not inside a media span."""
        for start, span, _ in self.spans:
            if start < length < start + span:
                return start
        return length

    def within(self, length: int) -> list[tuple[int, int, bytes]]:
        """The spans of the first ``length`` tokens."""
        return [span for span in self.spans if span[0] + span[1] <= length]

    def head(self, length: int) -> Request:
        """The same request for the first ``length`` tokens."""
        return replace(self, key=self.key.head(length), spans=self.within(length))

    def rest(self, length: int) -> Any:
        """The caller's tokens after the first ``length``."""
        return rest(self.tokens, length)


def rest(tokens: Any, length: int) -> Any:
    """``tokens[length:]``; of an array with one row, the rest of that row."""
    if isinstance(tokens, memoryview) and tokens.ndim == 2:
        # Python slices no memoryview of two dimensions.
        rows: list[Any] = tokens.tolist()
        return rows[0][length:]
    return tokens[:, length:] if getattr(tokens, "ndim", 1) == 2 else tokens[length:]
