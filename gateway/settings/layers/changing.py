"""Changes of single settings: what they would write, what they need, and writing them.

The console and ``trunkline config set`` use the same code. A change is checked before the file is written,
and read back after: a value that another source overrides is refused, so that no change has no effect.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import unified_diff
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Lock
from typing import Any, cast

from msgspec import Struct

from gateway.contract.errors import InvalidRequestError, InvalidStateError, SettingsError
from gateway.settings.entries import Entry, KeyPath, dotted, flat, references
from gateway.settings.layers.editing import EditedFile
from gateway.settings.loader import load_settings
from gateway.settings.secrets import MASK, sounds_secret
from gateway.settings.sections import Settings
from gateway.settings.validation import resolve_key, suggestion

_PROTECTED = frozenset(
    ("permissions", "plugins", "mcp", "server", "teams", "organization", "trusted_projects", "share", "fetch")
)
"""Tables and keys that say who or what may act through the gateway."""
_PROTECTED_NAMES = frozenset(
    ("base_url", "api_base_url", "trust", "admins", "allow", "auth", "rooms", "accounts")
)
_HIGHER = ("environment", "flags")
_LEAST_SECRET = 8
"""Characters of a secret from which it is masked wherever it is, and not only after its name."""
_ASSIGNED = re.compile(
    r"""(?P<name>[\w.-]+)(?P<equals>["']?\s*=\s*)"""
    r"""(?:\[[^\]]*\]?|"(?:[^"\\]|\\.)*"?|'[^']*'?|[^,}\s]+)"""
)


class PlannedChange(Struct, frozen=True):
    """Preview of a change. ``difference`` are the changed lines of the file, secrets masked.

    ``command`` is the equal command for a terminal. ``needs_proof`` says whether the console asks for the
    token again. ``only_in_terminal`` is why the console does not make this change, empty if it does.
    ``digest`` is that of the file, for saving.
    """

    key: str
    difference: list[str]
    command: str
    needs_proof: bool
    only_in_terminal: str
    digest: str


class SettingsFile:
    """The operator's settings file, changed one value at a time. Its methods read and write files.

    ``changing`` is held while the file is read, changed and written, by all who change it in this process.
    """

    def __init__(self, settings: Settings, changing: Lock | None = None) -> None:
        self._started = settings
        self.changing = changing or Lock()

    def plan(self, path: KeyPath, value: Any, *, is_new: bool = False) -> PlannedChange:
        """Return what a change would do; None removes the key. Raises SettingsError if it would be wrong.

        With ``is_new`` there must be no such table yet, in any source; otherwise raises InvalidStateError.
        """
        file = self._open(path, value, create=False)
        if is_new:
            known = (each for each in self._started.reread().entries if each.path[: len(path)] == path)
            if (there := next(known, None)) is not None:
                raise InvalidStateError(f"{dotted(path)} is already in {there.place}; change it there")
        section, values = path[:-1], {path[-1]: value}
        text = file.changed(section, values)
        after = _load_checked(file.path, text)
        hidden = resolve_key(Settings, path).secret
        # Also those of other keys, which the lines around a change may have.
        known = {*self._started.reread().secrets(), *after.secrets()}
        secrets = sorted((each for each in known if len(each) >= _LEAST_SECRET), key=len, reverse=True)
        shown = [
            _masked(line, path) if hidden else _without_secrets(line, secrets)
            for line in unified_diff(file.text.split("\n"), text.split("\n"), lineterm="", n=1)
            if not line.startswith(("---", "+++", "@@"))
        ]
        return PlannedChange(
            dotted(path),
            shown,
            command_of(path, value),
            needs_proof(path, value),
            only_in_terminal(path, value),
            digest_of(file.text),
        )

    def save(self, path: KeyPath, value: Any, digest: str | None = None) -> None:
        """Write a change. Raises InvalidStateError if the file is not the one with this digest any more."""
        with self.changing:
            file = self._open(path, value, create=True)
            if digest is not None and digest_of(file.text) != digest:
                raise InvalidStateError(f"{file.path} was changed meanwhile; look at the difference again")
            file.put(path[:-1], {path[-1]: value}, lambda: self._read_back(path, value))

    def _open(self, path: KeyPath, value: Any, *, create: bool) -> EditedFile:
        if self._started.origin.reread is None:
            raise SettingsError("the settings of this gateway are not from a file, so they cannot be changed")
        if not path or any(not part for part in path):
            raise InvalidRequestError("name a key, such as server.port")
        known = resolve_key(Settings, path, table=isinstance(value, dict))
        if known.wrong is not None:
            advice = suggestion(Settings, known.path, known.wrong)
            raise InvalidRequestError(f"there is no setting {dotted(path)}; {advice}")
        over = next(
            (e for e in self._started.reread().entries if e.path == path and set(e.layers) & {*_HIGHER}), None
        )
        if over is not None:
            raise InvalidStateError(
                f"{dotted(path)} is set in {over.place}, which overrides the file; change it there"
            )
        return EditedFile(self._started.file, create=create)

    def _read_back(self, path: KeyPath, value: Any) -> None:
        """Raise SettingsError if the settings are wrong, or if another source overrides the value."""
        entries: Mapping[KeyPath, Entry] = {each.path: each for each in self._started.reread().entries}
        written = [((*path, *inner), each) for inner, each in _leaves(value)] if value is not None else []
        for key, wanted in written:
            # A key below, in a higher source, makes a table of a value: then there is no entry of this key.
            below = (each for each in entries.values() if each.path[:-1][: len(key)] == key and wanted != {})
            found = entries.get(key) or next(below, None)
            kept = None if found is None else found.written or found.value
            if found is not None and (found.path != key or kept not in (wanted, str(wanted))):
                name = dotted(found.path)
                raise SettingsError(f"{name} is also set in {found.place}, which overrides the file")


def needs_proof(path: KeyPath, value: Any = None) -> bool:
    """Return whether a change decides who or what may act through the gateway; a value may be a table."""
    found = [resolve_key(Settings, (*path, *inner)) for inner, _ in _leaves(value)]
    return any(
        each.secret or each.path[0] in _PROTECTED or not _PROTECTED_NAMES.isdisjoint(each.path)
        for each in found
    )


def only_in_terminal(path: KeyPath, value: Any) -> str:
    """Return why the console must not make a change, empty if it may."""
    for key, leaf in ((((*path, *inner), each)) for inner, each in _leaves(value)):
        if key[-1] == "trust" and leaf == "full":
            return "full trust lets a plugin do everything that the gateway may do"
        if key[-1] == "sandbox" and leaf in ("off", False):
            return "without the sandbox, programs may do everything that the gateway may do"
        names = {part.partition("@")[0] for part in key} | (
            {*cast("list[str]", leaf)} if _is_texts(leaf) else {leaf}
        )
        if "shell" in {name for name in names if isinstance(name, str)}:
            return "a shell runs every command"
    if any(True for _ in references(value)):
        return "a reference leads to a variable or a file of this machine"
    return ""


def command_of(path: KeyPath, value: Any) -> str:
    """Return the command that makes a change. It asks for what has a secret, which no history should keep."""
    key = shlex.quote(dotted(path))
    if value is None:
        return f"trunkline config unset {key}"
    leaves = ((*path, *inner) for inner, _ in _leaves(value))
    if any(resolve_key(Settings, each).secret or sounds_secret(each[-1]) for each in leaves):
        return f"trunkline config set {key}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"trunkline config set {key} {shlex.quote(text)}"


def path_of(key: str) -> KeyPath:
    """Return the path of a key in TOML notation. Raises InvalidRequestError."""
    try:
        at: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        raise InvalidRequestError(
            f"{key!r} is not a key; write one as in the file, such as server.port"
        ) from None
    path: list[str] = []
    while isinstance(at, dict):
        ((name, at),) = cast("dict[str, Any]", at).items()
        path.append(name)
    return tuple(path)


def digest_of(text: str) -> str:
    """Return the digest of a file's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _leaves(value: Any) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(value, dict) and value:
        yield from flat(cast("dict[str, Any]", value))
    else:
        yield (), value


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in cast("list[Any]", value))


def _masked(line: str, path: KeyPath) -> str:
    """Return a changed line without the value of a secret."""
    if line[1:].strip() in ("", f"[{dotted(path[:-1])}]"):
        return line
    name, equals, _value = line.partition("=")
    return f"{name}= {MASK}" if equals and path[-1] in name else line[:1] + MASK


def _without_secrets(line: str, secrets: Sequence[str]) -> str:
    """Return a line of a file without secrets, by their values and by the names of their keys."""
    for secret in secrets:
        line = line.replace(secret, MASK)

    def masked(found: re.Match[str]) -> str:
        name = found["name"].rpartition(".")[2]
        return f"{found['name']}{found['equals']}{MASK}" if sounds_secret(name) else found[0]

    return _ASSIGNED.sub(masked, line)


def _load_checked(path: Path, text: str) -> Settings:
    """Return the settings with this text of the file. Raises SettingsError if they would be wrong."""
    # Beside the file, where its relative paths lead to the same places, and readable by its owner only.
    try:
        with NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=f".{path.stem}.", suffix=".toml"
        ) as draft:
            draft.write(text)
            draft.flush()
            return _load_draft(Path(draft.name), path)
    except OSError as error:
        raise SettingsError(f"{path.parent}: a draft cannot be written: {error.strerror}") from None


def _load_draft(draft: Path, path: Path) -> Settings:
    try:
        return load_settings(draft)
    except SettingsError as error:
        raise SettingsError(str(error).replace(draft.name, path.name)) from None
