"""Tools of a plugin's folder: each a file ``tools/NAME.yml``, with a command or a script that it runs.

The arguments of a call arrive as JSON on the standard input. In the words of a command ``{name}`` stands for
one of them: it becomes one word, which no shell reads.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from gateway.contract.errors import PluginError, ToolError
from gateway.contract.messages import to_json
from gateway.contract.provider import ToolDefinition
from gateway.contract.tool import Tool, ToolContext, ToolOutput
from gateway.extensions.admission import fields
from gateway.extensions.admission.config_schema import check_arguments, validator_problem
from gateway.extensions.admission.fields import Reader, Report, Wrong
from gateway.extensions.admission.manifest import MANIFEST, Admitted
from gateway.extensions.admission.yaml_tree import Node, parse_yaml
from gateway.extensions.broker.programs import ProgramResult, ToolRun, covers_command

FOLDER = "tools"
_NAME = r"[A-Za-z][\w-]{0,63}"
_PLACE = re.compile(r"\{([A-Za-z_]\w*)\}")
_INTERPRETERS: Mapping[str, tuple[str, str]] = {
    ".py": ("python3", "-c"),
    ".sh": ("sh", "-c"),
    ".js": ("node", "-e"),
}
"""The interpreter of a script by its ending, and the option that gives it the text."""
_MOST_BYTES = 64 * 1024
_MARGIN_MS = 5_000
"""The time of a call beside that of its program, for example to ask an admin for grants."""

RunTool = Callable[[ToolRun], Awaitable[ProgramResult]]


class FolderTool(Struct, frozen=True):
    """A tool of the folder. ``command`` is the argument vector, with places; ``timeout`` is in seconds.

    ``script`` is the file of a script, relative to the plugin's folder, whose text is in ``command``.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    command: tuple[str, ...]
    script: str = ""
    image: str = ""
    timeout: float = 30.0

    def argv(self, args: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the argument vector of a call. Raises ToolError.

        A word of the model alone must not be an option; one that is missing is left out.
        """
        if self.script:
            return self.command
        words: list[str] = []
        for word in self.command:
            alone = _PLACE.fullmatch(word)
            value = args.get(alone[1]) if alone is not None else ""
            if value is None:
                continue
            if isinstance(value, str) and value.startswith("-") and "--" not in words:
                raise ToolError(
                    f"{word[1:-1]} must not begin with -, which begins an option; put ./ before it"
                )
            words.append(_PLACE.sub(lambda place: _word(args.get(place[1])), word))
        return tuple(words)


def folder_tools(admitted: Admitted, run: RunTool) -> tuple[Tool, ...]:
    """Return the tools of a plugin's folder. Raises PluginError with every mistake of a file."""
    found = tuple(read_tools(admitted))
    manifest, names = admitted.manifest, {one.name for one in found}
    if not manifest.entry and (extra := next((n for n in manifest.tools or () if n not in names), None)):
        raise PluginError(
            f"tools in {MANIFEST} lists {extra!r}, but there is neither code nor {FOLDER}/{extra}.yml; "
            "remove it"
        )
    if missing := next((one.name for one in found if one.name not in (manifest.tools or ())), None):
        raise PluginError(f"tools in {MANIFEST} must list {missing!r}, which is in {FOLDER}/; add it")
    return tuple(
        Tool(
            definition=ToolDefinition(one.name, one.description, dict(one.schema)),
            execute=partial(_execute, one, run),
            match_key=lambda given: to_json(dict(sorted(given.items()))).decode(),
            timeout_ms=round(one.timeout * 1000) + _MARGIN_MS,
        )
        for one in found
    )


def read_tools(admitted: Admitted) -> Iterator[FolderTool]:
    """Yield the tools of a plugin's folder by name. Raises PluginError."""
    for file in sorted((admitted.folder / FOLDER).glob("*.yml")):
        tool = parse_tool(_bytes(file), file)
        needs = admitted.manifest.capabilities
        if tool.image and not needs.docker:
            raise PluginError(f"{file}: image needs capabilities.docker: true in {MANIFEST}; add it")
        patterns = needs.exec.allowlist if needs.exec.enabled else ()
        command = [_PLACE.sub("x", word) for word in tool.command]
        if not tool.image and not covers_command(patterns, tool.script, command):
            fixed = list(takewhile(lambda word: not _PLACE.search(word), tool.command))
            pattern = tool.script or " ".join(
                (shlex.join(fixed), *(["*"] if len(fixed) < len(command) else []))
            )
            raise PluginError(
                f"{file}: {MANIFEST} does not declare what it runs; add to capabilities.exec.allowlist: "
                f"{json.dumps(pattern)}"
            )
        yield tool


def parse_tool(data: bytes, file: Path) -> FolderTool:
    """Return the tool of a file. Raises PluginError with every mistake and its line."""
    root, complaints = parse_yaml(data)
    report = Report(list(complaints))
    found: dict[str, Any] = {"name": file.stem}
    if root is not None and root.table is not None:
        found |= fields.fields(report, root, _FIELDS, of="a tool")
        _check(report, root.table, found)
    elif not complaints:
        report.complaints.append((1, "must be a table that begins with description"))
    if report.complaints:
        raise PluginError("\n".join(report.lines(str(file))))
    if script := found.get("script"):
        interpreter = _INTERPRETERS[Path(script).suffix]
        try:
            found["command"] = (*interpreter, _bytes(file.with_name(script)).decode())
        except UnicodeDecodeError:
            raise PluginError(f"{file}: script: {script} is not UTF-8") from None
        found["script"] = f"{FOLDER}/{script}"
    return FolderTool(**found)


def _check(report: Report, given: Collection[str], found: Mapping[str, Any]) -> None:
    """Complain about what is missing, and what does not fit together."""
    for key in ("description", "schema"):
        if key not in given:
            report.add(1, key, "is missing; every tool needs it")
    if ("command" in given) == ("script" in given):
        report.add(1, "command", "or script must be there, and not both")
    if not re.fullmatch(_NAME, found["name"]):
        report.add(1, "name", f"{found['name']!r} must be 1 to 64 letters, digits, _ and -; rename the file")
    properties: Collection[str] = found.get("schema", {}).get("properties", {})
    for place in _PLACE.findall(" ".join(found.get("command", ()))):
        if place not in properties and "schema" in found:
            report.add(1, "command", f"{{{place}}} is not a property of schema; add it there")


async def _execute(
    tool: FolderTool, run: RunTool, args: Mapping[str, Any], context: ToolContext
) -> ToolOutput:
    check_arguments(tool.schema, args)
    text = to_json(dict(args)).decode()
    asked = ToolRun(tool.argv(args), text, tool.timeout, context.session, tool.image, tool.script)
    done = await run(asked)
    if done.exit_code:
        output = (done.stderr or done.stdout).strip()
        return ToolOutput(f"Error: status {done.exit_code}: {output}", is_error=True)
    return ToolOutput(done.stdout)


def _bytes(file: Path) -> bytes:
    try:
        if file.is_symlink() or not file.is_file():
            raise PluginError(f"{file} is not a file; add it")
        data = file.read_bytes()
    except OSError as error:
        raise PluginError(f"{file} cannot be read: {error.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise PluginError(f"{file} has {len(data):,} bytes; at most {_MOST_BYTES:,} are allowed")
    return data


def _word(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _words(report: Report, node: Node, key: str) -> tuple[str, ...]:
    if node.items is not None:
        return cast("tuple[str, ...]", fields.listed(fields.text(".+"))(report, node, key))
    found: str = fields.text(".+", "a command, like wc -w")(report, node, key)
    try:
        words = tuple(shlex.split(found))
    except ValueError as error:
        raise Wrong(f"{fields.shown(node)} has a quote without an end ({error})") from None
    if not words or _PLACE.search(words[0]):
        raise Wrong(f"{fields.shown(node)} must begin with a program")
    return words


def _schema(_report: Report, node: Node, _key: str) -> Mapping[str, Any]:
    schema = cast("object", node.plain())
    if not isinstance(schema, dict) or cast("dict[str, Any]", schema).get("type") != "object":
        raise Wrong("must be a JSON Schema with type: object, like {type: object, properties: {…}}")
    if problem := validator_problem(cast("dict[str, Any]", schema)):
        raise Wrong(problem)
    return cast("dict[str, Any]", schema)


_FIELDS: Mapping[str, Reader] = {
    "name": fields.text(_NAME, "a name of letters, digits, _ and -"),
    "description": fields.text(lines=True, most=1_024),
    "schema": _schema,
    "command": _words,
    "script": fields.text(
        r"[\w-][\w.-]*\.(py|sh|js)", "a file beside this one that ends with .py, .sh or .js"
    ),
    "image": fields.text(r"[a-z0-9][\w./:@-]*", "the name of an image, like python:3.12-slim"),
    "timeout": fields.number(0.1, 600, whole=False),
}
