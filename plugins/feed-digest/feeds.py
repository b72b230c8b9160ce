"""Reads RSS and Atom feeds with the parser of the standard library."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

LONGEST_TITLE = 200
_LONGEST_ID = 500


@dataclass(frozen=True)
class Entry:
    """An entry of a feed. ``link`` is "" if it has none that can be opened."""

    id: str
    title: str
    link: str

    def as_markdown(self) -> str:
        """Return a line with the title, which may contain characters of Markdown."""
        title = re.sub(r"([\\`*_{}\[\]<>#|~!])", r"\\\1", self.title)
        return f"- [{title}](<{self.link}>)" if self.link else f"- {title}"


@dataclass(frozen=True)
class Feed:
    """A feed with its entries in its own order: most list the newest first."""

    title: str
    entries: tuple[Entry, ...]


def parse_feed(data: bytes) -> Feed:
    """Parse RSS 0.9 to 2.0, or Atom. Raises ValueError for anything else."""
    root = _parse(data)
    items = [each for each in root.iter() if _name(each) in ("item", "entry")]
    if _name(root) not in ("rss", "RDF", "feed"):
        raise ValueError(f"it is not a feed: its first element is {_name(root)[:40]!r}")
    top = next((each for each in root.iter() if _name(each) in ("channel", "feed")), root)
    entries = (_entry(item) for item in items)
    return Feed(_text(top, "title"), tuple(each for each in entries if each.id))


def _parse(data: bytes) -> Element:
    builder = TreeBuilder()

    def refuse(*_declared: object) -> None:
        # A few nested entities expand to gigabytes. No feed needs one of its own.
        raise ValueError("it declares entities, which may expand without limit")

    parser = expat.ParserCreate(namespace_separator="}")
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise ValueError(f"it is not XML: {error}") from None
    return builder.close()


def _entry(item: Element) -> Entry:
    link = next(_links(item), "")
    title = _text(item, "title") or link or "Untitled"
    known = _text(item, "guid") or _text(item, "id") or link or _text(item, "title")
    return Entry(known[:_LONGEST_ID], title, link)


def _links(item: Element) -> Iterator[str]:
    """Yield the links of an entry: the text in RSS, an attribute in Atom."""
    for each in item:
        if _name(each) == "link" and each.get("rel", "alternate") == "alternate":
            address = (each.get("href") or each.text or "").strip()
            if re.fullmatch(r"https?://[^\s<>\"\\]{1,2000}", address):
                yield address


def _text(parent: Element, name: str) -> str:
    """Return the text of the first child with a name, without markup and in one line."""
    found = next((each for each in parent if _name(each) == name), None)
    if found is None:
        return ""
    text = re.sub(r"<[^>]{0,1000}>", "", html.unescape("".join(found.itertext())))
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= LONGEST_TITLE else f"{line[: LONGEST_TITLE - 1]}…"


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]
