"""Definitions of tools, as servers list them: their names for models, and their pins.

A definition instructs a model, so a server must not change one without an approval. The first list of a
server is pinned by hash. Differences, new tools included, are not offered until the operator approves them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs

from gateway.api.owned_files import replace_file
from gateway.contract.errors import NotFoundError, PluginError
from gateway.extensions.admission.config_schema import schema_problem

MOST_TOOLS = 256
"""Tools of one server; further ones are left out."""
MOST_DEFINITION_BYTES = 64 * 1024
"""Size of one definition; larger ones are left out."""
MOST_PROMPTS = 50
"""Prompts of one server; further ones are left out."""
LONGEST_NAME = 64
"""Characters of a tool's name that all model providers accept."""

_HASH = 8
_LONGEST_COMMAND = 32
_LONGEST_DESCRIPTION = 200
_MOST_ARGUMENTS = 9
_MOST_COMPARED = 4_000
"""Lines of two definitions that are compared line by line."""
_ARGUMENT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_HIDDEN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u00ad\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff"
    "\\ufff9-\\ufffb\\U000e0000-\\U000e007f]"
)


class Definition(Struct, frozen=True):
    """A tool as its server describes it. ``schema`` is the JSON Schema of its arguments.

    With the kind ``resources`` the gateway describes it, and lists and reads the server's resources.
    """

    name: str
    description: str
    schema: dict[str, Any]
    kind: Literal["tool", "resources"] = "tool"

    @property
    def digest(self) -> str:
        """The hash by which the definition is pinned."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()

    def lines(self) -> list[str]:
        """Return the definition as lines of text, to be compared."""
        schema = msgspec.json.format(msgspec.json.encode(self.schema, order="sorted"), indent=1).decode()
        return [*self.description.splitlines(), *schema.splitlines()]


RESOURCES = Definition(
    "resources",
    "List the resources of this server, such as files and records, or read one of them by its URI.",
    {
        "type": "object",
        "properties": {
            "uri": {"type": "string", "description": "What to read; without it, all resources are listed"},
            "offset": {
                "type": "integer",
                "minimum": 0,
                "description": "Offset to continue at, as the end of an answer says",
            },
        },
        "additionalProperties": False,
    },
    "resources",
)
"""The tool for the resources of a server. It is pinned like the others: a changed text needs an approval."""


class Prompt(Struct, frozen=True):
    """A text that a server makes for a user. ``arguments`` says of each name whether it is required."""

    name: str
    description: str
    arguments: dict[str, bool] = {}


class Listing(Struct, frozen=True):
    """The tools and prompts of a server, with what was left out of its lists and why."""

    tools: tuple[Definition, ...]
    left_out: tuple[str, ...] = ()
    prompts: tuple[Prompt, ...] = ()


class ToolState(Struct, frozen=True):
    """A tool with its state: offered, excluded by ``tools``, or waiting for an approval as changed or new.

    ``name`` is the server's own, ``difference`` a unified diff from what was approved.
    """

    name: str
    description: str
    state: Literal["offered", "excluded", "changed", "new", "gone"]
    difference: str = ""


class _File(Struct, frozen=True):
    approved: dict[str, Definition] = {}
    seen: dict[str, Definition] = {}
    prompts: tuple[Prompt, ...] = ()


class KnownTools:
    """The definitions of one server that were approved, and those that it listed last, in a file.

    ``patterns`` select the tools to offer.
    """

    def __init__(self, file: Path, patterns: Sequence[str] = ("*",)) -> None:
        self._file = file
        self._patterns = patterns
        self._kept = _File()

    @property
    def is_empty(self) -> bool:
        """Return whether the server was never listed."""
        return not self._kept.seen and not self._kept.prompts

    @property
    def prompts(self) -> Sequence[Prompt]:
        """The prompts that the server listed last. They instruct no model before a user asks for one."""
        return self._kept.prompts

    def load(self) -> None:
        """Read the file. Raises PluginError if it cannot be read: without pins nothing may be offered."""
        try:
            data = self._file.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise PluginError(f"{self._file} cannot be read: {error.strerror}") from None
        try:
            self._kept = msgspec.json.decode(data, type=_File)
        except msgspec.DecodeError as error:
            raise PluginError(
                f"{self._file} is damaged ({error}); delete it, and approve the tools again"
            ) from None

    def update(self, listing: Listing) -> list[str]:
        """Take the lists of the server; the first one is approved. Return the tools that now wait for it."""
        seen = {tool.name: tool for tool in listing.tools}
        approved = seen if self.is_empty and not self._kept.approved else self._kept.approved
        if (kept := _File(approved, seen, listing.prompts)) != self._kept:
            self._write(kept)
        return self.waiting()

    def waiting(self) -> list[str]:
        """Return the names of the selected tools that wait for an approval, as changed or new."""
        return [
            tool.name
            for tool in self._kept.seen.values()
            if self._is_selected(tool.name) and not self._is_pinned(tool)
        ]

    def approve(self, names: Collection[str] = ()) -> list[str]:
        """Approve the present definitions of these tools, or of all. Return the names of those that changed.

        Raises NotFoundError for a tool that the server does not have.
        """
        for name in names:
            if name not in self._kept.seen:
                raise NotFoundError(
                    f"there is no tool {name!r}; it has {', '.join(self._kept.seen) or 'none'}"
                )
        wanted = {name: tool for name, tool in self._kept.seen.items() if not names or name in names}
        new = [name for name, tool in wanted.items() if not self._is_pinned(tool)]
        gone = [] if names else [name for name in self._kept.approved if name not in self._kept.seen]
        if new or gone:
            approved = {**self._kept.approved, **wanted}
            approved = {name: approved[name] for name in approved if name not in gone}
            self._write(structs.replace(self._kept, approved=approved))
        return new

    def offered(self) -> Iterator[Definition]:
        """Yield the tools that may be offered: unchanged since their approval, and selected."""
        for tool in self._kept.seen.values():
            if self._is_pinned(tool) and self._is_selected(tool.name):
                yield tool

    def states(self) -> list[ToolState]:
        """Return all tools with their states."""
        return [*map(self._state, self._kept.seen.values())] + [
            ToolState(tool.name, tool.description, "gone")
            for tool in self._kept.approved.values()
            if tool.name not in self._kept.seen
        ]

    def _state(self, tool: Definition) -> ToolState:
        before = self._kept.approved.get(tool.name)
        shown = ToolState(tool.name, tool.description, "offered")
        if not self._is_selected(tool.name):
            return structs.replace(shown, state="excluded")
        if self._is_pinned(tool):
            return shown
        old = [] if before is None else before.lines()
        return structs.replace(
            shown, state="changed" if before else "new", difference=_difference(old, tool.lines())
        )

    def _is_pinned(self, tool: Definition) -> bool:
        before = self._kept.approved.get(tool.name)
        return before is not None and before.digest == tool.digest

    def _is_selected(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._patterns)

    def _write(self, kept: _File) -> None:
        """Store definitions so that a crash leaves the old ones or the new ones."""
        try:
            replace_file(self._file, msgspec.json.encode(kept))
        except OSError as error:
            raise PluginError(f"{self._file} cannot be written: {error.strerror}") from None
        self._kept = kept


def model_name(server: str, tool: str) -> str:
    """Return the name by which models call a tool: ``SERVER_tool`` in the characters that all accept.

    A hash replaces the end of one that is too long, so that it is neither another tool's nor changes later.
    """
    name = _FOREIGN.sub("_", f"{server}_{tool}")
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(f"{server}_{tool}".encode()).hexdigest()[:_HASH]
    return f"{name[: LONGEST_NAME - _HASH - 1]}_{digest}"


def command_name(server: str, prompt: str) -> str:
    """Return the name of a prompt's command, ``server_prompt`` in the characters of commands."""
    return _FOREIGN.sub("_", f"{server}_{prompt}").lower()[:_LONGEST_COMMAND]


