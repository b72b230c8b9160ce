"""Conversion of a plugin of Claude Code: its skills, agents and commands in the formats of a bundle.

Nothing of it runs. What a bundle cannot have is listed: shell hooks are left out, and MCP servers are tables
for the operator's settings. The same files always convert to the same bundle, so that its hash can be locked.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from gateway.contract.errors import PluginError
from gateway.extensions.admission.fields import hidden
from gateway.extensions.admission.manifest import MANIFEST
from gateway.extensions.admission.tree import check_path
from gateway.extensions.admission.yaml_tree import MOST_BYTES, parse_yaml, split_text

ROOT = "${CLAUDE_PLUGIN_ROOT}"
"""Stands for the folder of the plugin in its commands."""
_FOLDER = ".claude-plugin"
_WORDS = re.compile(r"[^\s,()]+(?:\([^()]*\))?")
_LINE = re.compile(r"([\w-]+):\s*(.*)")
_SKILL_KEYS = ("license", "compatibility", "metadata", "allowed-tools")
_LEFT_OUT = {
    "lspServers": (".lsp.json",),
    "outputStyles": ("output-styles",),
    "monitors": ("monitors",),
    "settings": ("settings.json",),
}
"""Parts that a bundle cannot have, by their key in the manifest, and their files."""
_OTHER_NAMES: Mapping[str, str] = {
    "AskUserQuestion": "question",
    "Bash": "shell",
    "Edit": "edit",
    "Glob": "glob",
    "Grep": "grep",
    "LS": "list",
    "MultiEdit": "multi_edit",
    "Read": "read",
    "Skill": "skill",
    "Task": "task",
    "TodoRead": "todo_read",
    "TodoWrite": "todo_write",
    "WebFetch": "web_fetch",
    "WebSearch": "web_search",
    "Write": "write",
}
"""Tools by the names that authors of skills know."""
_SERVERS = "mcp.toml"
_PLAIN_WORD = re.compile(r"[\w./:@=,+-]{1,500}", re.ASCII)
_PLAIN_URL = re.compile(r"https://[a-z0-9-]+(\.[a-z0-9-]+)+(:[0-9]{1,5})?(/[^\s#]*)?")
_MCP = re.compile(r"mcp__(.+?)__(.+)")


def tool_name(name: str) -> str:
    """Return this gateway's name of a tool that another program may name differently."""
    mcp = _MCP.fullmatch(name)
    return f"{mcp[1]}_{mcp[2]}" if mcp else _OTHER_NAMES.get(name, name)


def convert(folder: Path) -> list[str]:
    """Make a bundle of a plugin of Claude Code in a staging folder. Return what was left out and what to do.

    Any other folder stays as it is. Raises PluginError.
    """
    file = folder / _FOLDER / "plugin.json"
    if (folder / MANIFEST).exists() or not file.is_file():
        return []
    about = _json(file)
    if (folder / "main.py").exists():
        raise PluginError(
            f"{folder}: main.py would run as code of the plugin; a plugin of Claude Code has none"
        )
    servers: dict[str, dict[str, Any]] = {}
    notes = [*_hooks(folder, about), *_servers(folder, about, servers)]
    for key, names in _LEFT_OUT.items():
        if key in about or any((folder / name).exists() for name in names):
            notes.append(f"left out: {key}, which plugins of this gateway do not have")
    for path in _paths(folder, about, "agents", "*.md"):
        _rewrite(folder, path, f"agents/{_slug(path.stem)}.md", _agent(path))
    for path in _paths(folder, about, "commands", "**/*.md"):
        name = "-".join((*path.relative_to(folder).parts[1:-1], path.stem))
        text = path.read_text("utf-8", "replace")
        if "!`" in text:
            notes.append(f"/{_slug(name)}: lines with !`…` run no command; the model gets them as text")
        _rewrite(folder, path, f"commands/{_slug(name)}.md", _command(path))
    for path in _paths(folder, about, "skills", "*/SKILL.md"):
        _move_skill(folder, path)
    for name in (
        _FOLDER,
        "hooks/hooks.json",
        ".mcp.json",
        *(n for names in _LEFT_OUT.values() for n in names),
    ):
        target = folder / name
        shutil.rmtree(target, ignore_errors=True) if target.is_dir() else target.unlink(missing_ok=True)
    (folder / MANIFEST).write_text(_manifest(about, servers), encoding="utf-8")
    _write_servers(folder, servers)
    return notes


def _write_servers(folder: Path, servers: Mapping[str, Mapping[str, Any]]) -> None:
    tables = [f"[{name}]\n" + "\n".join(_lines(said)) for name, said in sorted(servers.items())]
    if tables:
        (folder / _SERVERS).write_text("\n".join((*tables, "")), encoding="utf-8")


