"""Slack's markup: the rules of Block Kit, escaped text, and mentions in both."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from channels.slack.fake.state import Json, Workspace

MOST_BLOCKS = 50
MOST_IN_VIEW = 100
LONGEST_FIELD = 3_000
_ANY_NUMBER = 100_000
LONGEST_MARKDOWN = 12_000
"""Characters of all markdown blocks of a message."""
LONGEST_BLOCKS = 13_200
"""Characters of all blocks of a message; measured, not published."""

_UNCHECKED = frozenset(
    {"alert", "call", "card", "carousel", "container", "data_table", "divider", "file", "plan"}
    | {"task_card", "video"}
)
_INLINE = frozenset(
    {"broadcast", "channel", "color", "date", "emoji", "link", "team", "text", "user", "usergroup"}
)
_RICH: Mapping[str, frozenset[str]] = {
    "rich_text_section": _INLINE,
    "rich_text_quote": _INLINE,
    "rich_text_preformatted": frozenset({"link", "text"}),
    "rich_text_list": frozenset({"rich_text_section"}),
}
"""Elements of rich text, and what each may contain."""
_DEEPEST_INDENT = 8
_SELECTS = ("static_select", "external_select", "users_select", "conversations_select", "channels_select")
_ELEMENTS = frozenset(
    [
        *_SELECTS,
        *(f"multi_{name}" for name in _SELECTS),
        "button",
        "checkboxes",
        "datepicker",
        "datetimepicker",
        "feedback_buttons",
        "icon_button",
        "image",
        "overflow",
        "plain_text_input",
        "radio_buttons",
        "rich_text_input",
        "timepicker",
        "workflow_button",
    ]
)
_Check = Callable[[Json, str], None]


class Inspection:
    """Check of blocks. ``errors`` are in Slack's words.

    ``mrkdwn`` and ``markdown`` collect texts by format, ``mentions`` the elements of rich text that notify
    users, ``kinds`` the types of blocks, ``size`` counts the characters of all texts, ``tables`` the tables.
    """

    def __init__(self, blocks: Sequence[object], *, root: str = "/blocks", most: int = MOST_BLOCKS) -> None:
        self.errors: list[str] = []
        self.mrkdwn: list[str] = []
        self.markdown: list[str] = []
        self.mentions: list[str] = []
        self.kinds: set[str] = set()
        self.size = 0
        self.tables = 0
        self._ids: set[str] = set()
        self._checks: Mapping[str, _Check] = {
            "section": self._section,
            "header": self._header,
            "markdown": self._markdown,
            "image": self._image,
            "context": self._context,
            "context_actions": self._context_actions,
            "actions": self._actions,
            "input": self._input,
            "rich_text": self._rich_text,
            "table": self._table,
        }
        if len(blocks) > most:
            self._wrong(f"no more than {most} items allowed", root)
        for number, block in enumerate(blocks):
            self._block(block, f"{root}/{number}")

    def _wrong(self, message: str, pointer: str) -> None:
        self.errors.append(f"{message} [json-pointer:{pointer}]")

    def _block(self, block: object, at: str) -> None:
        if not isinstance(block, dict):
            self._wrong("must provide an object", at)
            return
        given = cast(Json, block)
        kind = given.get("type")
        self.kinds.add(str(kind))
        check = self._checks.get(str(kind))
        if check is None and kind not in _UNCHECKED:
            self._wrong(f"unsupported type: {kind}", f"{at}/type")
            return
        self._id(given, at)
        if check is not None:
            check(given, at)
        else:
            self._collect_texts(given)

    def _id(self, block: Json, at: str) -> None:
        name = self._short(block, "block_id", at, 255)
        if name in self._ids:
            self._wrong(f"block_id already exists: {name}", f"{at}/block_id")
        elif name:
            self._ids.add(name)

    def _short(self, given: Json, key: str, at: str, longest: int, *, required: bool = False) -> str:
        value = given.get(key)
        if value is None:
            if required:
                self._wrong(f"missing required field: {key}", at)
            return ""
        if not isinstance(value, str):
            self._wrong("must provide a string", f"{at}/{key}")
            return ""
        if len(value) > longest:
            self._wrong(f"must be less than {longest + 1} characters", f"{at}/{key}")
        elif required and not value:
            self._wrong("must be more than 0 characters", f"{at}/{key}")
        self.size += len(value) if key == "text" else 0
        return value

    def _text(
        self, given: Json, key: str, at: str, longest: int, *, plain: bool, required: bool = True
    ) -> None:
        value = given.get(key)
        if value is None:
            if required:
                self._wrong(f"missing required field: {key}", at)
            return
        if not isinstance(value, dict):
            self._wrong("must provide an object", f"{at}/{key}")
            return
        self._object(cast(Json, value), f"{at}/{key}", longest, plain=plain)

    def _object(self, value: Json, at: str, longest: int, *, plain: bool) -> None:
        if value.get("type") not in (("plain_text",) if plain else ("plain_text", "mrkdwn")):
            self._wrong(f"unsupported type: {value.get('type')}", f"{at}/type")
        said = self._short(value, "text", at, longest, required=True)
        if value.get("type") == "mrkdwn":
            self.mrkdwn.append(said)

    def _list(self, given: Json, key: str, at: str, most: int) -> list[Any]:
        value = given.get(key)
        if not isinstance(value, list):
            self._wrong(f"missing required field: {key}", at)
            return []
        items = cast(list[Any], value)
        if len(items) > most:
            self._wrong(f"no more than {most} items allowed", f"{at}/{key}")
        elif not items:
            self._wrong("must be more than 0 items", f"{at}/{key}")
        return items

    def _items(self, given: Json, key: str, at: str, most: int) -> Iterator[tuple[str, Json]]:
        """Yield the objects of a list with their JSON pointers."""
        for number, one in enumerate(self._list(given, key, at, most)):
            if isinstance(one, dict):
                yield f"{at}/{key}/{number}", cast(Json, one)
            else:
                self._wrong("must provide an object", f"{at}/{key}/{number}")

    def _section(self, given: Json, at: str) -> None:
        if "fields" in given:
            for where, one in self._items(given, "fields", at, 10):
                self._object(one, where, 2_000, plain=False)
        self._text(given, "text", at, 3_000, plain=False, required="fields" not in given)
        if isinstance(given.get("accessory"), dict):
            self._element(given["accessory"], f"{at}/accessory")

    def _header(self, given: Json, at: str) -> None:
        self._text(given, "text", at, 150, plain=True)

    def _markdown(self, given: Json, at: str) -> None:
        self.markdown.append(self._short(given, "text", at, LONGEST_MARKDOWN, required=True))

    def _image(self, given: Json, at: str) -> None:
        self._short(given, "alt_text", at, 2_000, required=True)
        self._short(given, "image_url", at, 3_000, required="slack_file" not in given)
        self._text(given, "title", at, 2_000, plain=True, required=False)

    def _context(self, given: Json, at: str) -> None:
        for where, one in self._items(given, "elements", at, 10):
            if one.get("type") != "image":
                self._object(one, where, 3_000, plain=False)

    def _actions(self, given: Json, at: str) -> None:
        seen: set[str] = set()
        for where, one in self._items(given, "elements", at, 25):
            name = self._element(one, where)
            if name in seen:
                self._wrong(f"action_id already exists: {name}", f"{where}/action_id")
            seen.update({name} - {""})

    def _input(self, given: Json, at: str) -> None:
        self._text(given, "label", at, 2_000, plain=True)
        element: Any = given.get("element")
        if not isinstance(element, dict):
            self._wrong("missing required field: element", at)
            return
        field = cast(Json, element)
        self._element(field, f"{at}/element")
        longest = field.get("max_length", LONGEST_FIELD)
        if field.get("type") == "plain_text_input" and longest not in range(1, LONGEST_FIELD + 1):
            self._wrong(f"must be at most {LONGEST_FIELD}", f"{at}/element/max_length")

    def _context_actions(self, given: Json, at: str) -> None:
        for where, one in self._items(given, "elements", at, 5):
            if one.get("type") not in ("feedback_buttons", "icon_button"):
                self._wrong(f"unsupported type: {one.get('type')}", f"{where}/type")
        self._actions(given, at)

    def _rich_text(self, given: Json, at: str) -> None:
        for where, part in self._items(given, "elements", at, _ANY_NUMBER):
            self._rich_part(part, where)
        self._collect_texts(given)

    def _rich_part(self, part: Json, at: str) -> None:
        kind = part.get("type")
        inside = _RICH.get(str(kind))
        if inside is None:
            self._wrong(f"unsupported type: {kind}", f"{at}/type")
            return
        if kind == "rich_text_list":
            if part.get("style") not in ("bullet", "ordered"):
                self._wrong("must be one of: bullet, ordered", f"{at}/style")
            if part.get("indent", 0) not in range(_DEEPEST_INDENT + 1):
                self._wrong(f"must be less than {_DEEPEST_INDENT + 1}", f"{at}/indent")
        for where, one in self._items(part, "elements", at, _ANY_NUMBER):
            if one.get("type") not in inside:
                self._wrong(f"unsupported type: {one.get('type')}", f"{where}/type")
            elif kind == "rich_text_list":
                self._rich_part(one, where)
            elif one["type"] == "text" and not one.get("text"):
                self._wrong("must be more than 0 characters", f"{where}/text")

    def _table(self, given: Json, at: str) -> None:
        self.tables += 1
        before = self.size
        for number, row in enumerate(self._list(given, "rows", at, 100)):
            for where, cell in self._items({"row": row}, "row", f"{at}/rows/{number}", 20):
                self._cell(cell, where)
        if self.size - before > 10_000:
            self._wrong("must be less than 10001 characters", f"{at}/rows")
        if "column_settings" in given:
            for where, column in self._items(given, "column_settings", at, 20):
                if column.get("align", "left") not in ("left", "center", "right"):
                    self._wrong("must be one of: left, center, right", f"{where}/align")

    def _cell(self, cell: Json, at: str) -> None:
        match cell.get("type"):
            case "raw_text":
                self._short(cell, "text", at, LONGEST_MARKDOWN, required=True)
            case "rich_text":
                self._rich_text(cell, at)
            case "raw_number":
                self._collect_texts(cell)
            case kind:
                self._wrong(f"unsupported type: {kind}", f"{at}/type")

    def _element(self, given: Json, at: str) -> str:
        kind = given.get("type")
        if kind not in _ELEMENTS:
            self._wrong(f"unsupported type: {kind}", f"{at}/type")
        elif kind == "button":
            self._button(given, at)
        elif kind == "feedback_buttons":
            for side in ("positive_button", "negative_button"):
                pressed: Json = given.get(side) or {}
                self._text(pressed, "text", f"{at}/{side}", 75, plain=True)
                self._short(pressed, "value", f"{at}/{side}", 2_000, required=True)
                self._short(pressed, "accessibility_label", f"{at}/{side}", 75)
        elif kind in ("static_select", "overflow"):
            self._options(given, at, 5 if kind == "overflow" else 100)
        return self._short(given, "action_id", at, 255)

    def _button(self, given: Json, at: str) -> None:
        self._text(given, "text", at, 75, plain=True)
        self._short(given, "value", at, 2_000)
        self._short(given, "url", at, 3_000)
        if given.get("style") not in (None, "primary", "danger"):
            self._wrong("must be one of: primary, danger", f"{at}/style")

    def _options(self, given: Json, at: str, most: int) -> None:
        for where, option in self._items(given, "options", at, most):
            self._text(option, "text", where, 75, plain=given["type"] == "static_select")
            self._short(option, "value", where, 150)

    def _collect_texts(self, value: object) -> None:
        """Collect the texts of blocks that are not checked further."""
        if isinstance(value, list):
            for one in cast(list[object], value):
                self._collect_texts(one)
        elif isinstance(value, dict):
            given = cast(Json, value)
            if given.get("type") in ("user", "broadcast", "usergroup"):
                self.mentions.append(
                    str(given.get("user_id") or given.get("range") or given.get("usergroup_id"))
                )
            for key, one in given.items():
                if key == "text" and isinstance(one, str):
                    self.size += len(one)
                    self.mrkdwn += [one] if given.get("type") == "mrkdwn" else []
                else:
                    self._collect_texts(one)


def visible_text(blocks: Sequence[Json]) -> str:
    """Return the texts of blocks, one line each."""
    return "\n".join(line for block in blocks for line in _visible_lines(block))


def _visible_lines(value: object) -> list[str]:
    if isinstance(value, list):
        return [line for one in cast(list[object], value) for line in _visible_lines(one)]
    if not isinstance(value, dict):
        return []
    given = cast(Json, value)
    if given.get("type") == "rich_text_section":
        return ["".join(_element_text(one) for one in given.get("elements", ()))]
    if given.get("type") in ("actions", "context_actions"):
        return []
    if isinstance(given.get("text"), str):
        return [given["text"]]
    if given.get("type") == "table":
        rows: list[list[Json]] = given["rows"]
        return [" | ".join(" ".join(_visible_lines(cell)) for cell in row) for row in rows]
    return [line for one in given.values() for line in _visible_lines(one)]


def _element_text(element: Json) -> str:
    if element.get("type") == "user":
        return f"<@{element['user_id']}>"
    if element.get("type") == "broadcast":
        return f"<!{element['range']}>"
    return str(element.get("text", element.get("url", "")))


_PING = re.compile(
    r"<(?:!(?:here|channel|everyone|group)(?:\|[^<>]*)?|!subteam\^\w+(?:\|[^<>]*)?|@[UW]\w+(?:\|[^<>]*)?)>"
)
_SEQUENCE = re.compile(r"<(?:[@#!][\w^]+[^<>]*|[a-z][a-z0-9+.-]*:[^<>]+)>")
_TYPED = re.compile(r"https?://[^\s<>]*[^\s<>.,;:!?)]|(?<!\w)([@#])([\w-]+(?:\.[\w-]+)*)")
_BROADCASTS = ("here", "channel", "everyone")


def encode_typed(text: str, team: Workspace) -> str:
    """Return typed text as a client sends it: escaped, with links and mentions as sequences."""
    kept: list[str] = []
    end = 0
    for match in _TYPED.finditer(text):
        kept += [escape(text[end : match.start()]), _typed_sequence(match, team)]
        end = match.end()
    return "".join([*kept, escape(text[end:])])


def _typed_sequence(match: re.Match[str], team: Workspace) -> str:
    sign, name = match.groups()
    if sign is None:
        return f"<{escape(match.group())}>"
    if sign == "@" and name in _BROADCASTS:
        return f"<!{name}>"
    if sign == "@" and (user := team.user(name)) is not None:
        return f"<@{user.id}>"
    if sign == "#" and (chat := team.chat_named(name)) is not None:
        return f"<#{chat.id}|{chat.name}>"
    return match.group()


def escape(text: str) -> str:
    """Escape the characters that begin sequences and entities."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def encode_stored(text: str) -> str:
    """Return an app's text as Slack stores it: escaped, except sequences and entities."""
    kept: list[str] = []
    end = 0
    for match in _SEQUENCE.finditer(text):
        kept += [_escape_rest(text[end : match.start()]), match.group()]
        end = match.end()
    return "".join([*kept, _escape_rest(text[end:])])


