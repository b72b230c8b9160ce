"""The policy of a team for plugins: a file, or an https address that is fetched once a day.

Unlike other layers it cannot be overridden: its lists are joined with those of the settings so that the
stricter rule counts. The last good copy is used while the policy cannot be read; without one there is no
start.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from gateway.contract.errors import SettingsError
from gateway.settings.documents import SUFFIXES
from gateway.settings.entries import Entry, merged, references
from gateway.settings.layers.files import MOST_BYTES
from gateway.settings.layers.remote import Copy, Found, RemoteFile
from gateway.settings.plugins import TeamPlugins
from gateway.settings.validation import known_entries, settings_error, validated

FRESH_SECONDS = 86_400
"""Age of a copy from which the address is asked again."""


class Policy(Struct, frozen=True):
    """The rules of a policy; ``warning`` if an older copy of it is in use."""

    rules: TeamPlugins
    warning: str = ""


def read_policy(
    place: str, cwd: Path, folder: Path, allow: Sequence[Any] = (), *, refresh: bool = False
) -> Policy:
    """Read a policy from an https address or a file; called without an event loop.

    ``folder`` has the copies, ``allow`` are private networks in which the address may be. Raises
    SettingsError if there is neither a correct file nor a copy.
    """
    is_address = bool(urlsplit(place).scheme)
    remote = RemoteFile(place if is_address else str(cwd / Path(place).expanduser()), folder, tuple(allow))
    kept = remote.copied(_checked)
    fresh = kept is not None and 0 <= time.time() - kept.copy.fetched_at < FRESH_SECONDS
    if kept is not None and is_address and fresh and not refresh:
        return Policy(_rules(kept))
    try:
        found = remote.fetch(_checked) if is_address else remote.keep(_read(remote.url), _checked)
    except SettingsError as error:
        if kept is None:
            raise SettingsError(f"teams.policy: {error}; there is no copy of it yet") from None
        warning = f"teams.policy: {error}; the copy in use is {kept.copy.age} old"
        return Policy(_rules(kept), warning)
    return Policy(_rules(found), found.warning)


def joined(own: TeamPlugins, policy: TeamPlugins) -> TeamPlugins:
    """Return rules of which each is as strict as the stricter of both."""
    lists = [each.allowlist for each in (own, policy) if each.allowlist is not None]
    allowed = {name for names in lists for name in names if all(name in other for other in lists)}
    return TeamPlugins(
        allowlist=tuple(sorted(allowed)) if lists else None,
        blocklist=tuple(dict.fromkeys((*own.blocklist, *policy.blocklist))),
        required=tuple(dict.fromkeys((*own.required, *policy.required))),
    )


def _read(path: str) -> Copy:
    file = Path(path)
    try:
        with file.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"{path}: cannot be read: {reason}") from None
    if len(data) > MOST_BYTES:
        raise SettingsError(f"{path}: has more than {MOST_BYTES} bytes")
    return Copy(path, time.time(), file.suffix if file.suffix in SUFFIXES else ".toml", text)


def _checked(copy: Copy) -> list[Entry]:
    """Return the entries of a policy. Raises SettingsError with every mistake."""
    known, complaints = known_entries(TeamPlugins, copy.entries())
    complaints += [
        f"{entry.place}: {entry.key} refers to {target} of this machine; write the value"
        for entry in known
        for _, target in references(entry.value)
    ]
    if complaints:
        raise settings_error(complaints)
    validated(TeamPlugins, merged(known))
    return known


def _rules(found: Found) -> TeamPlugins:
    return validated(TeamPlugins, merged(found.entries))