def _manifest(about: Mapping[str, Any], servers: Mapping[str, Mapping[str, Any]]) -> str:
    author = about.get("author", "")
    manifest: dict[str, Any] = {
        "name": str(about.get("name", "")),
        "version": str(about.get("version", "0")),
        "description": " ".join(str(about.get("description", "")).split())[:2_000],
        "author": str(cast("dict[str, Any]", author).get("name", "") if isinstance(author, dict) else author),
        "license": str(about.get("license", "")),
    }
    if servers:
        manifest["capabilities"] = _capabilities(servers.values())
    return "".join(f"{key}: {_quoted(value)}\n" for key, value in manifest.items())


def _hooks(folder: Path, about: Mapping[str, Any]) -> Iterator[str]:
    """Yield the shell hooks, which are left out."""
    for table in _tables(folder, about.get("hooks"), "hooks/hooks.json", "hooks"):
        for event, groups in table.items():
            for group in _items(groups):
                matcher = f" ({group['matcher']})" if group.get("matcher") else ""
                for hook in _items(group.get("hooks")):
                    command = hook.get("command") or hook.get("prompt") or hook.get("type", "")
                    yield f"left out: the shell hook {event}{matcher}: {command}"


def _servers(folder: Path, about: Mapping[str, Any], kept: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the MCP servers as tables for the settings. ``kept`` gets those that a bundle can have."""
    for table in _tables(folder, about.get("mcpServers"), ".mcp.json", "mcpServers"):
        for name, server in table.items():
            if not isinstance(server, dict):
                continue
            said = cast("dict[str, Any]", server)
            shown = "\n".join((f"[mcp.{_slug(name)}]", *_lines(_known(said))))
            own = _kept(said)
            if own is None:
                yield f"the MCP server {name} is not started by the plugin; add it to the settings:\n{shown}"
            else:
                kept[_slug(name).replace("-", "_")[:32]] = own
                yield (
                    f"the MCP server {name} is started once that is granted, with the plugin's folder and "
                    f"without a network; if it needs more, add it to the settings instead:\n{shown}"
                )


def _known(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is said of a server, in the keys of the settings."""
    found: dict[str, Any] = {"url": str(said["url"])} if said.get("url") else {}
    if not found:
        found["command"] = [str(said.get("command", "")), *_texts(said.get("args"))]
    for key in ("env", "headers"):
        given = said.get(key)
        if isinstance(given, dict) and given:
            found[key] = {str(k): str(v) for k, v in cast("dict[Any, Any]", given).items()}
    return found


def _kept(said: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a server as the bundle has it; None if it needs headers, variables or further folders."""
    known = _known(said)
    values = [*cast("dict[str, str]", known.get("env", {})).values()]
    if "headers" in known or any("${" in value for value in values):
        return None
    if "url" in known:
        return known if _PLAIN_URL.fullmatch(known["url"]) else None
    words = [
        f"./{word[len(ROOT) + 1 :]}" if word.startswith(f"{ROOT}/") else word for word in known["command"]
    ]
    return {**known, "command": words} if all(map(_PLAIN_WORD.fullmatch, words)) else None


def _capabilities(servers: Collection[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the manifest has to declare for the servers of a bundle."""
    commands = sorted({" ".join(said["command"]) for said in servers if "command" in said})
    hosts = sorted({urlsplit(str(said["url"])).netloc for said in servers if "url" in said})
    found: dict[str, Any] = {}
    if commands:
        found["exec"] = {"enabled": True, "allowlist": commands}
    if hosts:
        found["network"] = {"enabled": True, "allowlist": hosts, "methods": ["GET", "POST", "DELETE"]}
    return found


def _lines(said: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table in TOML."""
    for key, value in said.items():
        if isinstance(value, dict):
            pairs = (f"{_quoted(k)} = {_quoted(v)}" for k, v in cast("dict[str, str]", value).items())
            yield f"{key} = {{ {', '.join(pairs)} }}"
        else:
            yield f"{key} = {_quoted(value)}"


def _tables(folder: Path, said: Any, file: str, key: str) -> Iterator[dict[str, Any]]:
    """Yield the tables of a key of the manifest: written there, or in files, of which one is the usual."""
    for each in [file, *cast("list[Any]", said if isinstance(said, list) else [said])]:
        if isinstance(each, str):
            path = folder / _relative(folder, each)
            each = _json(path) if path.is_file() else None
        if isinstance(each, dict):
            table = cast("dict[str, Any]", each)
            inner = table.get(key, table)
            yield cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}


def _paths(folder: Path, about: Mapping[str, Any], kind: str, pattern: str) -> list[Path]:
    """Return the files of one kind of part: those of its folder, and those that the manifest names."""
    said = about.get(kind, [])
    found = {*(folder / kind).glob(pattern)}
    for each in _texts(said if isinstance(said, list) else [said]):
        path = folder / _relative(folder, each)
        if kind == "skills" and (path / "SKILL.md").is_file():
            found.add(path / "SKILL.md")
        else:
            found |= {*path.glob(pattern)} if path.is_dir() else {path}
    missing = next((path for path in found if not path.is_file()), None)
    if missing is not None:
        raise PluginError(f"{folder}: {kind} names {missing.relative_to(folder)}, which is missing")
    return sorted(path for path in found if path.stem.lower() != "readme")


def _agent(file: Path) -> str:
    head, body = _parsed(file)
    lines = [f"description: {_quoted(_line(head.get('description')))}"]
    if (tools := _words(head.get("tools"))) is not None:
        lines.append(f"tools: {_quoted([tool_name(each.partition('(')[0]) for each in tools])}")
    if (skills := _words(head.get("skills"))) is not None:
        lines.append(f"skills: {_quoted(skills)}")
    return _joined(lines, body)


def _command(file: Path) -> str:
    head, body = _parsed(file)
    hint = head.get("argument-hint", "")
    hint = f"[{', '.join(_texts(cast('list[Any]', hint)))}]" if isinstance(hint, list) else str(hint or "")
    described = _line(head.get("description"))[:200]
    lines = [f"description: {_quoted(described)}", f"argument-hint: {_quoted(hint[:100])}"]
    return _joined([line for line in lines if not line.endswith('""')], body)


def _move_skill(folder: Path, file: Path) -> None:
    """Put a skill into ``skills/``, with the keys of the open format only."""
    name = _slug(file.parent.name).replace("_", "-").strip("-")
    head, body = _parsed(file)
    described = _line(head.get("description")) or _line(body)
    lines = [f"name: {_quoted(name)}", f"description: {_quoted(described[:1_024])}"]
    lines += [f"{key}: {_quoted(head[key])}" for key in _SKILL_KEYS if head.get(key)]
    target = folder / "skills" / name
    if file.parent != target:
        if target.exists():
            raise PluginError(f"{folder}: two skills are named {name}; rename one")
        target.parent.mkdir(exist_ok=True)
        file.parent.rename(target)
    (target / file.name).write_text(_joined(lines, body), encoding="utf-8")


def _rewrite(folder: Path, old: Path, path: str, text: str) -> None:
    old.unlink()
    new = folder / path
    if new.exists():
        raise PluginError(f"{folder}: two files would be {path}; rename one")
    new.parent.mkdir(parents=True, exist_ok=True)
    new.write_text(text, encoding="utf-8")


def _parsed(file: Path) -> tuple[dict[str, Any], str]:
    """Return the table and the text of a Markdown file. A table that is not YAML is read line by line."""
    data = file.read_bytes()
    if len(data) > MOST_BYTES:
        raise PluginError(f"{file.name} has {len(data)} bytes; at most {MOST_BYTES} are allowed")
    for line, complaint in hidden(data):
        raise PluginError(f"{file.name}:{line}: {complaint}")
    head, body = split_text(data, file.name)
    if head is None:
        return {}, body
    root, complaints = parse_yaml(head)
    if root is not None and root.table is not None and not complaints:
        return root.plain(), body
    lines = (_LINE.fullmatch(line.strip()) for line in head.decode().splitlines())
    return {found[1]: found[2] for found in lines if found}, body


def _json(file: Path) -> dict[str, Any]:
    try:
        data = file.read_bytes()
        found: Any = json.loads(data) if len(data) <= MOST_BYTES else None
        json.dumps(found, ensure_ascii=False).encode()  # lone surrogates are not text
    except (ValueError, RecursionError, OSError):
        found = None
    if not isinstance(found, dict):
        raise PluginError(f"{file.name} must be a JSON object of at most {MOST_BYTES} bytes")
    return cast("dict[str, Any]", found)


def _relative(folder: Path, path: str) -> str:
    """Return a path below the folder. Raises PluginError for any other one."""
    found = path.removeprefix(ROOT).lstrip("/") if path.startswith(ROOT) else path.removeprefix("./")
    found = found.rstrip("/")
    check_path(found, str(folder))
    return found


def _slug(name: str) -> str:
    """Return a name as files of a bundle have it."""
    return re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-_") or "unnamed"


def _words(value: Any) -> list[str] | None:
    """Return a list, also one that is written as a text with commas; None if there is none."""
    if value is None or isinstance(value, bool):
        return None
    return _texts(value) if isinstance(value, list) else _WORDS.findall(str(value))


def _line(value: Any) -> str:
    return " ".join(str(value or "").replace("\\n", " ").split())


def _texts(value: Any) -> list[str]:
    return [str(each) for each in cast("list[Any]", value)] if isinstance(value, list) else []


def _items(value: Any) -> list[dict[str, Any]]:
    found = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", each) for each in found if isinstance(each, dict)]


def _quoted(value: Any) -> str:
    """Return a value as JSON, which is YAML and, for texts and lists of them, TOML."""
    return json.dumps(value, ensure_ascii=False)


def _joined(lines: list[str], body: str) -> str:
    return "\n".join(("---", *lines, "---", body, ""))
