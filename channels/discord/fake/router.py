"""Finds the call that a verb and a path mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote

from channels.discord.fake.errors import NOT_FOUND, WRONG_METHOD, ApiError


class Router:
    """Knows calls by their names: verb and path template."""

    def __init__(self, calls: Iterable[str]) -> None:
        names = [name.split(" ", 1) for name in calls]
        self._routes = [(verb, template, template.split("/")) for verb, template in names]
        # "@me" is looked at before any id.
        self._routes.sort(key=lambda route: route[1].count("{"))

    def match(self, verb: str, path: str) -> tuple[str, Mapping[str, str]]:
        """The call's name and what stands in its path, which is given as it was sent. Raises ApiError."""
        parts = [unquote(part) for part in path.split("/")]
        found = False
        for known, template, wanted in self._routes:
            gaps = _gaps(wanted, parts)
            if gaps is not None and known == verb:
                return f"{verb} {template}", gaps
            found = found or gaps is not None
        if found:
            raise ApiError(WRONG_METHOD, f"no {verb} {path}")
        raise ApiError(NOT_FOUND, f"the fake has no {path}")


def _gaps(wanted: Sequence[str], parts: Sequence[str]) -> Mapping[str, str] | None:
    """What stands in a template's gaps, or None when the path is not of it."""
    if len(wanted) != len(parts):
        return None
    gaps: dict[str, str] = {}
    for template, part in zip(wanted, parts, strict=True):
        if template.startswith("{") and part:
            gaps[template[1:-1]] = part
        elif template != part:
            return None
    return gaps
