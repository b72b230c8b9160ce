"""Provider configuration: credentials and address of each provider, from settings, logins and variables.

Settings come first, then a saved login, then the first environment variable that is set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, assert_never
from urllib.parse import urlsplit

import structlog
from msgspec import Struct
from pydantic import SecretStr

from gateway.contract.errors import ProviderError, SettingsError
from gateway.contract.provider import ApiKey, Credential, OAuth, ProviderConfig, credential_fields
from gateway.extensions.backends import ProviderRegistry, Variables
from gateway.models.credentials import CredentialStore, StoredCredential
from gateway.models.resolve import Models
from gateway.settings import ProviderSettings, Settings

LOCAL_URL = "http://localhost:11434/v1"
"""Usual address of a model server on this machine."""

_CREDENTIAL = "credentials."


def provider_config(
    settings: Settings,
    environ: Mapping[str, str],
    provider_id: str,
    variables: Variables,
    kept: Credential | None = None,
    logins: CredentialStore | None = None,
) -> ProviderConfig:
    """Return the configuration of a provider.

    Settings come first, then a saved login (``kept``), then the first variable that is set. A renewed login
    is saved in ``logins``, which is also read again when the key is rejected.
    """
    given = settings.providers.get(provider_id, ProviderSettings())
    fields = {name: getattr(given, name) for name in ProviderSettings.model_fields if name != "auth"}
    fields |= {
        "api_key": given.api_key.get_secret_value() if given.api_key else None,
        "api_keys": tuple(key.get_secret_value() for key in given.api_keys if key),
        "credentials": {name: value.get_secret_value() for name, value in given.credentials.items()},
        "custom_headers": {name: value.get_secret_value() for name, value in given.custom_headers.items()},
    }
    keys = [(fields["api_key"], "api_key")]
    keys += [(key, f"api_keys[{at}]") for at, key in enumerate(fields["api_keys"])]
    fields["api_key"] = fields["api_key"] or next(iter(fields["api_keys"]), None)
    if not fields["api_key"]:
        fields |= _login_fields(kept, provider_id, logins)
        keys = [(environ.get(name), name) for name in variables.get("api_key", ())]
        if fields.get("signed_in"):
            keys = [(fields["api_key"], "login")]
    fields["key_names"] = _named(keys)
    _fill_from_variables(fields, environ, variables)
    if provider_id == "local":
        fields["base_url"] = fields["base_url"] or LOCAL_URL
    return ProviderConfig(
        id=provider_id,
        stream_timeout_ms=settings.stream_timeout_ms,
        most_answer_bytes=settings.limits.provider_stream_bytes,
        http_client=settings.http_client,
        **fields,
    )


def _named(keys: Sequence[tuple[str | None, str]]) -> dict[str, str]:
    """Return the names of keys: their positions, as the console has them, with their places."""
    places: dict[str, str] = {}
    for key, place in keys:
        if key:
            places.setdefault(key, place)
    return {key: f"key {at} ({place})" for at, (key, place) in enumerate(places.items(), 1)}


def _login_fields(
    kept: Credential | None, provider_id: str, logins: CredentialStore | None
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if logins is not None:
        found |= {
            "save_login": partial(logins.replace, provider_id),
            "load_login": partial(logins.reload, provider_id),
        }
    return found if kept is None else found | credential_fields(kept) | {"signed_in": True}


def _fill_from_variables(said: dict[str, Any], environ: Mapping[str, str], variables: Variables) -> None:
    """Fill empty fields from variables. Credentials go together: not one of them if the settings have any."""
    credentials: dict[str, str] = {}
    for field, names in variables.items():
        value = next((environ[name] for name in names if environ.get(name)), None)
        if value is None:
            continue
        if field.startswith(_CREDENTIAL):
            credentials[field.removeprefix(_CREDENTIAL)] = value
        elif said[field] is None:
            said[field] = value
    said["credentials"] = said["credentials"] or credentials


SourceKind = Literal["settings", "login", "variable"]

HINT_LENGTH = 4
"""Number of characters of a long key that may be shown: the last ones."""
MIN_HINTED_LENGTH = 16
"""Shortest key of which an end may be shown."""


class CredentialSource(Struct, frozen=True):
    """A place with a credential of a provider.

    ``what`` is the setting that it provides, ``hint`` the last characters of the key or empty. ``used`` is
    whether the provider receives it. ``expires`` is in seconds since the epoch, 0 if it does not expire or is
    renewed.
    """

    provider: str
    what: str
    kind: SourceKind
    place: str
    hint: str
    used: bool
    expires: float = 0.0


def credential_sources(
    settings: Settings,
    environ: Mapping[str, str],
    provider_id: str,
    variables: Variables,
    kept: StoredCredential | None = None,
) -> list[CredentialSource]:
    """Return all sources of a provider's credentials, by descending priority."""
    written = list(_from_settings(settings, provider_id))
    given = {source.what.partition(".")[0] for source in written}
    has_key = bool({"api_key", "api_keys"} & given)
    found = written
    if kept is not None:
        found = [*found, _from_login(provider_id, kept, used=not has_key)]
    has_key = has_key or kept is not None
    for name, variable in _set_variables(environ, variables):
        is_key = name == "api_key"
        used = not (has_key if is_key else "credentials" in given)
        if used and any(source.used and source.what == name for source in found):
            used = False
        found = [
            *found,
            CredentialSource(provider_id, name, "variable", variable, key_hint(environ[variable]), used),
        ]
    return found


