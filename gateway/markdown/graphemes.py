"""Grapheme clusters: characters that are displayed as one, in accents, emoji, flags and Hangul."""

from __future__ import annotations

import unicodedata

_MAX_LENGTH = 32
_EXTENDING = frozenset("\u200c\u200d\u0e33\u0eb3\uff9e\uff9f")


def grapheme_start(text: str, at: int) -> int:
    """Return the last offset up to ``at`` that splits no grapheme.

    A grapheme of more than 32 characters is split at ``at``.
    """
    for offset in range(at, max(at - _MAX_LENGTH, 0), -1):
        if not splits_grapheme(text, offset):
            return offset
    return at


def splits_grapheme(text: str, at: int) -> bool:
    """Return whether the characters before and after an offset belong to one grapheme."""
    if not 0 < at < len(text) or text[at] < "\u0300":
        return False
    before, after = text[at - 1], text[at]
    return (
        after in _EXTENDING
        or unicodedata.category(after) in ("Mn", "Me", "Mc")
        or (before == "\u200d" and after > "\u2000")
        or "\U0001f3fb" <= after <= "\U0001f3ff"
        or "\U000e0020" <= after <= "\U000e007f"
        or (_is_regional(after) and _splits_flag(text, at))
        or _is_one_syllable(before, after)
    )


def _splits_flag(text: str, at: int) -> bool:
    """Return whether an odd number of regional indicators precedes; two of them make a flag."""
    start = at
    while start > 0 and at - start < _MAX_LENGTH and _is_regional(text[start - 1]):
        start -= 1
    return (at - start) % 2 == 1


def _is_regional(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _is_one_syllable(before: str, after: str) -> bool:
    """Return whether two characters continue a Hangul syllable: leading consonants, vowels, trailing ones."""
    if "\u1100" <= after <= "\u115f" or "\uac00" <= after <= "\ud7a3":
        return "\u1100" <= before <= "\u115f"
    if "\u1160" <= after <= "\u11a7":
        return "\u1100" <= before <= "\u11a7" or _is_open_syllable(before)
    if "\u11a8" <= after <= "\u11ff":
        return "\u1160" <= before <= "\u11ff" or "\uac00" <= before <= "\ud7a3"
    return False


def _is_open_syllable(character: str) -> bool:
    return "\uac00" <= character <= "\ud7a3" and (ord(character) - 0xAC00) % 28 == 0
