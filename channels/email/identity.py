"""Senders: the From address is an identity only if the receiving server has verified it.

An ``Authentication-Results`` header counts if it begins with the configured authserv-id and is above the
first ``Received`` header, which the receiving server writes above everything that came with the mail: some
servers write one header for DKIM and another for DMARC. Without one there, only the first of all counts:
servers remove headers with their own name from mails (RFC 8601, section 5), but a header further down may
still have been written by the sender. Pure.
"""

from __future__ import annotations

import re
from email.headerregistry import AddressHeader
from email.message import EmailMessage
from typing import Any, cast

from channels.email.options import ADDRESS

_LONGEST = 16_384
"""Characters of a header that are read: Python's parser takes quadratic time."""
_TEXTS = ("Subject", "References", "In-Reply-To", "Message-ID")
_COMMENT = re.compile(r"\([^()]*\)")
_QUOTED = re.compile(r'=\s*"(?:([\w@.+/-]+)|[^"\\()]*)"(?=[\s;]|$)', re.ASCII)
"""A quoted value, such as ``header.d="example.org"``, of which only plain words are read."""


def header(mail: EmailMessage, name: str) -> str:
    """Return the first header of a name as one line, or an empty text."""
    found = headers(mail, name)
    return found[0] if found else ""


def headers(mail: EmailMessage, name: str) -> list[str]:
    """Return all headers of a name, each decoded and as one line."""
    return [" ".join(str(one).split()) for one in _parsed(mail, name)]


def addresses(mail: EmailMessage, *names: str) -> list[str]:
    """Return the addresses in headers, in lower case, also those that are not valid."""
    found = [one for name in names for one in _parsed(mail, name) if isinstance(one, AddressHeader)]
    return list(dict.fromkeys(address.addr_spec.lower() for one in found for address in one.addresses))


def author(mail: EmailMessage) -> tuple[str, str]:
    """Return address and display name of the one author; empty if there is not exactly one."""
    found = _parsed(mail, "From")
    one = found[0] if len(found) == 1 else None
    if not isinstance(one, AddressHeader) or cast("Any", one).defects or len(one.addresses) != 1:
        return "", ""
    address, name = one.addresses[0].addr_spec.lower(), " ".join(one.addresses[0].display_name.split())
    if one.groups[0].display_name is not None or not ADDRESS.fullmatch(address):
        return "", name
    return address, name


def is_verified(mail: EmailMessage, address: str, authserv_id: str) -> bool:
    """Return whether the server has verified that a mail is from this address.

    That is ``dmarc=pass`` for the domain of the address, or ``dkim=pass`` for that domain or one above it.
    """
    domain = address.rpartition("@")[2]
    results = _results(mail, authserv_id) if authserv_id and domain else []
    if any(method == "dmarc" and result == "fail" for method, result, _ in results):
        return False
    for method, result, properties in results:
        if method == "dmarc" and result == "pass" and properties.get("header.from") == domain:
            return True
        signer = properties.get("header.d") or properties.get("header.i", "").rpartition("@")[2]
        if method == "dkim" and result == "pass" and "." in signer and f".{domain}".endswith(f".{signer}"):
            return True
    return False


def _parsed(mail: EmailMessage, name: str) -> list[object]:
    """Return the parsed headers of a name. One that is too long is cut, or empty."""
    found: list[object] = []
    for key, raw in mail.raw_items():
        if key.lower() == name.lower():
            # Text that is not ASCII comes as the bytes of the mail; many programs write UTF-8 as it is.
            text = str(raw).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            cut = text[:_LONGEST] if len(text) <= _LONGEST or name in _TEXTS else ""
            found.append(mail.policy.header_fetch_parse(key, cut))
    return found


_Result = tuple[str, str, dict[str, str]]
"""Method, result and properties."""


def _results(mail: EmailMessage, authserv_id: str) -> list[_Result]:
    """Return the results of this server; none if one of its headers is malformed: that may be a failure."""
    names = [name.lower() for name, _ in mail.raw_items()]
    above = names[: names.index("received")] if "received" in names else []
    count = max(1, above.count("authentication-results"))
    results: list[_Result] = []
    for text in headers(mail, "Authentication-Results")[:count]:
        found = _read_results(text, authserv_id)
        if found is None and authserv_id.lower() in text.lower():
            return []
        results += found or ()
    return results


def _read_results(text: str, authserv_id: str) -> list[_Result] | None:
    """Return the results in a header of this server, none in one of another; None if it is malformed.

    Comments may hold the sender's words, so they are taken out first. Quotes in another place than around a
    value make the header malformed.
    """
    text = _QUOTED.sub(lambda found: f"={found[1] or 'quoted'}", text)
    if '"' in text or "\\" in text:
        return None
    before, plain = "", text
    while before != plain:
        before, plain = plain, _COMMENT.sub(" ", plain)
    if "(" in plain or ")" in plain:
        return None
    server, *parts = plain.split(";")
    if not server.split() or server.split()[0].lower() != authserv_id.lower():
        return []
    found: list[_Result] = []
    for part in parts:
        words = [word.partition("=") for word in re.sub(r"\s*=\s*", "=", part).lower().split()]
        if words and words[0][1]:
            properties: dict[str, str] = {}
            for name, _, value in words[1:]:
                properties.setdefault(name, value)
            # A version may follow the method: "dkim/1".
            found.append((words[0][0].partition("/")[0], words[0][2], properties))
    return found