def key_hint(key: str) -> str:
    """Return the last characters of a long key, to distinguish it from others."""
    return f"…{key[-HINT_LENGTH:]}" if len(key) >= MIN_HINTED_LENGTH else ""


def _from_settings(settings: Settings, provider_id: str) -> Iterator[CredentialSource]:
    given = settings.providers.get(provider_id, ProviderSettings())
    secrets: list[tuple[str, SecretStr | None]] = [("api_key", given.api_key)]
    secrets += [("api_keys", key) for key in given.api_keys]
    secrets += [(f"credentials.{name}", value) for name, value in given.credentials.items()]
    places = {entry.path: entry.place for entry in settings.entries}
    for what, secret in secrets:
        if secret is not None:
            place = places.get(("providers", provider_id, *what.split(".")), "settings")
            shown = key_hint(secret.get_secret_value()) if what.startswith("api_key") else ""
            yield CredentialSource(provider_id, what, "settings", place, shown, used=True)


def _from_login(provider_id: str, kept: StoredCredential, *, used: bool) -> CredentialSource:
    credential = kept.credential
    ends = credential if isinstance(credential, OAuth) and not credential.refresh else None
    expires = 0.0 if ends is None else ends.expires
    return CredentialSource(
        provider_id, "api_key", "login", kept.location, key_hint(_secret(credential)), used, expires
    )


def _secret(credential: Credential | None) -> str:
    match credential:
        case None:
            return ""
        case ApiKey():
            return credential.key
        case OAuth():
            return credential.access
        case _:
            assert_never(credential)


def _set_variables(environ: Mapping[str, str], variables: Variables) -> Iterator[tuple[str, str]]:
    for field, names in variables.items():
        if field == "api_key" or field.startswith("credentials."):
            yield from ((field, name) for name in names if environ.get(name))


async def default_model(environ: Mapping[str, str], providers: ProviderRegistry) -> str:
    """Return the model to use when none is configured: by an API key, a local server, or the demo."""
    for provider_id, model in providers.first_models():
        variables = providers.variables(provider_id)["api_key"]
        if any(map(environ.get, variables)) or providers.configured(provider_id).api_key:
            return f"{provider_id}/{model}"
    local = await _local_models(providers)
    return f"local/{local[0]}" if local else "demo/demo"


async def _local_models(providers: ProviderRegistry) -> Sequence[str]:
    """Return the models of an OpenAI-compatible server on this machine; empty without such a server."""
    if not await _accepts_connections(providers.configured("local").base_url or LOCAL_URL):
        return ()
    try:
        provider = await providers.ready("local")
        return [model.id for model in await provider.list_models()]
    except ProviderError:
        return ()


async def _accepts_connections(url: str) -> bool:
    """Return whether a server listens at the address; with a short timeout, to keep the start fast."""
    address = urlsplit(url)
    try:
        async with asyncio.timeout(0.3):
            _, writer = await asyncio.open_connection(address.hostname, address.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


log = structlog.get_logger("trunkline.keys")

_POLL_SECONDS = 1.0
"""Seconds between two checks of the file."""


class LoginWatcher:
    """Watches the credentials file, so that ``trunkline auth`` takes effect while the gateway runs.

    Providers receive changed credentials; then ``on_change`` is awaited.
    """

    def __init__(
        self,
        kept: CredentialStore,
        providers: ProviderRegistry,
        models: Models,
        on_change: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = kept
        self._providers = providers
        self._models = models
        self._on_change = on_change

    async def run(self) -> None:
        """Check the file once a second until cancelled."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                await self.check()
            except SettingsError as error:
                log.error("cannot read the saved logins", reason=str(error))

    async def check(self) -> None:
        """Let providers use what changed in the file. Raises SettingsError if it cannot be read."""
        if changed := await asyncio.to_thread(self._store.poll_changes):
            await self.renew(*changed)

    async def renew(self, *provider_ids: str) -> None:
        """Let providers use their present credentials, from their next call on."""
        for provider_id in provider_ids:
            try:
                self._providers.renew(provider_id)
            except SettingsError as error:
                log.error("cannot use a login", provider=provider_id, reason=str(error))
            else:
                log.info("a login changed", provider=provider_id)
            self._models.forget(provider_id)
        await self._on_change()
