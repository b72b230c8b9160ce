"""The plugins of a team, for its administration: what runs, what its rules say, and installation by name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from gateway.contract.errors import NotFoundError, PluginError, SettingsError
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.capabilities import Grant
from gateway.extensions.admission.consent import chosen
from gateway.extensions.admission.lock import granted
from gateway.extensions.admission.packages.installer import Installer, Prepared
from gateway.plugin_services.actions import Decision
from gateway.plugin_services.configuration import PluginConfigs
from gateway.plugin_services.live import Change, Outcome
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
    """A plugin that was installed. It is not enabled by that; ``outcome`` is what the running gateway did."""

    id: str
    version: str
    sha256: str
    granted: list[str]
    outcome: Outcome


class TeamDirectory:
    """The plugins of one team. ``apply`` changes a running plugin, ``record`` writes to the audit log."""

    def __init__(
        self,
        settings: Settings,
        home: Path | None,
        apply: Callable[[str], Awaitable[Change]],
        record: Callable[[Decision], Awaitable[None]],
    ) -> None:
        self._started = settings
        self._apply = apply
        self._record = record
        self._home = home

    def check(self, team: str) -> None:
        """Raise NotFoundError unless this is the team of the settings."""
        if team != self._started.teams.id:
            raise NotFoundError(f"there is no team {team!r}; teams.id of the settings names the one")

    def list(self) -> TeamPluginList:
        """Return the rules and the plugins; reads files. Raises SettingsError and PluginError."""
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

    async def install(self, wanted: Installation) -> InstalledPlugin:
        """Install a plugin, or another version of it, with grants. Takes as long as the downloads.

        If the plugin is enabled, the running gateway starts it or replaces it. Raises PluginError if it is
        not safe, not allowed, or does not start; then the version before stays.
        """
        settings = await asyncio.to_thread(self._started.reread)
        installer = Installer(Admission(settings, home=self._home), {})
        by = f"api:{settings.teams.id}"
        prepared, new = await asyncio.to_thread(_install, installer, wanted, by)
        name, version, before = prepared.manifest.name, prepared.manifest.version, prepared.before
        action, source = "install" if before is None else "update", prepared.fetched.source
        await self._record(Decision(name, action, by, version, prepared.digest, source, new))
        try:
            change = await self._apply(name)
        except (PluginError, SettingsError) as error:
            if before is None:
                raise
            await asyncio.to_thread(installer.put_back, name, before)
            await self._record(Decision(name, "update", by, before.version, before.digest, "put back"))
            raise PluginError(f"{error}; {name} {before.version} stays") from None
        digest = prepared.digest.removeprefix("sha256:")
        return InstalledPlugin(name, version, digest, [*new], change.outcome)


def _install(installer: Installer, wanted: Installation, by: str) -> tuple[Prepared, tuple[Grant, ...]]:
    """Install a plugin of an index. Return it and its new grants. Raises PluginError."""
    with installer.prepare(wanted.source, from_index=True) as prepared:
        before = {each.grant for each in prepared.kept}
        chosen_now = chosen(prepared.manifest, wanted.allow)
        new = tuple(grant for grant in chosen_now if grant not in before)
        installer.place(prepared, (*prepared.kept, *granted(new, by)), by)
        return prepared, new