def notifying_mentions(text: str, allowed: set[str]) -> Iterator[str]:
    """Yield the sequences that notify users, except those ``allowed``."""
    for match in _PING.finditer(text):
        if not any(name in match.group() for name in allowed):
            yield match.group()


def has_stray_bracket(text: str) -> bool:
    """Return whether a text has a ``<`` that begins no sequence and should have been escaped."""
    return "<" in _SEQUENCE.sub("", text)


def rich_text(text: str) -> list[Json]:
    """Return the block that a client makes of typed text, given with sequences."""
    elements: list[Json] = []
    end = 0
    for match in _SEQUENCE.finditer(text):
        elements += _text(text[end : match.start()])
        elements.append(_element(match.group()[1:-1]))
        end = match.end()
    section = {"type": "rich_text_section", "elements": [*elements, *_text(text[end:])]}
    return [{"type": "rich_text", "block_id": "typed", "elements": [section]}]


def _text(text: str) -> list[Json]:
    return [{"type": "text", "text": unescape(text)}] if text else []


def unescape(text: str) -> str:
    """Replace entities by their characters."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _element(inside: str) -> Json:
    name, _, label = inside.partition("|")
    if inside.startswith("@"):
        return {"type": "user", "user_id": name[1:]}
    if inside.startswith("#"):
        return {"type": "channel", "channel_id": name[1:]}
    if inside.startswith("!"):
        return {"type": "broadcast", "range": name[1:]}
    return {"type": "link", "url": name, **({"text": label} if label else {})}


def _escape_rest(text: str) -> str:
    text = re.sub(r"&(?!amp;|lt;|gt;)", "&amp;", text)
    return text.replace("<", "&lt;").replace(">", "&gt;")
