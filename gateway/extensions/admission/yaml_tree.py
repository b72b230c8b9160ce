"""YAML of plugin authors as a tree with lines, for manifests and skills.

The bytes are checked before the parser sees them, and its events are read without recursion, so that no file
can exhaust memory or the stack. Anchors, aliases, tags and duplicate keys are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, cast

from msgspec import Struct

from gateway.contract.errors import PluginError

MOST_BYTES = 64 * 1024
MOST_LEVELS = 20
_AT = re.compile(r"^\s*(?:-\s+|[\w-]+:\s+|\{.*:\s*|.*\[\s*|.*,\s*)?(@[^\s,\]}#]*)")

Kind = Literal["text", "int", "float", "bool", "null"]
_KINDS: Mapping[str, Kind] = {"int": "int", "float": "float", "bool": "bool", "null": "null"}


class Node(Struct, frozen=True):
    """A value with its line. ``value`` is a scalar's Python value, a list of nodes, or a mapping to nodes.

    ``text`` is a scalar as written, because YAML reads a version such as ``1.10`` as a number. ``lines`` are
    the lines of a mapping's keys.
    """

    value: Any
    line: int
    text: str | None = None
    lines: Mapping[str, int] = {}

    @property
    def table(self) -> Mapping[str, Node] | None:
        """The entries of a mapping, or None."""
        return cast("Mapping[str, Node]", self.value) if isinstance(self.value, dict) else None

    @property
    def items(self) -> list[Node] | None:
        """The items of a list, or None."""
        return cast("list[Node]", self.value) if isinstance(self.value, list) else None

    def plain(self) -> Any:
        """Return the value as mappings, lists and scalars."""
        if self.table is not None:
            return {key: node.plain() for key, node in self.table.items()}
        return self.value if self.items is None else [node.plain() for node in self.items]


Complaint = tuple[int, str]
"""A line and what is wrong there."""


def split_text(data: bytes, shown: str) -> tuple[bytes | None, str]:
    """Return the YAML between two lines of ``---`` with its line numbers, or None, and the text after it.

    Raises PluginError if the second line is missing.
    """
    lines = data.split(b"\n")
    marks = [number for number, line in enumerate(lines) if line.rstrip() == b"---"]
    if not marks or marks[0] != 0:
        return None, data.decode("utf-8", "replace").strip()
    if len(marks) < 2:
        raise PluginError(f"{shown}:1: the line --- after the table is missing")
    end = marks[1]
    # The empty line keeps the numbers of the lines.
    head = b"\n".join((b"", *lines[1:end]))
    return head, b"\n".join(lines[end + 1 :]).decode("utf-8", "replace").strip()


def parse_yaml(data: bytes) -> tuple[Node | None, list[Complaint]]:
    """Return the tree of a document, or None if it cannot be parsed, and complaints."""
    if len(data) > MOST_BYTES:
        return None, [(1, f"has {len(data)} bytes; at most {MOST_BYTES} are allowed")]
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return None, [(data.count(b"\n", 0, error.start) + 1, "is not UTF-8 text")]
    import yaml  # at first use: a gateway without manifests does not need it

    builder = _Builder()
    try:
        loader: Any = yaml.SafeLoader(text)
        while loader.check_event():
            if not builder.take(loader.get_event(), loader):
                return None, builder.complaints
    except yaml.MarkedYAMLError as error:
        return None, [*builder.complaints, *_syntax(error, text)]
    except yaml.YAMLError as error:  # characters that YAML does not allow
        return None, [*builder.complaints, (1, str(error).splitlines()[0])]
    return builder.root, builder.complaints


def _syntax(error: Any, text: str) -> list[Complaint]:
    """Describe a syntax error; the usual one is a name that begins with @ and has no quotes."""
    if "'@'" in str(error.problem):
        found = [(number, _AT.match(line)) for number, line in enumerate(text.splitlines(), 1)]
        unquoted = [(number, f'{at[1]}: put it in quotes: "{at[1]}"') for number, at in found if at]
        if unquoted:
            return unquoted
    mark = error.problem_mark or error.context_mark
    return [(mark.line + 1 if mark else 1, f"is not YAML: {error.problem or error.context}")]


class _Builder:
    """Builds the tree from the parser's events."""

    def __init__(self) -> None:
        self.root: Node | None = None
        self.complaints: list[Complaint] = []
        self._open: list[Node] = []
        self._keys: list[str | None] = []
        """For each open node, the key of a mapping whose value comes next."""

    def take(self, event: Any, loader: Any) -> bool:
        """Add an event. Return whether to continue."""
        name, line = type(event).__name__, event.start_mark.line + 1
        if name == "AliasEvent":
            self.complaints.append((line, f"*{event.anchor}: aliases are not allowed; write the value"))
            self._add(Node(None, line, "", {}))
        elif name == "ScalarEvent":
            self._marked(event, line)
            self._add(_scalar(event, loader, line))
        elif name in ("MappingStartEvent", "SequenceStartEvent"):
            self._marked(event, line)
            if len(self._open) >= MOST_LEVELS:
                self.complaints.append((line, f"is nested more than {MOST_LEVELS} levels deep"))
                return False
            node = Node({}, line, None, {}) if name == "MappingStartEvent" else Node([], line)
            self._add(node)
            self._open.append(node)
            self._keys.append(None)
        elif name in ("MappingEndEvent", "SequenceEndEvent"):
            self._open.pop()
            self._keys.pop()
        elif name == "DocumentStartEvent" and self.root is not None:
            self.complaints.append((line, "has a second document; remove it"))
            return False
        return True

    def _marked(self, event: Any, line: int) -> None:
        if event.anchor:
            self.complaints.append((line, f"&{event.anchor}: anchors are not allowed; remove it"))
        if event.tag and event.tag != "!":
            self.complaints.append((line, f"{event.tag}: tags are not allowed; remove it"))

    def _add(self, node: Node) -> None:
        if not self._open:
            self.root = node
            return
        parent = self._open[-1]
        if parent.items is not None:
            parent.items.append(node)
        elif (key := self._keys[-1]) is None:
            self._key(node, parent)
        else:
            parent.value[key] = node
            self._keys[-1] = None

    def _key(self, node: Node, parent: Node) -> None:
        key = node.text
        if key is None:
            self.complaints.append((node.line, "has a key that is not text"))
            key = ""
        if key in parent.value:
            text = f"{key}: is written twice (also in line {parent.lines[key]}); remove one"
            self.complaints.append((node.line, text))
        cast("dict[str, int]", parent.lines)[key] = node.line
        parent.value[key] = Node(None, node.line, "")
        self._keys[-1] = key


def _scalar(event: Any, loader: Any, line: int) -> Node:
    import yaml

    text: str = event.value
    tag: str = loader.resolve(yaml.ScalarNode, text, event.implicit)
    kind = _KINDS.get(tag.rpartition(":")[2], "text") if event.implicit[0] else "text"
    return Node(_value(kind, text), line, text)


def _value(kind: Kind, text: str) -> Any:
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in ("true", "yes", "on")
    try:
        if kind == "int":
            return int(text)
        return float(text) if kind == "float" else text
    except ValueError:  # other notations of YAML, such as 1:30
        return text
