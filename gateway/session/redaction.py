"""Redaction: configured secrets are masked before an answer is stored or shown.

A model can be made to repeat a key that a tool found in a file or a variable. Deltas split text anywhere, so
text that may be the beginning of a secret is held back until the next delta decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar, assert_never, cast
from urllib.parse import quote

from msgspec import structs

from gateway.contract.deltas import (
    Complete,
    Delta,
    MetadataDelta,
    PartDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    ToolResultDelta,
    ToolResultEnd,
    ToolResultStart,
)
from gateway.contract.messages import (
    ErrorPart,
    FilePart,
    ImagePart,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

MASK = "**********"
MIN_SECRET_LENGTH = 16
"""Minimum length of a masked secret in characters. Shorter ones may be ordinary words."""

Piece = TypeVar("Piece", TextDelta, ToolCallDelta, ToolResultDelta)


class Redactor:
    """The secrets to mask, each also in its URL-encoded and JSON-encoded forms."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.replace(secrets)

    def replace(self, secrets: Iterable[str]) -> None:
        """Replace the secrets to mask."""
        self.secrets = frozenset(secret for secret in secrets if len(secret) >= MIN_SECRET_LENGTH)
        spellings = {each for secret in self.secrets for each in _spell(secret)}
        # Longest first: a pattern tries its alternatives in order, and one secret may contain another.
        longest_first = sorted(spellings, key=len, reverse=True)
        self._spellings = tuple(longest_first)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if spellings else None
        first = "".join({re.escape(each[0]) for each in spellings})
        self._first = re.compile(f"[{first}]") if first else None
        self._longest = max(map(len, spellings), default=0)

    def start_message(self) -> DeltaRedactor | None:
        """Return a redactor for the deltas of a message, or None if no secrets are configured."""
        return None if self._pattern is None else DeltaRedactor(self)

    def redact_text(self, text: str) -> str:
        """Return a complete text with its secrets masked."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def redact_part(self, part: Part) -> Part:
        """Return a complete part with its secrets masked; the contents of images and attachments stay
        unchanged.
        """
        names: tuple[str, ...] = ()
        match part:
            case TextPart() if part.state and self.redact_text(part.state.data) != part.state.data:
                # A masked block would be refused, and models do without.
                return TextPart("", part.kind)
            case TextPart():
                names = ("content",)
            case ToolCallPart():
                names = ("arguments", "invalid_arguments")
            case ToolResultPart():
                names = ("output", "title")
            case ErrorPart():
                names = ("message",)
            case FilePart():
                names = ("path", "content")
            case ImagePart():
                names = ("alt_text",)
            case _:
                assert_never(part)
        old = {name: getattr(part, name) for name in names}
        new = {name: self.redact_value(value) for name, value in old.items()}
        return part if new == old else structs.replace(part, **new)

    def split(self, text: str) -> tuple[str, str]:
        """Return the text with its secrets masked, and separately its end if a secret may begin there."""
        assert self._pattern is not None, "only called if secrets are configured"
        pieces: list[str] = []
        at = 0
        for found in self._pattern.finditer(text):
            pieces += (text[at : found.start()], MASK)
            at = found.end()
        # Only the last characters can be the beginning of a secret that is still incomplete.
        held = self._find_prefix(text, max(at, len(text) - self._longest + 1))
        return "".join((*pieces, text[at:held])), text[held:]

    def _find_prefix(self, text: str, start: int) -> int:
        """Return the position from which the end of a text may be a secret's beginning, or its length."""
        assert self._first is not None, "only called if secrets are configured"
        for found in self._first.finditer(text, start):
            rest = text[found.start() :]
            if any(each.startswith(rest) for each in self._spellings):
                return found.start()
        return len(text)

    def redact_value(self, value: Any) -> Any:
        """Return a JSON value with the secrets in its texts masked."""
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, dict):
            return {
                self.redact_value(key): self.redact_value(item)
                for key, item in cast("dict[Any, Any]", value).items()
            }
        if isinstance(value, list):
            return [self.redact_value(item) for item in cast("list[Any]", value)]
        return value


