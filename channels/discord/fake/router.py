"""Finds the call that a verb and a path mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from channels.discord.fake.errors import NOT_FOUND, WRONG_METHOD, ApiError

_GAP = re.compile(r"\{(\w+)\}")


class Router:
    """Knows calls by their names: verb and path template."""

    def __init__(self, calls: Iterable[str]) -> None:
        split = [name.split(" ", 1) for name in calls]
        # "@me" is looked at before any id.
        split.sort(key=lambda part: len(_GAP.findall(part[1])))
        self._routes = [(verb, template, _pattern(template)) for verb, template in split]

    def match(self, verb: str, path: str) -> tuple[str, Mapping[str, str]]:
        """The call's name and what stands in its path, which is given as it was sent. Raises ApiError."""
        found = False
        for known, template, pattern in self._routes:
            if (match := pattern.fullmatch(path)) is not None:
                found = True
                if known == verb:
                    gaps = {key: unquote(value) for key, value in match.groupdict().items()}
                    return f"{verb} {template}", gaps
        if found:
            raise ApiError(WRONG_METHOD, f"no {verb} {path}")
        raise ApiError(NOT_FOUND, f"the fake has no {path}")


def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"(\{\w+\})", template)
    return re.compile(
        "".join(f"(?P<{part[1:-1]}>[^/]+)" if _GAP.fullmatch(part) else re.escape(part) for part in parts)
    )
