"""Text of mails: HTML as plain text, and the writer's own text apart from quoted mails. Pure."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from contextlib import suppress
from html.parser import HTMLParser

from msgspec import Struct

_MOST_HTML = 200_000
"""Characters of HTML that are read: the parser takes quadratic time for some input."""
_HIDDEN = frozenset({"head", "script", "style", "title", "template"})
_BLOCKS = re.compile(
    "address|article|blockquote|br|dd|div|dl|dt|footer|form|h[1-6r]|header|li|ol|p|pre|section|table|tr|ul"
)
_ATTRIBUTION = re.compile(
    r"(on|am|le|el|il|op|em|den|dnia)\b.{4,300}(wrote|schrieb|a écrit|escribió|ha scritto|schreef|escreveu"
    r"|skrev|napisał)\b.{0,120}:\s*|.{0,300}<[^<>@\s]{1,64}@[^<>@\s]{1,255}>.{0,120}:\s*",
    re.IGNORECASE,
)
"""Line before a quote: in some languages, or in any if it has the address of the author."""
_FORWARD = re.compile(
    r"-+ ?(forwarded message|weitergeleitete nachricht|message transféré) ?-+|begin forwarded message:",
    re.IGNORECASE,
)
_SEPARATOR = re.compile(
    r"-{2,} ?(original message|ursprüngliche nachricht|message d'origine) ?-{2,}|_{20,}", re.IGNORECASE
)
_OUTLOOK = re.compile(r"\*?(from|von|de|da|van|från|fra|od|发件人|差出人) ?:\*? .{1,300}", re.IGNORECASE)
_OUTLOOK_NEXT = re.compile(
    r"\*?(sent|date|gesendet|datum|envoyé|enviad[ao]( el| em)?|inviato|verzonden|skickat|sendt|wysłano"
    r"|发送时间|送信日時) ?:\*? .{1,200}",
    re.IGNORECASE,
)
_SIGNATURE = "-- "
"""Line before a signature (RFC 3676). Without the space it may be a line of the text."""


_WIDER = {
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "gb2312": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
"""Character sets that mail programs name although the text is of a larger one."""
_QUADRATIC = "punycode"
"""A codec of Python for names of hosts, which takes minutes for a mail. No mail program writes it."""


def decoded(data: bytes, charset: str) -> str:
    """Return the text of a part. One with a missing or wrong character set is mostly UTF-8."""
    named = "ascii"
    with suppress(LookupError, ValueError):
        found = codecs.lookup(charset).name
        named = "ascii" if found == _QUADRATIC else _WIDER.get(found, found)
    tries = [(named, "strict"), ("utf-8", "strict"), (named, "replace")]
    for one, errors in tries if named != "ascii" else tries[1:2]:
        with suppress(LookupError, ValueError):
            return data.decode(one, errors)
    return data.decode("cp1252", "replace")


class Split(Struct, frozen=True):
    """The text of a mail in two parts. ``is_forward``: the quoted part is marked as forwarded.

    ``in_place``: the writer answers below what is quoted, so that the quoted part also has the answers.
    """

    own: str
    quoted: str = ""
    is_forward: bool = False
    in_place: bool = False


def split_quotes(text: str) -> Split:
    """Return the writer's own text, without signature, and the quoted mails."""
    lines = [line.rstrip() if line != _SIGNATURE else line for line in text.replace("\r", "").split("\n")]
    end, is_forward = _end_of_own(lines)
    own: dict[int, str] = {}
    quoted: list[str] = []
    skipped = False
    for at, line in enumerate(lines[:end]):
        if line.startswith(">"):
            quoted.append(re.sub(r"^> ?", "", line))
        elif skipped or _introduces_quote(lines, at):
            skipped = not skipped and not line.endswith(":")
            quoted.append(line)
        else:
            own[at] = line
    stop = next((at for at, line in own.items() if line == _SIGNATURE), end)
    begin = next((at for at in range(stop) if lines[at].startswith(">")), stop)
    in_place = any(line and begin < at < stop for at, line in own.items())
    if in_place:
        quoted = lines[:stop]
    rest = [re.sub(r"^> ?", "", line) for line in lines[end:]]
    said = [line for at, line in own.items() if at < stop]
    return Split(_trimmed(said), _trimmed([*quoted, *rest]), is_forward, in_place)