NO_SECRETS = Redactor()


class DeltaRedactor:
    """Filter that masks secrets in the deltas of one message."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held: dict[int, TextDelta | ToolCallDelta | ToolResultDelta] = {}
        """Text that is held back, by part, as a delta."""
        self._lengths: dict[int, int] = {}
        """Number of characters shown so far, by text part."""

    def redact(self, delta: Delta) -> Iterator[Delta]:
        """Yield the deltas that may be shown after this one arrived."""
        match delta:
            case MetadataDelta():
                yield delta
            case TextDelta():
                yield from self._release(delta.part_index)
                yield from self._redact_text(delta)
            case ToolCallStart() | ToolCallDelta():
                # Parallel calls interleave: text held back of another call stays until that call continues.
                yield from self._release(*self._of(ToolCallDelta))
                if isinstance(delta, ToolCallStart):
                    yield delta
                else:
                    yield from self._redact_fragment(delta, "arguments_delta")
            case ToolResultDelta():
                yield from self._release(*self._of(ToolResultDelta))
                yield from self._redact_fragment(delta, "content")
            case PartDelta():
                # A whole part may replace one with held-back text, so that text must go out first.
                yield from self._release(*(self._of(ToolResultDelta) - {delta.part_index}))
                part = self._redactor.redact_part(delta.part)
                if isinstance(part, TextPart):
                    self._lengths[delta.part_index] = len(part.content)
                yield delta if part is delta.part else structs.replace(delta, part=part)
            case ToolResultStart() | ToolResultEnd():
                # Other tools may be running beside this one, and go on with their text.
                yield from self._release(*(self._of(ToolResultDelta) - {delta.part_index}))
                yield delta
            case Complete():
                yield from self.flush()
                yield delta
            case _:
                assert_never(delta)

    def _of(self, kind: type) -> set[int]:
        """Return the parts with held-back text of a kind."""
        return {index for index, delta in self._held.items() if isinstance(delta, kind)}

    def flush(self) -> Iterator[Delta]:
        """Yield the text held back, at the end of a stream: no secret followed."""
        yield from self._release()

    def _release(self, *kept: int) -> Iterator[Delta]:
        for index in [index for index in self._held if index not in kept]:
            delta = self._held.pop(index)
            # Masking changes lengths: report that of the text as shown.
            if isinstance(delta, TextDelta):
                self._lengths[index] += len(delta.content)
                delta = structs.replace(delta, accumulated_length=self._lengths[index])
            yield delta

    def _redact_text(self, delta: TextDelta) -> Iterator[TextDelta]:
        index, before = delta.part_index, self._held.pop(delta.part_index, None)
        text = before.content + delta.content if isinstance(before, TextDelta) else delta.content
        shown, held = self._redactor.split(text)
        if held:
            self._held[index] = structs.replace(delta, content=held)
        length = self._lengths[index] = self._lengths.get(index, 0) + len(shown)
        if shown == delta.content and length == delta.accumulated_length:
            yield delta
        elif shown:
            yield structs.replace(delta, content=shown, accumulated_length=length)

    def _redact_fragment(self, delta: Piece, field: str) -> Iterator[Piece]:
        before = self._held.pop(delta.part_index, None)
        given: str = getattr(delta, field)
        shown, held = self._redactor.split((getattr(before, field) if before else "") + given)
        if held:
            self._held[delta.part_index] = structs.replace(delta, **{field: held})
        if shown == given:
            yield delta
        elif shown:
            yield structs.replace(delta, **{field: shown})


def _spell(secret: str) -> set[str]:
    quoted = quote(secret, safe="", errors="replace")
    in_url = re.sub("%..", lambda found: found[0].lower(), quoted)
    return {secret, quoted, in_url, quote(secret, errors="replace"), json.dumps(secret)[1:-1]}
