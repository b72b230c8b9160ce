"""Patterns for addresses of the web: ``[scheme://]host[:port][/path]``.

A host is a name, ``*.name`` for the names below it, or ``*``. Names are compared in their ASCII form, without
case and trailing dots. A path covers itself and everything below it; ``*`` in it matches anything. Queries
and fragments are not compared. What a pattern leaves out is unclear in favour of asking: without a port,
``allow`` covers the scheme's own port only, ``deny`` and ``ask`` cover every port.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from ipaddress import IPv6Address, ip_address
from typing import Literal

from msgspec import Struct
from yarl import URL

Action = Literal["allow", "deny", "ask"]

_LONGEST = 8192
_PATTERN = re.compile(
    r"(?:(?P<scheme>https?|\*)://)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s/:?#@\[\]]+)"
    r"(?::(?P<port>[0-9]{1,5}|\*))?(?P<path>/[^\s?#]*)?"
)
_HIDDEN_STEP = re.compile("%(?:25)*(?:2e|2f|5c)|//", re.IGNORECASE)
"""Parts of a path that servers may read as a step to another folder."""
_PORTS = {"http": 80, "https": 443}


class Web(Struct, frozen=True):
    """An address as a request is sent to it. ``is_plain``: every server reads its path in the same way."""

    scheme: str
    host: str
    port: int
    path: str
    is_plain: bool

    @property
    def origin(self) -> str:
        """Scheme and host, and the port if it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if _PORTS[self.scheme] == self.port else f":{self.port}")


class _Pattern(Struct, frozen=True):
    """A parsed pattern; None is a part that it leaves out."""

    scheme: str | None
    host: str
    below: bool
    port: int | Literal["*"] | None
    path: str | None


def parse(text: str) -> Web | None:
    """Parse an address; None if it is not one of the web, holds a user name, or hides its host."""
    if len(text) > _LONGEST or not text.isprintable() or " " in text:
        return None
    try:
        url = URL(text)
        host, port = _plain_host(url.raw_host or ""), url.port
    except ValueError:
        return None
    if url.scheme not in _PORTS or host is None or not port:
        return None
    if url.raw_user is not None or url.raw_password is not None:
        return None
    return Web(url.scheme, host, port, url.raw_path, _HIDDEN_STEP.search(url.raw_path) is None)


def judge(pattern: str, action: Action, address: Web) -> Action | None:
    """Return what a pattern decides for an address: its action, or ``ask`` for an unclear path; else None."""
    if pattern == "*":
        return action
    wanted = _parse_pattern(pattern)
    if wanted is None or wanted.scheme not in (None, "*", address.scheme):
        return None
    if not _covers_host(wanted, address.host) or not _covers_port(wanted, action, address):
        return None
    if wanted.path is None or wanted.path == "/":
        return action
    if not address.is_plain:
        return "ask" if action == "allow" else action
    folder = wanted.path.rstrip("/")
    below = f"{folder}/*"
    return action if fnmatchcase(address.path, folder) or fnmatchcase(address.path, below) else None


def check(pattern: str) -> None:
    """Raise ValueError if a pattern is not an address."""
    if pattern != "*" and _parse_pattern(pattern) is None:
        raise ValueError("is not an address; write it like https://example.org/docs or *.example.org")


def offer(key: str) -> str | None:
    """Return the pattern that covers everything on the same host."""
    address = parse(key)
    return None if address is None else f"{address.origin}/*"


def _covers_host(wanted: _Pattern, host: str) -> bool:
    if wanted.below:
        return not wanted.host or host.endswith(f".{wanted.host}")
    return host == wanted.host


def _covers_port(wanted: _Pattern, action: Action, address: Web) -> bool:
    if wanted.port is None:
        return action != "allow" or address.port == _PORTS[address.scheme]
    return wanted.port in ("*", address.port)


def _parse_pattern(pattern: str) -> _Pattern | None:
    found = _PATTERN.fullmatch(pattern)
    if found is None:
        return None
    name, path = found["host"], found["path"]
    below = name == "*" or name.startswith("*.")
    name = name[2:] if below else name
    try:
        host = _plain_host(URL(f"http://{name}/").raw_host or "") if name else ""
        path = path and URL(f"http://host{path}").raw_path
    except ValueError:
        return None
    if host is None or "*" in host:
        return None
    port: str | None = found["port"]
    number = "*" if port == "*" else None if port is None else int(port)
    return _Pattern(found["scheme"], host, below, number, path)


def _plain_host(host: str) -> str | None:
    """Return a host in its only spelling; None for one that resolvers may read differently."""
    host = host.rstrip(".").lower()
    if not host or "%" in host:
        return None
    last = host.rpartition(".")[2]
    if ":" not in host and not last.isdigit() and not last.startswith("0x"):
        return host
    try:
        ip = ip_address(host)
    except ValueError:
        # Not an IPv4 address to Python, but 127.1, 0x7f.1 and 2130706433 are addresses to a resolver.
        return None
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return (mapped or ip).compressed
