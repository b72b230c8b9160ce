"""Rules for layers: the keys and references that a project or an organization may use.

A project's files come with what users clone, and an organization's file comes over the network. Neither may
run code, widen a permission, or send a secret to an address of its choice. So each has a list of what it may
set; all other keys are refused, also those that are added later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gateway.contract.errors import SettingsError
from gateway.settings.entries import Entry, KeyPath, references
from gateway.settings.layers.files import PROJECT, check_inside, trust
from gateway.settings.validation import ANY_NAME

MOST_VALUES = 1_000
"""Values in a file that is not trusted: merging takes time."""

PROJECT_KEYS: tuple[KeyPath, ...] = (("agents",), ("model",), ("system_prompt",))

ORGANIZATION_KEYS: tuple[KeyPath, ...] = (
    *PROJECT_KEYS,
    *(
        (key,)
        for key in (
            "aliases",
            "budgets",
            "compaction",
            "effort",
            "fallback",
            "fallback_triggers",
            "history_window",
            "limits",
            "max_tokens",
            "models",
            "small_model",
            "steer",
            "stop_sequences",
            "stream_timeout_ms",
            "temperature",
            "timezone",
            "titles",
        )
    ),
    *(
        ("providers", ANY_NAME, key)
        for key in (
            "capabilities",
            "concurrency",
            "max_retries",
            "models",
            "name",
            "requests_per_minute",
            "timeout",
            "tokens_per_minute",
        )
    ),
)
"""No address of a provider: the file could have this machine's key sent to an address of its choice."""

TRUSTED: KeyPath = ("trusted_projects",)
_OPERATORS_OWN: tuple[KeyPath, ...] = (("plugins", "sandbox"), ("plugins", "indexes"))


def refused(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield a complaint for each value that its layer must not set. The keys are in snake_case."""
    own = {
        entry.path[1]
        for entry in entries
        if entry.layers != ("project",) and entry.path[0] == "agents" and len(entry.path) > 1
    }
    for entry in entries:
        if entry.layers == ("organization",):
            yield from _by_organization(entry)
        elif entry.layers == ("project",):
            yield from _by_project(entry, own)


def operators_own(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield a complaint for each value in the file of a trusted project that only the operator may set.

    A project may bring plugins; that they run without confinement is not its decision.
    """
    for entry in entries:
        kept = entry.path[:1] == ("teams",) or entry.path[:2] in _OPERATORS_OWN
        is_trust = entry.path[0] in ("plugins", "mcp") and entry.path[2:] == ("trust",)
        if "trusted project" in entry.layers and (kept or is_trust):
            yield (
                f"{entry.place}: {entry.key} must not be set by the file of a project, even a trusted one; "
                "move it to config/trunkline.toml or to your personal settings"
            )


def misplaced(entry: Entry) -> str | None:
    """Return a complaint about ``trusted_projects`` outside of the personal settings."""
    if entry.path[:1] != TRUSTED or entry.layers == ("personal",):
        return None
    return f"{entry.place}: trusted_projects is read only from the personal settings; move it there"


def check_references(entry: Entry, project: Path) -> None:
    """Raise SettingsError for a reference that a project must not use: its prompts would show the target."""
    for kind, target in references(entry.value):
        if kind == "env":
            raise SettingsError(
                f"{entry.place}: {entry.key} refers to the environment variable {target}, "
                f"which the file of a project must not read; write the value, {trust(project)}"
            )
        check_inside(entry.base / Path(target).expanduser(), project, f"{entry.place}: {entry.key}")


def check_size(entries: Sequence[Entry], where: str) -> None:
    """Raise SettingsError for too many values."""
    if len(entries) > MOST_VALUES:
        raise SettingsError(f"{where}: has {len(entries)} values; at most {MOST_VALUES} are allowed")


def _by_project(entry: Entry, own: Iterable[str]) -> Iterator[str]:
    project = next((up.parent for up in (entry.base, *entry.base.parents) if up.name == PROJECT), entry.base)
    if not _allowed(entry.path, PROJECT_KEYS):
        names = ", ".join(path[0] for path in PROJECT_KEYS)
        yield (
            f"{entry.place}: {entry.key} must not be set by the file of a project, which may set only "
            f"{names}; move it to config/trunkline.toml or to your personal settings, {trust(project)}"
        )
    elif entry.path[2:] == ("tools",) and entry.path[1] in own:
        yield (
            f"{entry.place}: {entry.key} must not be set by the file of a project for an agent of yours; "
            f"choose another name, {trust(project)}"
        )


def _by_organization(entry: Entry) -> Iterator[str]:
    if not _allowed(entry.path, ORGANIZATION_KEYS):
        yield (
            f"{entry.place}: {entry.key} must not be set by the file of an organization; "
            "docs/settings.md lists the keys that it may set"
        )
    for kind, target in references(entry.value):
        what = "the environment variable" if kind == "env" else "the file"
        yield (
            f"{entry.place}: {entry.key} refers to {what} {target} of this machine, which the file of an "
            "organization must not read; write the value"
        )


def _allowed(path: KeyPath, keys: Iterable[KeyPath]) -> bool:
    return any(
        len(path) >= len(key) and all(k in (ANY_NAME, part) for k, part in zip(key, path, strict=False))
        for key in keys
    )
