"""The rendered screen of a terminal: bytes of a program in, rows of styled text out.

A parser of the gateway filters the input of ``pyte``, whose own raises on some sequences (``ESC[?4m``) and
drops the text after some characters. The filter passes on only what changes the screen: titles, links
(OSC 8), the clipboard (OSC 52) and pictures are dropped. Any bytes are accepted. One call does a bounded
amount of work and leaves the rest ``pending``; output that comes faster for long is skipped.
"""

from __future__ import annotations

import codecs
import copy
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct
from pyte import modes
from pyte.charsets import LAT1_MAP, VT100_MAP
from pyte.screens import Char, Cursor, Margins, StaticDefaultDict
from pyte.screens import Screen as Grid
from wcwidth import wcwidth

MOST_ROWS = 300
MOST_COLUMNS = 500
_BUDGET = 40_000
"""Work of one call; one unit is about one character written, 0.3 µs."""
_BACKLOG = 512 * 1024
"""Characters that wait for rendering, as many as the keeper replays; before them, output is skipped."""
_LONGEST_SEQUENCE = 256
_LONGEST_STRING = 256 * 1024
"""Characters that an unterminated OSC or DCS may hide."""
_LONGEST_CELL = 8
"""Code points in one cell: a letter with its marks."""

_TOKEN = re.compile(
    r"(?P<text>[ -~]{1,4096}|[^\x00-\x9f]{1,4096})"
    r"|\x1b\[(?P<parameters>[0-?]*+)(?P<between>[ -/]*+)(?P<final>[@-~])"
    r"|\x1b(?P<string>[\]PX^_])"
    r"|\x1b(?P<set>[ -/]*+)(?P<escape>[0-OQ-WYZ\\`-~])"
    r"|(?P<control>[\x00-\x1a\x1c-\x1f\x7f-\x9f])"
    r"|(?P<broken>\x1b(?:\[[0-?]*+)?+[ -/]*+(?!\Z))"
)
_STRING_END = re.compile(r"[\x07\x18\x1a\x1b\x9c]")
_MODE = re.compile(r"\x1b\[\?([0-9]{1,5})([hl])")
_FRESH = re.compile(r"[\x1b\n]")
_LINES = re.compile(r"(?:[^\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]++|\x1b\[[0-9;:]*+m)*+")
"""Text, its style and its lines: nothing that moves the cursor elsewhere."""
_STYLE = re.compile(r"\x1b\[[0-9;:]*m")

_DEFAULT = Char(" ")
_ATTRIBUTES = {
    1: ("bold", True),
    3: ("italics", True),
    4: ("underscore", True),
    7: ("reverse", True),
    9: ("strikethrough", True),
    21: ("underscore", True),
    23: ("italics", False),
    24: ("underscore", False),
    27: ("reverse", False),
    29: ("strikethrough", False),
    # pyte has no faint text, and blinking text is not wanted: the field ``blink`` holds "faint".
    2: ("blink", True),
}
_CLASSES = (
    ("bold", "o"),
    ("blink", "d"),
    ("italics", "i"),
    ("underscore", "u"),
    ("strikethrough", "s"),
    ("reverse", "r"),
)
_CUBE = (0, 95, 135, 175, 215, 255)


class Run(Struct, frozen=True, array_like=True):
    """A piece of a row in one style: classes with a space between, "" for plain text.

    ``f0`` … ``f255`` and ``b0`` … ``b255`` are colours of text and background, as in xterm; ``o`` is bold,
    ``d`` faint, ``i`` italic, ``u`` underlined, ``s`` struck through, ``r`` reversed.
    """

    text: str
    style: str = ""


class Row(Struct, frozen=True, array_like=True):
    """A row of the screen; plain blanks at its end are left out."""

    index: int
    runs: tuple[Run, ...]


