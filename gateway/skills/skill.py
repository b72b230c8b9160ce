"""One skill: a folder with a ``SKILL.md`` in the open format of Agent Skills, and files below it.

``SKILL.md`` begins with YAML between two lines of ``---``; the text after them is what the model loads. All
mistakes are reported at once, each with its line.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from gateway.api import FOLDER, open_below
from gateway.contract.errors import PluginError
from gateway.extensions.admission import fields
from gateway.extensions.admission.fields import Reader, Report, Wrong, hidden
from gateway.extensions.admission.packages.claude import tool_name
from gateway.extensions.admission.tree import check_path
from gateway.extensions.admission.yaml_tree import Node, parse_yaml, split_text

SKILL_FILE = "SKILL.md"
MOST_BYTES = 64 * 1024
"""Most bytes of a file that a model gets."""
MOST_DESCRIPTION = 1_024
MOST_FILES = 200
"""Most files of one skill."""
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

_LONGEST_NAME = 64
_RULE = re.compile(r"([A-Za-z][\w:.-]*\*?)(?:\(([^()]*)\))?")
_RULES = re.compile(r"[^\s,()]+(?:\([^()]*\))?")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ToolRule(Struct, frozen=True):
    """An item of ``allowed-tools``: a tool, and a pattern that its calls must match; "" allows every call.

    A name may end in ``*``.
    """

    tool: str
    pattern: str = ""

    def __str__(self) -> str:
        return f"{self.tool}({self.pattern})" if self.pattern else self.tool


class Skill(Struct, frozen=True):
    """A checked skill. ``allowed_tools`` None leaves the tools as they are.

    ``digests`` has the SHA-256 of each file that models can read, by its path below the folder.
    ``untrusted``: its text comes from an author whom the operator need not know.
    """

    name: str
    description: str
    folder: Path
    body: str
    license: str = ""
    compatibility: str = ""
    metadata: Mapping[str, str] = {}
    allowed_tools: tuple[ToolRule, ...] | None = None
    digests: Mapping[str, str] = {}
    untrusted: bool = False

    def read(self, path: str) -> str:
        """Return the text of a file below the folder. Raises PluginError.

        Only files that were there when the skill was loaded can be read, with their content of that time.
        """
        known = self.digests.get(path)
        if known is None:
            listed = ", ".join(self.digests) or "none"
            raise PluginError(f"skill {self.name!r} has no file {path!r}; its files are: {listed}")
        data = read_below(self.folder, path)
        if hashlib.sha256(data).hexdigest() != known:
            raise PluginError(
                f"{path} of the skill {self.name!r} was changed; it can be read in a new answer, in seconds"
            )
        return _checked_text(data, path)


def read_skill(folder: Path, *, untrusted: bool = False) -> Skill:
    """Read and check the skill in a folder. Raises PluginError with every mistake and its line."""
    shown = str(folder / SKILL_FILE)
    found = parse_skill(read_below(folder, SKILL_FILE), folder.name, shown)
    digests = {path: hashlib.sha256(read_below(folder, path)).hexdigest() for path in _paths(folder)}
    return Skill(folder=folder, digests=digests, untrusted=untrusted, **found)


def parse_skill(data: bytes, name: str, shown: str = SKILL_FILE) -> dict[str, Any]:
    """Return the values of a ``SKILL.md`` in a folder of this name. Raises PluginError."""
    if len(data) > MOST_BYTES:
        raise PluginError(f"{shown}: has {len(data)} bytes; at most {MOST_BYTES} are allowed")
    head, body = split_text(data, shown)
    if head is None:
        raise PluginError(f"{shown}:1: must begin with a line ---, then name and description")
    # A hidden character matters most in the text that the model follows.
    report = Report([*hidden(data)])
    root, complaints = parse_yaml(head)
    report.complaints += complaints
    found: dict[str, Any] = {}
    if root is not None and root.table is not None:
        found = fields.fields(report, root, _FIELDS, of="SKILL.md")
        for key in ("name", "description"):
            if key not in root.table:
                report.add(1, key, "is missing; every skill needs it")
        if "name" in found and found["name"] != name:
            line = root.lines["name"]
            report.add(line, "name", f'"{found["name"]}" must be the name of its folder, {name}')
    elif not complaints:
        report.complaints.append((1, "must have a table between two lines of ---, with name and description"))
    if report.complaints:
        raise PluginError("\n".join(report.lines(shown)))
    return {key.replace("-", "_"): value for key, value in found.items()} | {"body": body}


def read_below(folder: Path, path: str) -> bytes:
    """Return the content of a regular file below a folder, following no link. Raises PluginError."""
    shown = folder / path
    check_path(path, str(folder))
    try:
        base = os.open(folder, FOLDER)
        try:
            opened = open_below(base, path.split("/"), _READ)
        finally:
            os.close(base)
        with os.fdopen(opened, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise PluginError(f"{shown} is not a regular file; remove it")
            data = file.read(MOST_BYTES + 1)
            if len(data) > MOST_BYTES:
                raise PluginError(f"{shown} has {found.st_size} bytes; at most {MOST_BYTES} are allowed")
            return data
    except OSError as error:
        link = shown.is_symlink() or folder.is_symlink()
        reason = "it is a link; replace it by the file" if link else error.strerror
        raise PluginError(f"{shown} cannot be read: {reason}") from None


def _paths(folder: Path) -> list[str]:
    """Return the paths of the further files that are not too large for a model.

    Raises PluginError for links, hidden characters in names, and too many files.
    """
    found: list[str] = []
    for root, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if each not in (".git", "__pycache__")]
        for each in (*folders, *files):
            path = (Path(root) / each).relative_to(folder).as_posix()
            if (folder / path).is_symlink():
                raise PluginError(f"{folder}: {path} is a link; replace it by the file")
            if fields.invisible(path, ""):
                raise PluginError(f"{folder}: {path!r} has an invisible character in its name; rename it")
        found += [(Path(root) / each).relative_to(folder).as_posix() for each in files]
        if len(found) > MOST_FILES:
            raise PluginError(f"{folder} has more than {MOST_FILES} files")
    small = (path for path in found if (folder / path).lstat().st_size <= MOST_BYTES)
    return sorted(path for path in small if path != SKILL_FILE)


def _checked_text(data: bytes, shown: str) -> str:
    """Return a file as text. Raises PluginError if it is none, or hides something."""
    complaints = Report([*hidden(data)]).lines(shown)
    if complaints:
        raise PluginError(complaints[0])
    return data.decode("utf-8")


def tool_rules(_report: Report, node: Node, _key: str) -> tuple[ToolRule, ...]:
    """Read ``allowed-tools``: names, such as ``Read`` or ``Bash(git log:*)``, in a list or in one text."""
    if node.items is not None:
        items = [each.text or "" for each in node.items]
    elif node.value is None or isinstance(node.value, bool):
        raise Wrong("must be names of tools, like Read Bash(git log:*)")
    else:
        text = node.text or ""
        items = _RULES.findall(text)
        if re.sub(r"[\s,]", "", text) != re.sub(r"[\s,]", "", "".join(items)):
            raise Wrong(f"{fields.shown(node)} must be names of tools, like Read Bash(git log:*)")
    return tuple(_tool_rule(each.strip()) for each in items)


def _tool_rule(text: str) -> ToolRule:
    found = _RULE.fullmatch(text)
    if found is None:
        raise Wrong(f'"{text[:60]}" is not a tool; write a name, like Read or Bash(git log:*)')
    pattern = (found[2] or "").strip()
    # In the format ``:*`` ends a prefix; in patterns of this gateway a last word ``*`` does.
    pattern = re.sub(r":\*$", " *", pattern)
    return ToolRule(tool_name(found[1]), "" if pattern == "*" else pattern)


def _name(_report: Report, node: Node, _key: str) -> str:
    found = node.text or ""
    if not NAME.fullmatch(found) or len(found) > _LONGEST_NAME:
        raise Wrong(f"{fields.shown(node)} must be up to 64 of a-z, 0-9 and single hyphens, like pdf-forms")
    return found


def _description(report: Report, node: Node, key: str) -> str:
    found: str = fields.text(most=MOST_DESCRIPTION, lines=True)(report, node, key)
    if not found:
        raise Wrong("is empty; say what the skill does and when to use it")
    return " ".join(found.split())


def _metadata(_report: Report, node: Node, _key: str) -> dict[str, str]:
    table = node.table
    if table is None or any(each.text is None for each in table.values()):
        raise Wrong('must be a table of texts, like {author: user@example.org, version: "1.0"}')
    return {key: each.text or "" for key, each in table.items()}


_FIELDS: Mapping[str, Reader] = {
    "name": _name,
    "description": _description,
    "license": fields.text(most=500, lines=True),
    "compatibility": fields.text(most=500, lines=True),
    "metadata": _metadata,
    "allowed-tools": tool_rules,
}
