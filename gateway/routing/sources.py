"""Where the credentials of providers come from, and which of them count: told without telling them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct
from pydantic import SecretStr

from gateway.backends import Variables
from gateway.provider import ApiKey, Credential, OAuth
from gateway.routing.keys import Place
from gateway.settings import ProviderSettings, Settings

Kind = Literal["settings", "login", "variable"]

SHOWN = 4
"""Letters of a long key that may be shown, its last ones."""
LONG = 16
"""Letters from which a key is long."""


class Source(Struct, frozen=True):
    """A place that has a credential of a provider.

    ``what`` is the setting that it stands for, ``hint`` its last letters or nothing. ``used`` says whether it
    is what the provider is shown; ``expires`` is in seconds since the epoch, 0 for what lasts or is renewed.
    """

    provider: str
    what: str
    kind: Kind
    place: str
    hint: str
    used: bool
    expires: float = 0.0


def sources_of(
    settings: Settings,
    environ: Mapping[str, str],
    provider_id: str,
    variables: Variables,
    kept: Place | None = None,
) -> list[Source]:
    """All places that have a credential of a provider, those first that count before the others."""
    written = list(_written(settings, provider_id))
    given = {source.what.partition(".")[0] for source in written}
    has_key = bool({"api_key", "api_keys"} & given)
    found = written
    if kept is not None:
        found = [*found, _kept(provider_id, kept, used=not has_key)]
    has_key = has_key or kept is not None
    for name, variable in _set(environ, variables):
        is_key = name == "api_key"
        used = not (has_key if is_key else "credentials" in given)
        if used and any(source.used and source.what == name for source in found):
            used = False
        found = [*found, Source(provider_id, name, "variable", variable, hint(environ[variable]), used)]
    return found


def hint(key: str) -> str:
    """As much of a key as tells it from others: the end of a long one."""
    return f"…{key[-SHOWN:]}" if len(key) >= LONG else ""


def _written(settings: Settings, provider_id: str) -> Iterator[Source]:
    given = settings.providers.get(provider_id, ProviderSettings())
    secrets: list[tuple[str, SecretStr | None]] = [("api_key", given.api_key)]
    secrets += [("api_keys", key) for key in given.api_keys]
    secrets += [(f"credentials.{name}", value) for name, value in given.credentials.items()]
    places = {entry.path: entry.place for entry in settings.entries}
    for what, secret in secrets:
        if secret is not None:
            place = places.get(("providers", provider_id, *what.split(".")), "settings")
            shown = hint(secret.get_secret_value()) if what.startswith("api_key") else ""
            yield Source(provider_id, what, "settings", place, shown, used=True)


def _kept(provider_id: str, kept: Place, *, used: bool) -> Source:
    credential = kept.credential
    ends = credential if isinstance(credential, OAuth) and not credential.refresh else None
    expires = 0.0 if ends is None else ends.expires
    return Source(provider_id, "api_key", "login", kept.name, hint(_shown(credential)), used, expires)


def _shown(credential: Credential | None) -> str:
    if credential is None:
        return ""
    return credential.key if isinstance(credential, ApiKey) else credential.access


def _set(environ: Mapping[str, str], variables: Variables) -> Iterator[tuple[str, str]]:
    for field, names in variables.items():
        if field == "api_key" or field.startswith("credentials."):
            yield from ((field, name) for name in names if environ.get(name))
