"""What is seen as one character may be several: letters with marks, emoji of many parts, flags, Hangul."""

from __future__ import annotations

import unicodedata

_LONGEST = 32
_EXTENDING = frozenset("\u200c\u200d\u0e33\u0eb3\uff9e\uff9f")


def cluster_start(text: str, at: int) -> int:
    """The nearest place at or before ``at`` that tears no such character apart.

    One of absurdly many parts is torn.
    """
    for place in range(at, max(at - _LONGEST, 0), -1):
        if not tears_a_cluster(text, place):
            return place
    return at


def tears_a_cluster(text: str, at: int) -> bool:
    """Whether what stands before and behind a place is seen as one character."""
    if not 0 < at < len(text) or text[at] < "\u0300":
        return False
    before, behind = text[at - 1], text[at]
    return (
        behind in _EXTENDING
        or unicodedata.category(behind) in ("Mn", "Me", "Mc")
        or (before == "\u200d" and behind > "\u2000")
        or "\U0001f3fb" <= behind <= "\U0001f3ff"
        or "\U000e0020" <= behind <= "\U000e007f"
        or (_is_regional(behind) and _halves_a_flag(text, at))
        or _is_one_syllable(before, behind)
    )


def _halves_a_flag(text: str, at: int) -> bool:
    """Whether an odd number of the letters that pair up as flags stands before."""
    start = at
    while start > 0 and at - start < _LONGEST and _is_regional(text[start - 1]):
        start -= 1
    return (at - start) % 2 == 1


def _is_regional(mark: str) -> bool:
    return "\U0001f1e6" <= mark <= "\U0001f1ff"


def _is_one_syllable(before: str, behind: str) -> bool:
    """Whether the two go on with one Hangul syllable: leading, then vowels, then trailing."""
    if "\u1100" <= behind <= "\u115f" or "\uac00" <= behind <= "\ud7a3":
        return "\u1100" <= before <= "\u115f"
    if "\u1160" <= behind <= "\u11a7":
        return "\u1100" <= before <= "\u11a7" or _is_open_syllable(before)
    if "\u11a8" <= behind <= "\u11ff":
        return "\u1160" <= before <= "\u11ff" or "\uac00" <= before <= "\ud7a3"
    return False


def _is_open_syllable(mark: str) -> bool:
    return "\uac00" <= mark <= "\ud7a3" and (ord(mark) - 0xAC00) % 28 == 0
