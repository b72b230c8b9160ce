"""The four kinds of match keys, and one order for their patterns: the first that matches decides.

text     a glob over the whole key; ``*`` matches anything, slashes too
path     a glob over the normalised path; a pattern that ends in ``/`` covers everything below that folder
command  a program and its arguments, compared word by word (``commands.py``)
url      scheme, host, port and a prefix of the path (``urls.py``)

A key that cannot be read in its kind is denied.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal, assert_never

from gateway.contract.tool import MatchKind
from gateway.patterns import commands, urls

Action = Literal["allow", "deny", "ask"]

LONGEST_KEY = 64_000
"""Most characters of a path, command or URL that patterns are compared with; a longer one is denied."""


def decide(kind: MatchKind, rules: Mapping[str, Action], key: str) -> Action:
    """Return the action of the first pattern that matches; deny if none does or the key is unclear."""
    return find(kind, rules, key)[1]


def find(kind: MatchKind, rules: Mapping[str, Action], key: str) -> tuple[str, Action]:
    """Return the first pattern that matches with its action; no pattern, and deny, if none does."""
    if kind != "text" and len(key) > LONGEST_KEY:
        return "", "deny"
    for pattern, action in rules.items():
        verdict = _judge(kind, pattern, action, key)
        if verdict is not None:
            return pattern, verdict
    return "", "deny"


def _judge(kind: MatchKind, pattern: str, action: Action, key: str) -> Action | None:
    """Return what one pattern decides, or None if it does not match."""
    match kind:
        case "text":
            return action if fnmatchcase(key, pattern) else None
        case "path":
            path = normal_path(key)
            return action if path is not None and _covers(pattern, path) else None
        case "command":
            command = commands.parse(key)
            return None if command is None else commands.judge(pattern, action, command)
        case "url":
            address = urls.parse(key)
            return None if address is None else urls.judge(pattern, action, address)
        case _:
            assert_never(kind)


def check(kind: MatchKind, pattern: str) -> None:
    """Raise ValueError with the reason if a pattern can never match a key of this kind."""
    match kind:
        case "text":
            return
        case "path":
            if pattern != "*" and _normal_pattern(pattern) is None:
                raise ValueError("leaves its root; write a path without .. at its start")
        case "command":
            commands.check(pattern)
        case "url":
            urls.check(pattern)
        case _:
            assert_never(kind)


def offer(kind: MatchKind, key: str) -> str | None:
    """Return the text that an "always" for this call stores and its button shows; None if there is none."""
    if kind != "text" and len(key) > LONGEST_KEY:
        return None
    match kind:
        case "text":
            return key
        case "path":
            return normal_path(key)
        case "command":
            return commands.offer(key)
        case "url":
            return urls.offer(key)
        case _:
            assert_never(kind)


def granted(kind: MatchKind, grant: str, key: str) -> bool:
    """Return whether a stored "always" covers a call."""
    if kind == "command":
        return len(key) <= LONGEST_KEY and commands.granted(grant, key)
    return offer(kind, key) == grant


def normal_path(key: str) -> str | None:
    """Return a path without ``.``, ``..`` and double slashes; None if it leaves its root or is not a path."""
    if not key or "\0" in key:
        return None
    path = posixpath.normpath(key)
    # POSIX gives two leading slashes their own meaning; here they are one.
    path = f"/{path.lstrip('/')}" if path.startswith("//") else path
    return None if path == ".." or path.startswith("../") else path


def _normal_pattern(pattern: str) -> str | None:
    path = normal_path(pattern)
    return f"{path.rstrip('/')}/*" if path and pattern.endswith("/") else path


def _covers(pattern: str, path: str) -> bool:
    """Return whether a pattern matches a normalised path. A folder's own path is below it, too."""
    wanted = _normal_pattern(pattern)
    if pattern == "*" or wanted is None:
        return pattern == "*"
    return path == wanted or fnmatchcase(path, wanted) or (pattern.endswith("/") and path == wanted[:-2])
