"""The manifest of a plugin, ``plugin.yml``: what it is, what it offers, and what it needs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, cast
from zoneinfo import ZoneInfo

from msgspec import Struct, structs

from gateway.api.owned_files import exists
from gateway.contract.errors import PluginError
from gateway.extensions.admission import fields
from gateway.extensions.admission.capabilities import (
    FROM_CONFIG,
    Capabilities,
    ExecAccess,
    FilesystemAccess,
    Grant,
    LlmAccess,
    NetworkAccess,
)
from gateway.extensions.admission.config_schema import check_schema
from gateway.extensions.admission.fields import Reader, Report, Wrong
from gateway.extensions.admission.yaml_tree import Node, parse_yaml
from gateway.extensions.hooks import HOOKS
from gateway.version import VERSION

MANIFEST = "plugin.yml"
API = 1
"""Version of the contract."""
NAME = re.compile(r"[a-z][a-z0-9-]{1,62}[a-z0-9]")
SCOPED = re.compile(rf"@{NAME.pattern}/{NAME.pattern}")

Trust = Literal["sandbox", "full"]

EVENTS = (
    "tool.execute.before",
    "tool.execute.after",
    "permission.ask",
    "permission.replied",
    "session.created",
    "session.resumed",
    "session.idle",
    "session.error",
    "session.compacting",
    "session.compacted",
    "message.added",
    "message.updated",
    "message.removed",
    "chat.message",
    "agent.created",
    "agent.started",
    "agent.completed",
    "agent.failed",
    "file.modified",
    "file.deleted",
    "command.executed",
    "slash.command.executed",
    "cost.updated",
    "budget.exceeded",
)
ALIASES = {"session.completed": "session.idle"}
"""Other names of events."""
PLUGIN_HOOKS = tuple(hook for hook in HOOKS if hook != "session_compacting")
"""The hooks that a manifest may name; ``session.compacting`` is an event."""

_SETTING = re.compile(rf"{FROM_CONFIG}\w+(\.\w+)*")
_LEVELS: Mapping[str, tuple[str, ...]] = {
    "messages": ("none", "read", "change"),
    "tools": ("none", "block", "decide"),
}
_IMPLIED: Mapping[str, tuple[str, str]] = {
    "tool.execute.before": ("tools", "block"),
    "permission.ask": ("tools", "decide"),
    "chat.message": ("messages", "change"),
    "before_llm_call": ("messages", "change"),
    "after_llm_call": ("messages", "change"),
    "before_tool_exec": ("tools", "block"),
    "after_tool_exec": ("messages", "change"),
    "filter_tools": ("tools", "block"),
    "transform_user_input": ("messages", "change"),
    "after_agent_run": ("messages", "read"),
}
"""The capability that a subscription or hook requests: it decides, or it gets the content of messages."""


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a plugin's process. ``cpu_seconds`` is for each call, ``cpu_percent`` over one minute.

    ``in_flight`` is the number of calls at once in each direction.
    """

    memory_mb: int = 256
    cpu_seconds: int = 10
    cpu_percent: int = 50
    in_flight: int = 64


class Schedule(Struct, frozen=True, forbid_unknown_fields=True):
    """A job: five fields of cron, in a time zone; ``config`` is the zone of the settings."""

    name: str
    cron: str
    timezone: str = "config"

    def next_after(self, seconds: float, zone: ZoneInfo) -> int:
        """Return the first time of the job after a time; both are seconds since the epoch.

        If the clocks change, a job with a fixed hour runs once: after a gap at its end, and in an hour that
        comes twice the first time. One with ``*`` as its hour runs in each hour that passes.
        """
        from cronsim import CronSim

        times = CronSim(self.cron, datetime.fromtimestamp(seconds, zone))
        return next(at for each in times if (at := int(each.timestamp())) > seconds)


PageSlot = Literal["status", "panel"]


class Manifest(Struct, frozen=True):
    """A checked manifest. ``tools`` and ``commands`` are None if the manifest does not name them.

    ``entry`` is "" for a bundle without code. ``config`` is a JSON Schema of the plugin's settings. ``page``
    names the places on the chat page that it uses.
    With ``on_failure: closed`` all its handlers block when they fail, unless the operator's settings say it.
    """

    name: str
    version: str
    description: str = ""
    author: str = ""
    license: str = ""
    entry: str = "main.py"
    events: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None
    commands: tuple[str, ...] | None = None
    capabilities: Capabilities = Capabilities()
    config: Mapping[str, Any] = {}
    secrets: tuple[str, ...] = ()
    schedule: tuple[Schedule, ...] = ()
    limits: Limits = Limits()
    requires: str = ""
    on_failure: Literal["closed"] | None = None
    page: tuple[PageSlot, ...] = ()


