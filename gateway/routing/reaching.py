"""How a provider is reached: its settings, and the environment where they are silent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.provider import ProviderConfig
from gateway.registry import Variables
from gateway.settings import ProviderSettings, Settings

LOCAL_URL = "http://localhost:11434/v1"
"""Where a model server on this machine usually listens."""

_CREDENTIAL = "credentials."


def provider_config(
    settings: Settings,
    environ: Mapping[str, str],
    provider_id: str,
    variables: Variables,
    kept: Mapping[str, str] | None = None,
) -> ProviderConfig:
    """What is known of a provider.

    What the settings say counts, then the key that a login left (``kept``), then the first variable that
    is set.
    """
    given = settings.providers.get(provider_id, ProviderSettings())
    said = {name: getattr(given, name) for name in ProviderSettings.model_fields}
    said |= {
        "api_key": given.api_key.get_secret_value() if given.api_key else None,
        "credentials": {name: value.get_secret_value() for name, value in given.credentials.items()},
        "custom_headers": {name: value.get_secret_value() for name, value in given.custom_headers.items()},
    }
    said["api_key"] = said["api_key"] or (kept or {}).get(provider_id)
    _fill(said, environ, variables)
    if provider_id == "local":
        said["base_url"] = said["base_url"] or LOCAL_URL
    return ProviderConfig(id=provider_id, stream_timeout_ms=settings.stream_timeout_ms, **said)


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