def _end_of_own(lines: Sequence[str]) -> tuple[int, bool]:
    """Return the line from which everything is quoted, and whether it is marked as forwarded."""
    for at, line in enumerate(lines):
        if _FORWARD.fullmatch(line[:200].strip()):
            return at, True
        following = [one for one in lines[at + 1 : at + 4] if one][:2]
        if _SEPARATOR.fullmatch(line[:200].strip()) and (
            not line.startswith("_") or any(map(_OUTLOOK.fullmatch, following[:1]))
        ):
            return at, False
        if _OUTLOOK.fullmatch(line) and any(map(_OUTLOOK_NEXT.fullmatch, following[:1])):
            return at, False
    return len(lines), False


def _introduces_quote(lines: Sequence[str], at: int) -> bool:
    """Return whether a line, or it with the next one, names the author of the quote that follows."""
    for count in (1, 2):
        said = " ".join(lines[at : at + count])
        if len(said) < 600 and _ATTRIBUTION.fullmatch(said):
            following = [line for line in lines[at + count : at + count + 3] if line]
            return bool(following) and following[0].startswith(">")
    return False


def _trimmed(lines: Sequence[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def plain_of(html: str) -> str:
    """Return HTML as plain text; quotes become lines that begin with ``>``."""
    reader = _Reader()
    reader.feed(html[:_MOST_HTML])
    reader.close()
    return _trimmed("".join(reader.pieces).split("\n"))


class _Reader(HTMLParser):
    """Collector of visible text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._hidden = self._quotes = self._preformatted = 0
        self._href = ""
        self._begins = True
        """True at the beginning of a line."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HIDDEN:
            self._hidden += 1
        elif tag == "body":
            self._hidden = 0  # the end tag of the head may be omitted
        if _BLOCKS.fullmatch(tag):
            self._break()
        self._quotes += tag == "blockquote"
        self._preformatted += tag == "pre"
        if tag == "p":
            self._line()
        if tag == "li":
            self._write("• ")
        elif tag in ("td", "th") and not self._begins:
            self._write(" ")
        elif tag == "a":
            self._href = dict(attrs).get("href") or ""
        elif tag == "img":
            self._write(dict(attrs).get("alt") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in _HIDDEN:
            self._hidden = max(0, self._hidden - 1)
        if _BLOCKS.fullmatch(tag):
            self._break()
        if tag == "blockquote":
            self._quotes = max(0, self._quotes - 1)
        if tag == "pre":
            self._preformatted = max(0, self._preformatted - 1)
        if tag == "a":
            if self._href.startswith(("http://", "https://")) and self._href[:60] not in self.pieces[-1:]:
                self._write(f" ({self._href[:500]})")
            self._href = ""

    def handle_data(self, data: str) -> None:
        if self._preformatted:
            for number, line in enumerate(data.split("\n")):
                if number:
                    self._line()
                self._write(line)
            return
        words = re.sub(r"[\s\u200b]+", " ", data)
        self._write(words.lstrip() if self._begins else words)

    def _write(self, text: str) -> None:
        if text and not self._hidden:
            if self._begins and self._quotes:
                self.pieces.append("> " * min(self._quotes, 5))
            self.pieces.append(text)
            self._begins = False

    def _break(self) -> None:
        """End the line, if it has text."""
        if not self._begins:
            self._line()

    def _line(self) -> None:
        if self._begins and self._quotes and not self._hidden:
            self.pieces.append(">")
        self.pieces.append("\n")
        self._begins = True