class Admitted(Struct, frozen=True):
    """A plugin that may be started: its manifest, its folder, the hash of its content, and its grants.

    ``site`` is the folder of its own dependencies. ``grants`` are those of the lock file; later ones are rows
    of the database. ``source`` names its origin, ``wheels``
    are the hashes of the packages that it was installed from.
    """

    manifest: Manifest
    folder: Path
    digest: str
    grants: frozenset[Grant] = frozenset()
    trust: Trust = "sandbox"
    site: Path | None = None
    source: str = ""
    wheels: tuple[str, ...] = ()


def is_name(name: str) -> bool:
    """Return whether a text is the name of a plugin: ``audit`` or ``@scope/audit``. No path is one."""
    return bool(NAME.fullmatch(name) or SCOPED.fullmatch(name))


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder. Raises PluginError with every mistake and its line."""
    file = folder / MANIFEST
    try:
        if file.is_symlink() or not exists(file):
            raise PluginError(f"{folder} has no {MANIFEST}, so it is not a plugin")
        data = file.read_bytes()
    except OSError as error:
        raise PluginError(f"{file} cannot be read: {error.strerror}") from None
    manifest = parse_manifest(data, str(file), has_code=(folder / "main.py").is_file())
    if manifest.entry and not (folder / manifest.entry).is_file():
        raise PluginError(f"{file}: entry: {manifest.entry} is missing in {folder}; add the file")
    return manifest


def parse_manifest(data: bytes, shown: str = MANIFEST, *, has_code: bool = True) -> Manifest:
    """Parse a manifest; ``has_code`` is whether the folder has a ``main.py``.

    Raises PluginError with every mistake as ``plugin.yml:14: key: …``.
    """
    root, complaints = parse_yaml(data)
    report = Report(complaints)
    if root is None or root.table is None:
        if not complaints:
            report.complaints.append((1, "must be a table that begins with name and version"))
        raise PluginError("\n".join(report.lines(shown)))
    found = fields.fields(report, root, _FIELDS)
    for key in ("name", "version"):
        if key not in root.table:
            report.add(1, key, "is missing; every manifest needs it")
    manifest = _composed(report, root, found, has_code=has_code)
    if report.complaints or manifest is None:
        raise PluginError("\n".join(report.lines(shown)))
    return manifest


def _composed(report: Report, root: Node, found: Mapping[str, Any], *, has_code: bool) -> Manifest | None:
    """Return the manifest with the checks that need several keys."""
    values = {key: value for key, value in found.items() if key != "api" and value is not None}
    capabilities: Capabilities = values.get("capabilities", Capabilities())
    for name in (*values.get("events", ()), *values.get("hooks", ())):
        if name in _IMPLIED:
            capabilities = _raised(capabilities, *_IMPLIED[name])
    values["capabilities"] = capabilities
    _check_lists(report, root, capabilities, values.get("config", {}).get("properties", {}))
    jobs: tuple[Schedule | None, ...] = values.get("schedule", ())  # None for one with a mistake
    if jobs and not capabilities.schedule:
        report.add(root.lines["schedule"], "schedule", "needs capabilities.schedule: true; add it")
    if len({each and each.name for each in jobs}) < len(jobs):
        report.add(root.lines["schedule"], "schedule", "has two jobs with one name; rename one")
    if "entry" not in values and not has_code:
        values["entry"] = ""
        for key in ("events", "hooks", "schedule", "page"):
            if values.get(key):
                report.add(root.lines[key], key, "needs code, but the folder has no main.py; add it")
    if "name" not in values or "version" not in values:
        return None
    return Manifest(**values)


def _check_lists(report: Report, root: Node, capabilities: Capabilities, properties: Collection[str]) -> None:
    """Complain about capabilities that are enabled for nothing, or for a setting that is not described."""
    declared = root.table["capabilities"] if root.table and "capabilities" in root.table else root
    for name, what in (("network", "hosts"), ("exec", "commands")):
        for entry in getattr(capabilities, name).allowlist:
            key = entry.removeprefix(FROM_CONFIG).partition(".")[0]
            if entry.startswith(FROM_CONFIG) and key not in properties:
                report.add(
                    root.lines["capabilities"],
                    f"capabilities.{name}.allowlist",
                    f'"{entry}" names no property of config; add {key} to config.properties',
                )
        table = declared.table[name].table if declared.table and name in declared.table else None
        enabled = getattr(capabilities, name).enabled
        if enabled and not (table or {}).get("allowlist"):
            key = f"capabilities.{name}.allowlist"
            report.add(declared.lines[name], key, f"is missing; name the {what}")


def _raised(capabilities: Capabilities, name: str, level: str) -> Capabilities:
    levels = _LEVELS[name]
    if levels.index(level) <= levels.index(getattr(capabilities, name)):
        return capabilities
    return structs.replace(capabilities, **{name: level})


def _api(_report: Report, node: Node, _key: str) -> int:
    if node.text != str(API):
        raise Wrong(f"{fields.shown(node)} is not supported; this gateway supports {API}")
    return API


def _name(_report: Report, node: Node, _key: str) -> str:
    if node.text is None or not is_name(node.text):
        raise Wrong(
            f"{fields.shown(node)} is not a name; write 3 to 64 of a-z, 0-9 and -, like audit-log, "
            'or "@scope/name"'
        )
    return node.text


def _version(_report: Report, node: Node, _key: str) -> str:
    from packaging.version import InvalidVersion, Version

    try:
        return str(Version(node.text or ""))
    except InvalidVersion:
        raise Wrong(f"{fields.shown(node)} is not a version; write one like 1.2.0") from None


def _requires(_report: Report, node: Node, _key: str) -> str:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        wanted = SpecifierSet(node.text or "")
    except InvalidSpecifier:
        raise Wrong(f'{fields.shown(node)} is not a condition for versions; write one like ">=0.3"') from None
    if not wanted.contains(VERSION, prereleases=True):
        raise Wrong(f"{fields.shown(node)} excludes this gateway, which is {VERSION}; choose another version")
    return node.text or ""


def _entry(report: Report, node: Node, key: str) -> str:
    found: str = fields.text(r"[\w.-]+(/[\w.-]+)*\.py", "a Python file inside the folder, like main.py")(
        report, node, key
    )
    if any(part.startswith(".") for part in found.split("/")):
        raise Wrong(f"{fields.shown(node)} must be a Python file inside the folder, like main.py")
    return found


def _event(_report: Report, node: Node, _key: str) -> str:
    name = ALIASES.get(node.text or "", node.text or "")
    if name not in EVENTS:
        raise Wrong(f"{fields.shown(node)} is not an event; {fields.nearest(name, EVENTS)}")
    return name


def _root(report: Report, node: Node, key: str) -> str:
    found: str = fields.text(r"workspace|[/~].*", "workspace, an absolute path, or a path from ~")(
        report, node, key
    )
    if ".." in found.split("/"):
        raise Wrong(f"{fields.shown(node)} must not contain ..; write the whole path")
    return found


def _host(_report: Report, node: Node, _key: str) -> str:
    if _SETTING.fullmatch(node.text or ""):
        return node.text or ""
    found = (node.text or "").lower()
    if not re.fullmatch(
        r"(http://)?(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*(:\d{1,5})?|(http://)?\[[0-9a-f:.]+\](:\d{1,5})?", found
    ):
        text = 'must be a host, like "api.example.org", "*.example.org" or "example.org:8443"'
        raise Wrong(f"{fields.shown(node)} {text}; without a path; http:// only for unencrypted")
    return found


def _command(report: Report, node: Node, key: str) -> str:
    found: str = fields.text(r".*\S.*", "a command, like npx prettier --write *")(report, node, key)
    words = found.split()
    if words[0] == "*" or "*" in words[:-1]:
        raise Wrong(f"{fields.shown(node)} may have * only as its last word, after a program")
    return " ".join(words)


def _routes(_report: Report, node: Node, _key: str) -> str:
    if isinstance(node.value, bool):
        return "token" if node.value else "none"
    if node.text != "public":
        raise Wrong(f"{fields.shown(node)} must be true, false or public")
    return "public"


def _level(name: str) -> Reader:
    return fields.choice(_LEVELS[name], f"a value of {name}")


def _cron(report: Report, node: Node, key: str) -> str:
    from cronsim import CronSimError

    found: str = fields.text(r"\S+( +\S+){4}", 'five fields, like "0 8 * * 1-5"')(report, node, key)
    try:
        Schedule("", found).next_after(0, ZoneInfo("UTC"))
    except CronSimError as error:
        reason = str(error).lower()
        raise Wrong(f'{fields.shown(node)} has a {reason}; write fields like "0 8 * * 1-5"') from None
    except StopIteration:
        raise Wrong(f"{fields.shown(node)} never occurs; choose a day that the month has") from None
    return found


def _zone(report: Report, node: Node, key: str) -> str:
    found: str = fields.text()(report, node, key)
    try:
        return found if found == "config" else ZoneInfo(found).key
    except (ValueError, OSError, LookupError):
        raise Wrong(
            f"{fields.shown(node)} is not a time zone; write one like Europe/Berlin, or config"
        ) from None


def _config(report: Report, node: Node, key: str) -> Mapping[str, Any]:
    schema = cast("object", node.plain())
    if not isinstance(schema, dict):
        raise Wrong("must be a JSON Schema, like {type: object, properties: {…}}")
    for text in check_schema(cast("dict[str, Any]", schema)):
        report.add(node.line, key, text)
    return cast("dict[str, Any]", schema)


_CAPABILITIES: Mapping[str, Reader] = {
    "filesystem": fields.table(
        {
            "read": fields.flag,
            "write": fields.flag,
            "delete": fields.flag,
            "roots": fields.listed(_root),
            "restricted": fields.listed(fields.text(".+", "a pattern of paths, like .env or .ssh/*")),
        },
        FilesystemAccess,
    ),
    "network": fields.table(
        {
            "enabled": fields.flag,
            "allowlist": fields.listed(_host),
            "methods": fields.listed(
                fields.choice(
                    ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"), "a method of HTTP"
                )
            ),
        },
        NetworkAccess,
    ),
    "exec": fields.table({"enabled": fields.flag, "allowlist": fields.listed(_command)}, ExecAccess),
    "llm": fields.table(
        {"enabled": fields.flag, "budget": fields.number(0, 1_000_000, whole=False)}, LlmAccess
    ),
    "messages": _level("messages"),
    "messages_last": fields.number(0, 1_000),
    "tools": _level("tools"),
    "send": fields.flag,
    "storage_mb": fields.number(0, 1_024),
    "schedule": fields.flag,
    "routes": _routes,
    "docker": fields.flag,
}

_FIELDS: Mapping[str, Reader] = {
    "api": _api,
    "name": _name,
    "version": _version,
    "requires": _requires,
    "description": fields.text(lines=True),
    "author": fields.text(),
    "license": fields.text(),
    "entry": _entry,
    "events": fields.listed(_event),
    "hooks": fields.listed(fields.choice(PLUGIN_HOOKS, "a hook")),
    "tools": fields.listed(fields.text(r"[A-Za-z][\w-]{0,63}", "a name of letters, digits, _ and -")),
    "commands": fields.listed(fields.text(r"[a-z][a-z0-9_-]{0,31}", "a name of a-z, 0-9, _ and -")),
    "capabilities": fields.table(_CAPABILITIES, Capabilities),
    "config": _config,
    "on_failure": fields.choice(("closed",), "closed, the only value"),
    "page": fields.listed(fields.choice(("status", "panel"), "status or panel")),
    "secrets": fields.listed(fields.text(r"[A-Z][A-Z0-9_]{0,63}", "a name like API_TOKEN")),
    "schedule": fields.listed(
        fields.table(
            {
                "name": fields.text(r"[a-z][a-z0-9_-]{0,62}", "a name of a-z, 0-9, _ and -"),
                "cron": _cron,
                "timezone": _zone,
            },
            Schedule,
            required=("name", "cron"),
        )
    ),
    "limits": fields.table(
        {
            "memory_mb": fields.number(16, 8_192),
            "cpu_seconds": fields.number(1, 600),
            "cpu_percent": fields.number(1, 100),
            "in_flight": fields.number(1, 64),
        },
        Limits,
    ),
}
