"""Links: the hosts that they lead to, and whether their text names another one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from urllib.parse import urlsplit

_SCHEMES = ("http", "https", "mailto", "tg")
_BARE = re.compile(r"https?://[^\s<>\"'`]+", re.IGNORECASE)
_ADDRESS = re.compile(r"https?://([^/?#\s]*)\S*")
_WORD = re.compile(r"[\w.-]+")
_GAP = re.compile(r"\.{2,}")
_PORT = re.compile(r":\d*$")
_END_PUNCTUATION = ".,;:!?*_~"
_DOTS = str.maketrans("\u3002\uff61", "..")


def host_of(href: str) -> str | None:
    """Return the host of a URL in lower case; None if the URL must not be a link.

    For mail the host is the mail address, for a ``tg:`` URL the whole URL.
    """
    try:
        url = urlsplit(href)
        host = url.hostname
    except ValueError:
        return None
    if url.scheme not in _SCHEMES:
        return None
    if url.scheme == "tg":
        return href
    return url.path.lower() if url.scheme == "mailto" else host


def names_another_host(label: str, host: str) -> bool:
    """Return whether the text of a link looks like another host than the link's own."""
    shown = "".join(mark for mark in label if unicodedata.category(mark) != "Cf")
    plain = unicodedata.normalize("NFKC", shown).translate(_DOTS).lower()
    if plain == host:
        return False
    real = host.rpartition("@")[2].removeprefix("www.")
    return any(_PORT.sub("", name).removeprefix("www.") != real for name in _hosts_in(plain))


def _hosts_in(plain: str) -> Iterator[str]:
    yield from _ADDRESS.findall(plain)
    for word in _WORD.findall(_ADDRESS.sub(" ", plain)):
        yield from filter(_looks_like_host, _GAP.split(word.strip(".-")))


def _looks_like_host(name: str) -> bool:
    labels = name.split(".")
    if len(labels) == 4 and name.replace(".", "").isdecimal():
        return all(labels)
    return len(labels) > 1 and all(labels) and labels[-1][0].isalpha()


def bare_addresses(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of the URLs in plain text, without punctuation that ends the sentence."""
    for match in _BARE.finditer(text):
        address = _strip_punctuation(match.group())
        if host_of(address):
            yield match.start(), match.start() + len(address)


def _strip_punctuation(address: str) -> str:
    """Return a URL without trailing punctuation, and without brackets that are not opened in it."""
    end, surplus = len(address), address.count(")") - address.count("(")
    while end and (address[end - 1] in _END_PUNCTUATION or (surplus > 0 and address[end - 1] == ")")):
        end -= 1
        surplus -= address[end] == ")"
    return address[:end]