def visible(text: str) -> str:
    """Return a text without invisible and direction-changing characters."""
    return _HIDDEN.sub("", text)


def checked(tools: Iterable[tuple[str, str, Mapping[str, Any]]], *, resources: bool = False) -> Listing:
    """Return the tools of a list, by name, description and schema, without what no model should get.

    ``resources``: with the tool for the resources of the server.
    """
    found: dict[str, Definition] = {}
    left_out: list[str] = []
    for name, description, schema in tools:
        if len(found) == MOST_TOOLS:
            left_out.append(f"all tools after the first {MOST_TOOLS}")
            break
        tool = Definition(name, visible(description).strip(), _as_object(schema))
        if name in found:
            left_out.append(f"{name[:LONGEST_NAME]!r}, which it lists twice")
        elif not name or len(name) > 2 * LONGEST_NAME or _HIDDEN.search(name):
            left_out.append(f"{name[:LONGEST_NAME]!r}, which is not a name")
        elif len(msgspec.json.encode(tool)) > MOST_DEFINITION_BYTES:
            left_out.append(f"{name!r}, whose definition has more than {MOST_DEFINITION_BYTES // 1024} KB")
        elif problem := schema_problem(tool.schema):
            left_out.append(f"{name!r}, whose schema {problem[:200]}")
        else:
            found[name] = tool
    if resources and found.setdefault(RESOURCES.name, RESOURCES) is not RESOURCES:
        left_out.append(f"its resources: it has a tool {RESOURCES.name!r}")
    return Listing(tuple(found.values()), tuple(left_out))


def checked_prompts(prompts: Iterable[tuple[str, str, Mapping[str, bool]]]) -> Listing:
    """Return the prompts of a list, by name, description and arguments, without what cannot be a command."""
    found: dict[str, Prompt] = {}
    left_out: list[str] = []
    for name, description, arguments in prompts:
        if len(found) == MOST_PROMPTS:
            left_out.append(f"all prompts after the first {MOST_PROMPTS}")
            break
        if name in found or not name or len(name) > 2 * LONGEST_NAME or _HIDDEN.search(name):
            left_out.append(
                f"the prompt {visible(name)[:LONGEST_NAME]!r}, which is not a name or listed twice"
            )
        elif len(arguments) > _MOST_ARGUMENTS or not all(map(_ARGUMENT.fullmatch, arguments)):
            left_out.append(f"the prompt {name!r}, whose arguments cannot be typed")
        else:
            shown = " ".join(visible(description).split())[:_LONGEST_DESCRIPTION]
            found[name] = Prompt(name, shown, dict(arguments))
    return Listing((), tuple(left_out), tuple(found.values()))


def _as_object(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema of an object. It has no further properties, unless the server says that it has."""
    if "$ref" in schema:
        return {**schema, "type": "object"}
    properties: object = schema.get("properties")
    return {
        **schema,
        "type": "object",
        "properties": properties if isinstance(properties, dict) else {},
        "additionalProperties": schema.get("additionalProperties", False),
    }


def _difference(old: Sequence[str], new: Sequence[str]) -> str:
    """Return a unified diff; of long texts one that has all their lines, because comparing takes minutes."""
    if len(old) + len(new) > _MOST_COMPARED:
        head = ("--- approved", "+++ now", f"@@ -1,{len(old)} +1,{len(new)} @@")
        return "\n".join((*head, *(f"-{line}" for line in old), *(f"+{line}" for line in new)))
    return "\n".join(unified_diff(old, new, "approved", "now", lineterm=""))
