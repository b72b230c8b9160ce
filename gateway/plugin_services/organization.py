"""The plugins of a team, for its administration: what runs, what its rules say, and installation by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from gateway.contract.errors import NotFoundError
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.consent import chosen
from gateway.extensions.admission.lock import granted
from gateway.extensions.admission.packages.installer import Installer
from gateway.plugin_services.configuration import PluginConfigs
from gateway.settings import Settings

_SOURCE = r"^(@[a-z0-9-]{1,64}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,100}(==[A-Za-z0-9.!+_-]{1,50})?$"


class TeamPlugin(Struct, frozen=True):
    """A plugin of a team. ``refusal`` says why its rules do not allow it, and is "" if they do.

    ``sha256`` is the hash of the approved content, "" without one; ``grants`` are those of its approval.
    """

    id: str
    version: str
    enabled: bool
    required: bool
    refusal: str
    rights: str
    source: str
    sha256: str
    approved_by: str
    approved_at: str
    grants: list[str]


class TeamPluginList(Struct, frozen=True):
    """The rules of a team, and the plugins that are enabled or found. ``allowlist`` is null if all may be."""

    id: str
    allowlist: list[str] | None
    blocklist: list[str]
    required: list[str]
    plugins: list[TeamPlugin]


class Installation(Struct, frozen=True, forbid_unknown_fields=True):
    """A plugin to install by name, and what it is granted, such as ``network:api.example.org``."""

    source: Annotated[
        str, Meta(pattern=_SOURCE, description="NAME or NAME==VERSION of an index of the settings")
    ]
    allow: Annotated[list[Annotated[str, Meta(min_length=1, max_length=500)]], Meta(max_length=200)] = []


class InstalledPlugin(Struct, frozen=True):
    """A plugin that was installed. It is not enabled by that."""

    id: str
    version: str
    sha256: str
    granted: list[str]


class TeamDirectory:
    """The plugins of one team. Its methods read and write files."""

    def __init__(self, settings: Settings, home: Path | None) -> None:
        self._started = settings
        self._home = home

    def check(self, team: str) -> None:
        """Raise NotFoundError unless this is the team of the settings."""
        if team != self._started.teams.id:
            raise NotFoundError(f"there is no team {team!r}; teams.id of the settings names the one")

    def list(self) -> TeamPluginList:
        """Return the rules and the plugins. Raises SettingsError and PluginError."""
        settings = self._started.reread()
        rules, lock = settings.teams.plugins, Admission(settings, home=self._home).lock()
        plugins: list[TeamPlugin] = []
        for each in PluginConfigs(settings, self._home).list():
            locked = lock.get(each.name)
            plugins.append(
                TeamPlugin(
                    id=each.name,
                    version=each.version,
                    enabled=each.enabled,
                    required=each.name in rules.required,
                    refusal=rules.refusal(each.name) or "",
                    rights=each.rights,
                    source=locked.source if locked else "",
                    sha256=locked.digest.removeprefix("sha256:") if locked else "",
                    approved_by=locked.approved_by if locked else "",
                    approved_at=locked.approved_at if locked else "",
                    grants=[grant.grant for grant in locked.grants] if locked else [],
                )
            )
        allowed = None if rules.allowlist is None else [*rules.allowlist]
        team = self._started.teams.id or ""
        return TeamPluginList(team, allowed, [*rules.blocklist], [*rules.required], plugins)

    def install(self, wanted: Installation) -> InstalledPlugin:
        """Install a plugin, or another version of it, with grants. Takes as long as the downloads.

        Raises PluginError if it is not safe, or not allowed.
        """
        settings = self._started.reread()
        by = f"api:{settings.teams.id}"
        installer = Installer(Admission(settings, home=self._home), {})
        with installer.prepare(wanted.source, from_index=True) as prepared:
            kept = prepared.kept
            before = {each.grant for each in kept}
            new = tuple(grant for grant in chosen(prepared.manifest, wanted.allow) if grant not in before)
            installer.place(prepared, (*kept, *granted(new, by)), by)
        digest = prepared.digest.removeprefix("sha256:")
        return InstalledPlugin(prepared.manifest.name, prepared.manifest.version, digest, [*new])
