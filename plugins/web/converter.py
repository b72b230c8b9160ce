"""Converter of one HTML page to Markdown or text, in its own process, because pages may attack it.

``pages.py`` runs this file with ``run_confined``. The page comes on stdin, its text goes to stdout as UTF-8,
and the exit status is one of the numbers below. The arguments are the format, the charset, and the page's
address.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser

CONVERTED = 0
MISSING = 10
FLAT = 11
"""The page is nested too deep for Markdown; its text follows without headings and links."""

CHARACTERS = 5_000_000
"""Longest text; nested quotes and lists grow with each level."""
_HIDDEN = frozenset(("script", "style", "noscript", "template", "svg", "head", "iframe", "object"))
_LINES = frozenset(
    ("p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "section", "article", "pre", "table")
)


class _Text(HTMLParser):
    """A collector of the visible text of a page. It keeps no tree, so that depth costs nothing."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a line, or hide what follows."""
        self._hidden += tag in _HIDDEN
        if tag in _LINES:
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        """End a hidden element."""
        if tag in _HIDDEN and self._hidden:
            self._hidden -= 1

    def handle_data(self, data: str) -> None:
        """Keep visible text."""
        if not self._hidden:
            self.pieces.append(data)


def main(arguments: list[str]) -> int:
    """Convert the page on stdin. Return the exit status."""
    output, charset, address = arguments
    page = sys.stdin.buffer.read().decode(charset, errors="replace")
    status, text = CONVERTED, ""
    if output == "markdown":
        try:
            text = _markdown(page, address)
        except ImportError:
            return MISSING
        status = CONVERTED if text.strip() else FLAT
    if not text.strip():
        text = _plain(page)
    sys.stdout.buffer.write(text[:CHARACTERS].encode(errors="replace"))
    return status


def _markdown(page: str, address: str) -> str:
    """Return the page as Markdown with absolute links; "" if it is nested too deep."""
    from html_to_markdown import ConversionOptions, convert

    options = ConversionOptions(
        base_url=address, extract_metadata=False, inline_data_media="alt_text_only", hidden_content="drop"
    )
    converted = convert(page, options)
    # Content that is nested deeper than its limit is left out, so the text of the page would be incomplete.
    if any(str(warning.kind) == "depth_limit_exceeded" for warning in converted.warnings or ()):
        return ""
    return converted.content or ""


def _plain(page: str) -> str:
    """Return the visible text of the page, without empty lines."""
    parser = _Text()
    parser.feed(page)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.pieces).splitlines())
    return "\n".join(filter(None, lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
