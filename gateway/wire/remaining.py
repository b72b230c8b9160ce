"""What the headers of answers say of a provider's limits: that nothing is left, and when there is again.

Each vendor's ``remaining`` (``x-ratelimit-remaining-tokens``, ``anthropic-ratelimit-tokens-remaining``) has a
``reset`` beside it: as seconds, as a duration such as ``6m0s``, or as a time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import datetime

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?")
_UNITS = (86_400.0, 3600.0, 60.0, 1.0, 0.001)
_EPOCH = 1e9
"""Numbers beyond are seconds since 1970, those a hundred times as large milliseconds."""


def seconds_until_reset(headers: Mapping[str, str], now: float | None = None) -> float:
    """In how many seconds a limit that is used up is reset; 0 if none is. ``now`` is since the epoch."""
    longest = 0.0
    for name, left in headers.items():
        if "emaining" in name and "ratelimit" in name.lower() and _is_nothing(left):
            reset = headers.get(name.lower().replace("remaining", "reset"), "")
            longest = max(longest, seconds_in(reset, time.time() if now is None else now))
    return longest


def seconds_in(text: str, now: float) -> float:
    """The seconds from now that a reset tells of; 0 if it cannot be read or is over."""
    text = text.strip()
    try:
        number = float(text)
    except ValueError:
        return _duration(text) or _moment(text, now)
    if number > _EPOCH * 100:
        number /= 1000
    seconds = number - now if number > _EPOCH else number
    return seconds if 0 < seconds < float("inf") else 0.0


def _is_nothing(left: str) -> bool:
    try:
        return float(left) <= 0
    except ValueError:
        return False


def _duration(text: str) -> float:
    match = _DURATION.fullmatch(text.lower())
    if match is None or not text:
        return 0.0
    try:
        return sum(float(part) * unit for part, unit in zip(match.groups(), _UNITS, strict=True) if part)
    except ValueError:
        return 0.0


def _moment(text: str, now: float) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return max(0.0, moment.timestamp() - now) if moment.tzinfo else 0.0
