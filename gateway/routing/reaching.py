"""How a provider is reached: its settings, and the environment where they are silent."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from gateway.backends import Variables
from gateway.provider import Credential, ProviderConfig, fields_of
from gateway.routing.keys import KeptKeys
from gateway.settings import ProviderSettings, Settings

LOCAL_URL = "http://localhost:11434/v1"
"""Where a model server on this machine usually listens."""

_CREDENTIAL = "credentials."


def provider_config(
    settings: Settings,
    environ: Mapping[str, str],
    provider_id: str,
    variables: Variables,
    kept: Credential | None = None,
    logins: KeptKeys | None = None,
) -> ProviderConfig:
    """What is known of a provider.

    What the settings say counts, then what a login left (``kept``), then the first variable that is set.
    ``logins`` is where a renewed login is kept, and looked for when the key is refused.
    """
    given = settings.providers.get(provider_id, ProviderSettings())
    said = {name: getattr(given, name) for name in ProviderSettings.model_fields}
    said |= {
        "api_key": given.api_key.get_secret_value() if given.api_key else None,
        "api_keys": tuple(key.get_secret_value() for key in given.api_keys if key),
        "credentials": {name: value.get_secret_value() for name, value in given.credentials.items()},
        "custom_headers": {name: value.get_secret_value() for name, value in given.custom_headers.items()},
    }
    said["api_key"] = said["api_key"] or next(iter(said["api_keys"]), None)
    if not said["api_key"]:
        said |= _of_login(kept, provider_id, logins)
    _fill(said, environ, variables)
    if provider_id == "local":
        said["base_url"] = said["base_url"] or LOCAL_URL
    return ProviderConfig(id=provider_id, stream_timeout_ms=settings.stream_timeout_ms, **said)


def _of_login(kept: Credential | None, provider_id: str, logins: KeptKeys | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if logins is not None:
        found |= {"renewed": partial(logins.renew, provider_id), "login": partial(logins.again, provider_id)}
    return found if kept is None else found | fields_of(kept)


def _fill(said: dict[str, Any], environ: Mapping[str, str], variables: Variables) -> None:
    """Credentials belong together: those of the environment count only if the settings have none."""
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
