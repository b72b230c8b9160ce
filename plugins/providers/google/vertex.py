"""Gemini through Google Cloud (Vertex AI): addresses by project and region, tokens instead of a key."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC
from importlib import import_module
from typing import Any
from urllib.parse import quote

from gateway import AuthMethod, ChatOptions, Message, ModelInfo, ProviderConfig, SettingsError
from gateway.provider_http import (
    AuthFailedError,
    BearerAuthorizer,
    HttpClient,
    ProviderUnavailableError,
    RequestSpec,
    Token,
)
from plugins.providers.google.adapter import GeminiProtocol, parse_models
from plugins.providers.protocol import check_credentials, json_headers

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
EVERYWHERE = "global"
"""The default region: Google chooses one."""
_CONTINENTS = ("eu", "us")
"""Groups of regions, which have addresses of another form."""


class VertexAdapter(GeminiProtocol):
    """Builds requests to Google Cloud and parses their streams."""

    id = "vertex"
    name = "Google Vertex AI"
    auth_method: AuthMethod = "oauth"
    call_ids = False

    def endpoint(self, config: ProviderConfig) -> str:
        """Return the address of the API in its region. Raises SettingsError without a project."""
        if not config.project_id:
            raise SettingsError(
                f"providers.{config.id}.project_id is missing; set it or GOOGLE_CLOUD_PROJECT"
            )
        if config.base_url:
            return config.base_url.rstrip("/")
        region = config.region or EVERYWHERE
        if region in _CONTINENTS:
            return f"https://aiplatform.{region}.rep.googleapis.com"
        return f"https://{'' if region == EVERYWHERE else f'{region}-'}aiplatform.googleapis.com"

    def build_chat_request(
        self, messages: Sequence[Message], options: ChatOptions, config: ProviderConfig
    ) -> RequestSpec:
        """Build the request for a streamed answer."""
        project, region = quote(config.project_id or "", safe=""), quote(config.region or EVERYWHERE, safe="")
        model = quote(options.model, safe="")
        place = f"projects/{project}/locations/{region}/publishers/google/models/{model}"
        url = f"{self._version(config)}/{place}:streamGenerateContent?alt=sse"
        return RequestSpec(url, "POST", json_headers(config), self.body(messages, options))

    def build_models_request(self, config: ProviderConfig) -> RequestSpec:
        """Build the request for the list of Google's own models."""
        return RequestSpec(f"{self._version(config)}/publishers/google/models", "GET", json_headers(config))

    def parse_models_response(self, body: bytes, config: ProviderConfig) -> list[ModelInfo]:
        """Parse the list of models. Raises DeltaParseError."""
        return [
            ModelInfo(model.name.rpartition("/")[2], config.id, model.display_name)
            for model in parse_models(body).publisher_models
        ]

    def _version(self, config: ProviderConfig) -> str:
        return f"{self.endpoint(config)}/{config.api_version or 'v1beta1'}"


def google_credentials(config: ProviderConfig) -> BearerAuthorizer:
    """Make an authorizer with the account in ``credentials.file`` or the machine's default credentials."""
    check_credentials(config, ("file",))
    loaded: list[Any] = []

    async def fetch(_: HttpClient) -> Token:
        # google-auth blocks on files and the network.
        if not loaded:
            loaded.append(await asyncio.to_thread(_load, config))
        return await asyncio.to_thread(_refreshed, loaded[0])

    _library(config.id)
    return BearerAuthorizer(fetch)


def _library(provider_id: str) -> Any:
    """Import google-auth. Raises SettingsError if the extra is not installed."""
    # google-auth is optional and takes long to load, so it is imported when a Vertex provider is made.
    try:
        import_module("google.auth.transport.requests")
        return import_module("google.auth")
    except ImportError:
        raise SettingsError(
            f"provider {provider_id!r} needs the extra vertex: pip install 'trunkline[vertex]'"
        ) from None


def _load(config: ProviderConfig) -> Any:
    auth = _library(config.id)
    file = config.credentials.get("file")
    try:
        if file:
            account = import_module("google.oauth2.service_account").Credentials
            return account.from_service_account_file(file, scopes=[SCOPE])
        return auth.default(scopes=[SCOPE])[0]
    except (OSError, ValueError, auth.exceptions.GoogleAuthError) as error:
        raise AuthFailedError(f"no Google credentials: {error}") from None


def _refreshed(credentials: Any) -> Token:
    failures = import_module("google.auth.exceptions")
    try:
        credentials.refresh(import_module("google.auth.transport.requests").Request())
    except failures.TransportError as error:
        raise ProviderUnavailableError(f"cannot reach Google for a token: {error}") from None
    except failures.GoogleAuthError as error:
        raise AuthFailedError(f"Google refused a token: {error}") from None
    return Token(credentials.token, credentials.expiry.replace(tzinfo=UTC).timestamp())