class Screen:
    """A terminal screen that accepts any bytes.

    ``rows`` and ``columns`` are within limits, even if ``resize`` was asked for others. ``version`` increases
    with each change.
    """

    def __init__(self, rows: int = 40, columns: int = 120) -> None:
        self._grid = _Grid(*_within_limits(rows, columns))
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._backlog = ""
        self.received = 0
        """Characters of all output so far, with those that are ``pending``."""
        self._hidden: int | None = None
        """Characters of the current OSC or DCS so far; None outside of one."""
        self.version = 1
        self._stamps = [1] * self.rows
        self._lines: tuple[int, tuple[str, ...]] = (0, ())
        self._grid.dirty.clear()

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._grid.lines

    @property
    def columns(self) -> int:
        """The number of columns."""
        return self._grid.columns

    @property
    def cursor(self) -> tuple[int, int]:
        """Row and column of the cursor, from 0."""
        return self._grid.cursor.y, min(self._grid.cursor.x, self.columns - 1)

    @property
    def cursor_visible(self) -> bool:
        """Return whether the program shows the cursor."""
        return not self._grid.cursor.hidden

    @property
    def bracketed_paste(self) -> bool:
        """Return whether the program wants pasted text between ``ESC[200~`` and ``ESC[201~``."""
        return 2004 in self._grid.flags

    @property
    def application_keys(self) -> bool:
        """Return whether the program wants ``ESC O A`` instead of ``ESC [ A`` for arrow keys."""
        return 1 in self._grid.flags

    @property
    def pending(self) -> int:
        """Characters that wait for the next ``feed``, which may get no bytes."""
        return 0 if _is_unfinished(self._backlog) else len(self._backlog)

    def feed(self, data: bytes) -> None:
        """Render output, up to the limit of work for one call. Never raises."""
        before = self.cursor, self.cursor_visible
        self._queue(data)
        self._skip_lines()
        text, at, budget = self._backlog, 0, _BUDGET
        while at < len(text) and budget > 0:
            if self._hidden is not None:
                at = self._hide(text, at)
            elif (token := _TOKEN.match(text, at)) is not None:
                at = token.end()
                budget -= self._apply(token)
            else:
                break
        self._backlog = text[at:]
        if len(self._backlog) > _LONGEST_SEQUENCE and _is_unfinished(self._backlog):
            self._backlog = "\x1b[<"  # of this kind, none changes the screen
        self._note_changes(before)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size; the rows above the cursor stay if they fit."""
        self._grid.resize(*_within_limits(rows, columns))
        self.version += 1
        self._stamps = [self.version] * self.rows
        self._grid.dirty.clear()

    def lines(self) -> tuple[str, ...]:
        """Return the text of all rows without the blanks at their ends."""
        if self._lines[0] != self.version:
            self._lines = self.version, tuple("".join(self._cells(row)).rstrip() for row in range(self.rows))
        return self._lines[1]

    def changed_rows(self, since: int) -> list[Row]:
        """Return the rows that may have changed after a version; 0 returns all."""
        return [self._row(index) for index, stamp in enumerate(self._stamps) if stamp > since]

    def _queue(self, data: bytes) -> None:
        text = self._decode(data)
        self.received += len(text)
        self._backlog += text
        surplus = len(self._backlog) - _BACKLOG
        if surplus <= 0:
            return
        skipped, rest = self._backlog[:surplus], self._backlog[surplus:]
        # Else the alternate screen and the cursor would stay wrong; the last value of each mode is enough.
        for mode, on in {match[1]: match[2] for match in _MODE.finditer(skipped)}.items():
            self._grid.switch(int(mode), on == "h")
        fresh = _FRESH.search(rest, 0, 4096)
        self._backlog = rest[fresh.start() :] if fresh else rest
        self._hidden = None

    def _skip_lines(self) -> None:
        """Leave out lines that scroll off within this call: most of a long output, and of a replay."""
        text = self._backlog
        if len(text) <= self.rows * 2 or self._hidden is not None or self._grid.margins is not None:
            return
        found = _LINES.match(text)
        cut = found.end() if found is not None else 0
        for _ in range(self.rows + 1):
            cut = text.rfind("\n", 0, cut)
            if cut < 0:
                return
        if text[cut - 1 : cut] != "\r" or cut < 2:
            return
        styles = _STYLE.findall(text, 0, cut)
        resets = [at for at, style in enumerate(styles) if style in ("\x1b[m", "\x1b[0m")]
        kept = styles[resets[-1] if resets else 0 :]
        # The rest begins where these lines end: in the first column, and in their style.
        self._backlog = "".join(("\r", *kept, text[cut + 1 :]))

    def _hide(self, text: str, at: int) -> int:
        """Return where the current OSC or DCS ends, or the end of the text."""
        end = _STRING_END.search(text, at)
        if end is not None:
            self._hidden = None
            # ESC may begin the terminator, which does nothing by itself, or the next sequence.
            return end.start() if end[0] == "\x1b" else end.end()
        self._hidden = (self._hidden or 0) + len(text) - at
        if self._hidden > _LONGEST_STRING:
            self._hidden = None
        return len(text)

    def _apply(self, token: re.Match[str]) -> int:
        """Change the screen; return the work."""
        match token.lastgroup:
            case "text":
                return self._grid.write(token["text"])
            case "final" if not token["between"]:
                return self._grid.run(token["parameters"], token["final"])
            case "final":
                return self._grid.soft_reset() if token["between"] + token["final"] == "!p" else 4
            case "string":
                self._hidden = 0
            case "escape":
                return self._grid.escape(token["set"], token["escape"])
            case "control":
                return self._grid.control(token["control"])
            case _:
                pass
        return 1

    def _note_changes(self, before: tuple[tuple[int, int], bool]) -> None:
        dirty = self._grid.dirty
        if not dirty and before == (self.cursor, self.cursor_visible):
            return
        self.version += 1
        for row in dirty:
            if row < self.rows:
                self._stamps[row] = self.version
        dirty.clear()

    def _cells(self, row: int) -> list[str]:
        """Return the text of each column; "" after a wide character."""
        # A row has entries for what was written alone; to ask for the others costs ten times as much.
        cells = [" "] * self.columns
        for column, cell in self._grid.buffer[row].items():
            if column < self.columns:  # half of a wide character may be beyond the end
                cells[column] = cell.data
        text = "".join(cells)
        if len(text) == len(cells) and text.isascii():
            return cells
        for column, text in enumerate(cells):
            # Half of a wide character may have been overwritten.
            is_second = column > 0 and _width(cells[column - 1][:1]) == 2
            is_half = _width(text[:1]) == 2 and cells[column + 1 : column + 2] != [""]
            if is_half or (not text and not is_second):
                cells[column] = " "
        return cells

    def _row(self, row: int) -> Row:
        line = self._grid.buffer[row]
        runs: list[tuple[list[str], str]] = []
        previous: tuple[object, ...] | None = None
        for column, text in enumerate(self._cells(row)):
            attributes = line[column][1:]
            if attributes == previous or not text:
                runs[-1][0].append(text)
            else:
                runs.append(([text], _style(attributes)))
                previous = attributes
        if runs and not runs[-1][1]:
            text = "".join(runs.pop()[0]).rstrip()
            runs += [([text], "")] if text else []
        return Row(row, tuple(Run("".join(texts), style) for texts, style in runs))


class _Grid(Grid):
    """pyte's screen with the operations that it lacks or does differently from xterm."""

    def __init__(self, rows: int, columns: int) -> None:
        self.flags: set[int] = set()
        """Private modes that are on and do not change how output is drawn."""
        self._main: tuple[dict[int, StaticDefaultDict[int, Char]], Cursor] | None = None
        """Rows and cursor of the main screen, while the alternate one is shown."""
        self._last = " "
        super().__init__(columns, rows)

    def write(self, text: str) -> int:
        """Draw text; return the work."""
        mapping = self.g1_charset if self.charset else self.g0_charset
        if mapping is not LAT1_MAP:
            text = text.translate(mapping)
        self.dirty.add(self.cursor.y)
        if text.isascii() and modes.IRM not in self.mode and modes.DECAWM in self.mode:
            self._write_ascii(text)
        else:
            attrs = self.cursor.attrs[1:]
            for char in text:
                width = _width(char)
                if width == 0:
                    self._combine(char)
                elif width > 0:
                    self._place(Char(char, *attrs), width)
                    self._last = char
        return len(text)

    def _write_ascii(self, text: str) -> None:
        """Draw text of one column each, a row at a time: most output is like this."""
        cursor, cells = self.cursor, _ascii_cells(self.cursor.attrs)
        while text:
            if cursor.x >= self.columns:
                cursor.x = 0
                self.index()
            piece, text = text[: self.columns - cursor.x], text[self.columns - cursor.x :]
            columns = range(cursor.x, cursor.x + len(piece))
            self.buffer[cursor.y].update(zip(columns, map(cells.__getitem__, piece), strict=True))
            self.dirty.add(cursor.y)
            cursor.x += len(piece)
            self._last = piece[-1]

    def _place(self, cell: Char, width: int) -> None:
        cursor = self.cursor
        if cursor.x + width > self.columns:
            if modes.DECAWM in self.mode:
                cursor.x = 0
                self.index()
            else:
                cursor.x = max(0, self.columns - width)
        if modes.IRM in self.mode:
            self.insert_characters(width)
        line = self.buffer[cursor.y]
        line[cursor.x] = cell
        if width == 2:
            line[cursor.x + 1] = cell._replace(data="")
        cursor.x += width
        self.dirty.add(cursor.y)

    def _combine(self, char: str) -> None:
        column = self.cursor.x - 1
        line = self.buffer[self.cursor.y]
        if column > 0 and not line[column].data:
            column -= 1
        if column >= 0 and len(line[column].data) < _LONGEST_CELL:
            line[column] = line[column]._replace(data=unicodedata.normalize("NFC", line[column].data + char))

    def control(self, char: str) -> int:
        """Do a control character; return the work."""
        if char in "\n\v\f":
            self.linefeed()
            return self.lines
        if (action := _CONTROLS.get(char)) is not None:
            action(self)
        return 1

    def escape(self, selected: str, char: str) -> int:
        """Do a sequence that begins with ESC and no bracket; return the work."""
        if selected in ("(", ")"):
            chosen = VT100_MAP if char == "0" else LAT1_MAP
            setattr(self, "g0_charset" if selected == "(" else "g1_charset", chosen)
        elif not selected and (action := _ESCAPES.get(char)) is not None:
            action(self)
            return self.lines
        return 1

    def run(self, parameters: str, final: str) -> int:
        """Do a sequence that begins with ``ESC[``; return the work."""
        if final == "m":
            if parameters[:1] not in tuple("<=>?"):
                self._select_style(parameters)
            return 8 + min(len(parameters), _LONGEST_SEQUENCE) * 2
        if parameters[:1] == "?":
            return self._run_private(_numbers(parameters[1:]), final)
        action = _SEQUENCES.get(final)
        if action is None or parameters[:1] in tuple("<=>"):
            return 8
        method, takes, cells = action
        method(self, *_numbers(parameters)[:takes])
        return 8 + self.lines * cells if cells else 8

    def _run_private(self, numbers: Sequence[int], final: str) -> int:
        if final in "hl":
            for mode in numbers:
                self.switch(mode, final == "h")
            return 4 * self.lines * len(numbers)
        if final in "JK":
            return self.run(str(numbers[0]), final)
        return 1

    def switch(self, mode: int, on: bool) -> None:
        """Switch a private mode that matters here."""
        if mode == 7:
            (self.mode.add if on else self.mode.discard)(modes.DECAWM)
        elif mode == 25:
            self.cursor.hidden = not on
        elif mode in (47, 1047, 1049):
            self._switch_screen(on)
        elif mode in (1, 2004):
            (self.flags.add if on else self.flags.discard)(mode)

    def _switch_screen(self, alternate: bool) -> None:
        if alternate == (self._main is not None):
            return
        if self._main is None:
            self._main = dict(self.buffer), copy.copy(self.cursor)
            self.buffer.clear()
        else:
            rows, cursor = self._main
            self._main = None
            self.buffer.clear()
            self.buffer.update({row: line for row, line in rows.items() if row < self.lines})
            cursor.hidden = self.cursor.hidden
            self.cursor = cursor
            self.ensure_hbounds()
            self.ensure_vbounds()
        self.margins = None
        self.dirty.update(range(self.lines))

    def soft_reset(self) -> int:
        """Reset modes, margins and style; the text stays."""
        self.mode = {modes.DECAWM, modes.DECTCEM}
        self.margins = None
        self.flags.clear()
        self.cursor.attrs = _DEFAULT
        self.cursor.hidden = False
        self.g0_charset, self.charset = LAT1_MAP, 0
        return 1

    def reset(self) -> None:
        """Clear everything."""
        self._main = None
        self.flags.clear()
        self.savepoints.clear()
        super().reset()

    def save_cursor(self) -> None:
        """Keep cursor and character set; only the last ones count."""
        self.savepoints.clear()
        super().save_cursor()

    def restore_cursor(self) -> None:
        """Put the kept cursor back; it stays kept."""
        kept = [point._replace(cursor=copy.copy(point.cursor)) for point in self.savepoints]
        super().restore_cursor()
        self.savepoints = kept

    def set_margins(self, top: int | None = None, bottom: int | None = None) -> None:
        """Set the rows that scroll; without numbers, all."""
        last = min(bottom or self.lines, self.lines) - 1
        first = max(top or 1, 1) - 1
        if first >= last:
            return
        self.margins = None if (first, last) == (0, self.lines - 1) else Margins(first, last)
        self.cursor_position()

    def scroll_up(self, count: int) -> None:
        """Move the rows within the margins up."""
        self._at_top(self.delete_lines, count)

    def scroll_down(self, count: int) -> None:
        """Move the rows within the margins down."""
        self._at_top(self.insert_lines, count)

    def _at_top(self, change: Callable[[int], None], count: int) -> None:
        at = self.cursor.x, self.cursor.y
        self.cursor.y = self.margins.top if self.margins else 0
        change(count)
        self.cursor.x, self.cursor.y = at

    def delete_lines(self, count: int | None = None) -> None:
        """Delete rows from that of the cursor."""
        for row in range(self.lines):
            _ = self.buffer[row]  # pyte keeps the old row where the one that moves there does not exist yet
        super().delete_lines(count)

    def erase_in_display(self, how: int = 0, *args: int, **kwargs: bool) -> None:
        """Erase after the cursor (0), before it (1) or all (2); 3 is the history, of which there is none."""
        if how > 2:
            return
        rows = (range(self.cursor.y + 1, self.lines), range(self.cursor.y), range(self.lines))[how]
        blank = _blank(self.cursor.attrs)
        for row in rows:
            self.buffer.pop(row, None)
            if blank != _DEFAULT:
                self.buffer[row].update(dict.fromkeys(range(self.columns), blank))
        self.dirty.update(rows)
        if how < 2:
            self.erase_in_line(how)

    def erase_in_line(self, how: int = 0, private: bool = False) -> None:
        """Erase after the cursor (0), before it (1) or the row (2)."""
        if how <= 2:
            first = (self.cursor.x, 0, 0)[how]
            last = (self.columns, min(self.cursor.x + 1, self.columns), self.columns)[how]
            cells = dict.fromkeys(range(first, last), _blank(self.cursor.attrs))
            self.buffer[self.cursor.y].update(cells)
            self.dirty.add(self.cursor.y)

    def erase_characters(self, count: int | None = None) -> None:
        """Erase some cells from that of the cursor."""
        last = min(self.cursor.x + (count or 1), self.columns)
        cells = dict.fromkeys(range(self.cursor.x, last), _blank(self.cursor.attrs))
        self.buffer[self.cursor.y].update(cells)
        self.dirty.add(self.cursor.y)

    def repeat(self, count: int) -> None:
        """Draw the last character again."""
        self.write(self._last * min(count or 1, self.columns))

    def back_tab(self, count: int) -> None:
        """Move to the tab stop before."""
        self.cursor.x = max(0, (self.cursor.x - 1) // 8 - (count or 1) + 1) * 8

    def set_plain_mode(self, *numbers: int) -> None:
        """Switch insert mode on."""
        if 4 in numbers:
            self.mode.add(modes.IRM)

    def reset_plain_mode(self, *numbers: int) -> None:
        """Switch insert mode off."""
        if 4 in numbers:
            self.mode.discard(modes.IRM)

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        """Change the size. Rows leave at the top only if the cursor would be below the screen."""
        lines, columns = lines or self.lines, columns or self.columns
        above = max(0, self.cursor.y - lines + 1)
        rows = {row - above: line for row, line in self.buffer.items() if 0 <= row - above < lines}
        for line in rows.values():
            for column in [column for column in line if column >= columns]:
                del line[column]
        self.buffer.clear()
        self.buffer.update(rows)
        self.lines, self.columns, self.margins = lines, columns, None
        self.tabstops = set(range(8, columns, 8))
        self.cursor.y -= above
        self.ensure_hbounds()
        self.ensure_vbounds()

    def _select_style(self, parameters: str) -> None:
        attrs = self.cursor.attrs
        numbers = _style_numbers(parameters)
        while numbers:
            number = numbers.pop()
            if number == 0:
                attrs = _DEFAULT
            elif number == 22:
                attrs = attrs._replace(bold=False, blink=False)
            elif number in _ATTRIBUTES:
                name, on = _ATTRIBUTES[number]
                attrs = attrs._replace(**{name: on})
            else:
                attrs = _coloured(attrs, number, numbers)
        self.cursor.attrs = attrs


def _within_limits(rows: int, columns: int) -> tuple[int, int]:
    return min(max(rows, 1), MOST_ROWS), min(max(columns, 2), MOST_COLUMNS)


def _is_unfinished(text: str) -> bool:
    """Return whether text is the beginning of a sequence."""
    return text[:1] == "\x1b" and _TOKEN.match(text) is None


@lru_cache(maxsize=4096)
def _width(char: str) -> int:
    """Return the columns of a character, 0 for one that is added to that before, -1 for none at all.

    Characters of formatting are left out: they could turn the direction of what a user reads and allows.
    """
    if not char or (unicodedata.category(char) in ("Cf", "Zl", "Zp") and char != "\u200d"):
        return -1
    return wcwidth(char)


@lru_cache(maxsize=256)
def _ascii_cells(attrs: Char) -> Mapping[str, Char]:
    """Return the cells of all ASCII characters in a style."""
    return {char: attrs._replace(data=char) for char in map(chr, range(32, 127))}


def _blank(attrs: Char) -> Char:
    """Return the erased cell: only the background stays."""
    return _DEFAULT if attrs.bg == "default" else Char(" ", bg=attrs.bg)


def _number(text: str) -> int:
    return min(int(text), 9999) if text.isdecimal() and len(text) < 9 else 9999 if text.isdecimal() else 0


def _numbers(parameters: str) -> list[int]:
    """Return the first numbers of a sequence; 0 for what is left out."""
    return [_number(text) for text in parameters[:_LONGEST_SEQUENCE].split(";")[:16]]


def _style_numbers(parameters: str) -> list[int]:
    """Return the numbers of a style, the first one last; ``4:3`` and ``38:2::r:g:b`` as with semicolons."""
    found: list[int] = []
    for part in parameters[:_LONGEST_SEQUENCE].split(";"):
        numbers = [_number(text) for text in part.split(":")]
        if len(numbers) == 2 and numbers[0] == 4:
            numbers = [4 if numbers[1] else 24]
        elif len(numbers) > 5 and numbers[1] == 2:
            del numbers[2]  # the colour space
        found += numbers
    return found[::-1]


def _coloured(attrs: Char, number: int, following: list[int]) -> Char:
    """Return a style with another colour; takes the numbers of the colour."""
    if number in (38, 48, 58):
        colour = _extended_colour(following)
        return attrs if colour is None or number == 58 else _with_colour(attrs, number == 38, colour)
    if number in (39, 49):
        return attrs._replace(**{"fg" if number == 39 else "bg": "default"})
    for first, base in ((30, 0), (90, 8)):
        if first <= number < first + 8:
            return _with_colour(attrs, True, number - first + base)
        if first + 10 <= number < first + 18:
            return _with_colour(attrs, False, number - first - 10 + base)
    return attrs


def _with_colour(attrs: Char, of_text: bool, colour: int) -> Char:
    return attrs._replace(fg=str(colour)) if of_text else attrs._replace(bg=str(colour))


def _extended_colour(following: list[int]) -> int | None:
    """Return the colour of ``5;n`` or ``2;r;g;b`` in the palette of 256; None if it is not complete."""
    kind = following.pop() if following else 0
    if kind == 5 and following:
        return min(following.pop(), 255)
    if kind == 2 and len(following) >= 3:
        red, green, blue = (min(following.pop(), 255) for _ in range(3))
        if max(red, green, blue) - min(red, green, blue) < 8 and 4 < red < 246:
            return 232 + min((red - 3) // 10, 23)
        nearest = [min(range(6), key=lambda i, v=value: abs(_CUBE[i] - v)) for value in (red, green, blue)]
        return 16 + 36 * nearest[0] + 6 * nearest[1] + nearest[2]
    return None


@lru_cache(maxsize=1024)
def _style(attrs: tuple[object, ...]) -> str:
    """Return the classes of a cell's style, which is the cell without its character."""
    cell = dict(zip(Char._fields[1:], attrs, strict=True))
    found = [] if cell["fg"] == "default" else [f"f{cell['fg']}"]
    found += [] if cell["bg"] == "default" else [f"b{cell['bg']}"]
    return " ".join([*found, *(name for field, name in _CLASSES if cell[field])])


_CONTROLS: dict[str, Callable[[_Grid], None]] = {
    "\r": _Grid.carriage_return,
    "\b": _Grid.backspace,
    "\t": _Grid.tab,
    "\x0e": _Grid.shift_out,
    "\x0f": _Grid.shift_in,
}
_ESCAPES: dict[str, Callable[[_Grid], None]] = {
    "c": _Grid.reset,
    "D": _Grid.index,
    "E": lambda grid: (grid.carriage_return(), grid.index())[0],
    "M": _Grid.reverse_index,
    "H": _Grid.set_tab_stop,
    "7": _Grid.save_cursor,
    "8": _Grid.restore_cursor,
}
_SEQUENCES: dict[str, tuple[Callable[..., None], int, int]] = {
    # What it does, how many numbers it takes, and its work for each row of the screen.
    "@": (_Grid.insert_characters, 1, 4),
    "A": (_Grid.cursor_up, 1, 0),
    "B": (_Grid.cursor_down, 1, 0),
    "C": (_Grid.cursor_forward, 1, 0),
    "D": (_Grid.cursor_back, 1, 0),
    "E": (_Grid.cursor_down1, 1, 0),
    "F": (_Grid.cursor_up1, 1, 0),
    "G": (_Grid.cursor_to_column, 1, 0),
    "H": (_Grid.cursor_position, 2, 0),
    "J": (_Grid.erase_in_display, 1, 16),
    "K": (_Grid.erase_in_line, 1, 4),
    "L": (_Grid.insert_lines, 1, 4),
    "M": (_Grid.delete_lines, 1, 4),
    "P": (_Grid.delete_characters, 1, 4),
    "S": (_Grid.scroll_up, 1, 4),
    "T": (_Grid.scroll_down, 1, 4),
    "X": (_Grid.erase_characters, 1, 4),
    "Z": (_Grid.back_tab, 1, 0),
    "`": (_Grid.cursor_to_column, 1, 0),
    "a": (_Grid.cursor_forward, 1, 0),
    "b": (_Grid.repeat, 1, 4),
    "d": (_Grid.cursor_to_line, 1, 0),
    "e": (_Grid.cursor_down, 1, 0),
    "f": (_Grid.cursor_position, 2, 0),
    "g": (_Grid.clear_tab_stop, 1, 0),
    "h": (_Grid.set_plain_mode, 16, 0),
    "l": (_Grid.reset_plain_mode, 16, 0),
    "r": (_Grid.set_margins, 2, 0),
    "s": (_Grid.save_cursor, 0, 0),
    "u": (_Grid.restore_cursor, 0, 0),
}
