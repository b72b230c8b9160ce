"""The hosts that programs may reach, as the settings name them.

In: texts of settings and adapters. Out: rules, which ``proxy`` compares with what programs ask for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from msgspec import Struct

HTTPS = 443
_NAME = re.compile(r"[0-9a-z_-]{1,63}(\.[0-9a-z_-]{1,63})*")
GROUPS: Mapping[str, Sequence[str]] = {
    "@npm": ("registry.npmjs.org", "registry.yarnpkg.com"),
    "@pypi": ("pypi.org", "files.pythonhosted.org"),
    "@crates": ("crates.io", "index.crates.io", "static.crates.io"),
    "@go": ("proxy.golang.org", "sum.golang.org"),
    "@maven": ("repo.maven.apache.org", "repo1.maven.org", "plugins.gradle.org", "services.gradle.org"),
    "@rubygems": ("rubygems.org", "index.rubygems.org"),
    "@github": (
        *("github.com", "api.github.com", "codeload.github.com", "raw.githubusercontent.com"),
        *("objects.githubusercontent.com", "release-assets.githubusercontent.com"),
    ),
    "@gitlab": ("gitlab.com",),
    "@codeberg": ("codeberg.org",),
}
"""Names for the hosts of package registries and of public forges."""


class HostRule(Struct, frozen=True):
    """A host that programs may reach: a name (``*.`` for all below), or a network. Port 0 is any."""

    name: str
    port: int
    network: IPv4Network | IPv6Network | None = None

    def fits(self, host: str, port: int) -> bool:
        """Return whether it covers a host, given by name or by address."""
        if self.port not in (0, port):
            return False
        if self.network is not None:
            return is_address(host) and ip_address(host) in self.network
        return host == self.name or (self.name.startswith("*.") and host.endswith(self.name[1:]))


def parse_rules(text: str) -> Sequence[HostRule]:
    """Return the rules for a group of hosts, such as ``@npm``, or for one host. Raises ValueError."""
    name = text.strip().lower()
    if name.startswith("@") and name not in GROUPS:
        raise ValueError(f"{text!r} is not a group of hosts; there are {', '.join(GROUPS)}")
    return tuple(map(parse_rule, GROUPS.get(name, (text,))))


def parse_rule(text: str) -> HostRule:
    """Return the rule for ``host``, ``host:port``, ``*.host``, an address or a network. Raises ValueError.

    The port of a name is 443 unless it is given; that of an address is any.
    """
    text = text.strip().lower()
    host, colon, port = text.rpartition(":")
    if _is_network(text) or not (colon and port.isascii() and port.isdecimal()):
        host, port = text, ""
    host = host.strip("[]")
    if _is_network(host):
        return HostRule(host, int(port or 0), ip_network(host))
    if not is_name(host.removeprefix("*.")):
        raise ValueError(f"{text!r} is not a host: write host, host:port, *.host, or an address or network")
    return HostRule(host, int(port or HTTPS))


def _is_network(text: str) -> bool:
    try:
        return bool(ip_network(text))
    except ValueError:
        return False


def is_address(text: str) -> bool:
    """Return whether a text is an IP address."""
    try:
        return bool(ip_address(text))
    except ValueError:
        return False


def is_name(text: str) -> bool:
    """Return whether a text is the name of a host, in lower case."""
    return len(text) <= 253 and _NAME.fullmatch(text) is not None
