"""OAuth 2 tokens instead of keys: from Azure's directory, or from any token address."""

from __future__ import annotations

from gateway import ProviderConfig, SettingsError
from gateway.provider_http import Authorizer, BearerAuthorizer, client_credentials
from plugins.providers.openai.profiles import Profile
from plugins.providers.protocol import check_credentials

_NEEDED = ("client_id", "client_secret")
_KNOWN = (*_NEEDED, "tenant_id", "token_url", "scope")
_AZURE_SCOPE = "https://cognitiveservices.azure.com/.default"


def authorizer_for(profile: Profile, config: ProviderConfig) -> Authorizer | None:
    """Make an authorizer for the configured client credentials; None without any. Raises SettingsError."""
    given = config.credentials
    if not given or config.api_key is not None:
        return None
    check_credentials(config, _KNOWN)
    if missing := [name for name in _NEEDED if name not in given]:
        raise SettingsError(f"{_name(config, missing[0])} is missing")
    form = {name: given[name] for name in (*_NEEDED, "scope") if name in given}
    if profile.deployments:
        form.setdefault("scope", _AZURE_SCOPE)
    return BearerAuthorizer(client_credentials(_token_url(config), form), profile.key_header)


def _token_url(config: ProviderConfig) -> str:
    if url := config.credentials.get("token_url"):
        return url
    if tenant := config.credentials.get("tenant_id"):
        return f"https://login.microsoftonline.com/{tenant}/oauth2/v2.0/token"
    raise SettingsError(f"{_name(config, 'token_url')} is missing")


def _name(config: ProviderConfig, name: str) -> str:
    return f"providers.{config.id}.credentials.{name}"
