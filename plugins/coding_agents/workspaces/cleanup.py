"""Limits of space, and the removal of what is no longer used.

In: records of workspaces and the sizes of their folders. Out: refusals, pauses, and removals. Work that is
nowhere else is never removed without a request of its user, and nothing outside of the base folder is.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from plugins.coding_agents.errors import DiskQuotaError
from plugins.coding_agents.settings import WorkspaceSettings
from plugins.coding_agents.workspaces.records import Places, WorkspaceRecord

_MIB = 1024 * 1024


class Usage(Struct, frozen=True):
    """Bytes on the disk: of each workspace, and of all of them with the cache."""

    workspaces: dict[str, int]
    total: int


def folder_bytes(folder: Path) -> int:
    """Return the bytes that a folder takes on the disk. Links are not followed."""
    total, folders = 0, [os.fspath(folder)]
    while folders:
        try:
            entries = os.scandir(folders.pop())
        except OSError:
            continue
        with entries:
            for entry in entries:
                try:
                    found = entry.stat(follow_symlinks=False)
                except OSError:  # it was removed meanwhile
                    continue
                total += found.st_blocks * 512
                if stat.S_ISDIR(found.st_mode):
                    folders.append(entry.path)
    return total


def measure(places: Places, ids: Iterable[str]) -> Usage:
    """Measure the workspaces and the cache."""
    each = {name: sum(folder_bytes(folder) for folder in places.folders(name)) for name in ids}
    return Usage(each, sum(each.values()) + folder_bytes(places.mirrors))


def check_room(settings: WorkspaceSettings, usage: Usage) -> None:
    """Check that there may be another workspace. Raises DiskQuotaError, which names the limit."""
    count = len(usage.workspaces)
    if count >= settings.max_workspaces:
        raise DiskQuotaError(
            f"there are {count} workspaces, and at most {settings.max_workspaces} are allowed "
            "(max_workspaces); remove one first"
        )
    if usage.total >= settings.max_total_bytes:
        raise DiskQuotaError(
            f"the workspaces take {usage.total // _MIB:,} MiB of {settings.max_total_bytes // _MIB:,} MiB "
            "(max_total_bytes); remove one first"
        )


def find_excess(settings: WorkspaceSettings, usage: Usage, workspace: str) -> str:
    """Return why the agent of a workspace must pause, "" if it may continue."""
    size = usage.workspaces.get(workspace, 0)
    if size > settings.max_bytes:
        return f"the workspace takes {size // _MIB:,} MiB of {settings.max_bytes // _MIB:,} MiB (max_bytes)"
    if usage.total > settings.max_total_bytes:
        return (
            f"all workspaces take {usage.total // _MIB:,} MiB of {settings.max_total_bytes // _MIB:,} MiB "
            "(max_total_bytes)"
        )
    return ""


def find_expiry(settings: WorkspaceSettings, record: WorkspaceRecord, now: int) -> str:
    """Return why a workspace is no longer needed, "" if it may be. Its work has to be checked after that."""
    if record.status not in ("ready", "error"):
        return ""
    if record.pr_state in ("merged", "closed") and now - record.pr_ended_at >= settings.merged_ms:
        return f"its pull request was {record.pr_state}"
    if now - record.last_used >= settings.idle_ms:
        return "it was not used"
    return ""


def find_orphans(places: Places, ids: Iterable[str]) -> Sequence[Path]:
    """Return folders of workspaces that no record names."""
    known = {path for name in ids for path in places.folders(name)}
    parents = [path.parent for path in places.folders("x")]
    return sorted({path for parent in parents if parent.is_dir() for path in parent.iterdir()} - known)


def find_unused_mirrors(places: Places, used: Iterable[Path], oldest: float) -> Sequence[Path]:
    """Return mirrors that no workspace uses and that were last fetched before a time (ms)."""
    mirrors = places.mirrors.iterdir() if places.mirrors.is_dir() else ()
    return sorted({path for path in mirrors if path.lstat().st_mtime * 1_000 < oldest} - {*used})


def remove_folder(places: Places, folder: Path) -> bool:
    """Remove a folder, or a link by itself. Return False if its real path is not below the base folder."""
    if folder.is_symlink():
        if not places.contains(folder.parent):
            return False
        folder.unlink(missing_ok=True)
        return True
    if not places.contains(folder):
        return False
    _make_removable(folder)
    # It follows no links, not even one that is created meanwhile.
    shutil.rmtree(folder, ignore_errors=True)
    return True


def _make_removable(folder: Path) -> None:
    """Let the gateway remove folders that a program made read-only."""
    with suppress(OSError):
        for *_, descriptor in os.fwalk(folder):
            os.fchmod(descriptor, 0o700)
