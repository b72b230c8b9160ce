"""Gemini through Google Cloud (Vertex AI): addresses by project and region, tokens in place of a key."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC
from importlib import import_module
from typing import Any
from urllib.parse import quote

import aiohttp

from gateway import (
    AnswerWriter,
    AuthFailedError,
    AuthMethod,
    BearerAuthorizer,
    Capabilities,
    ChatOptions,
    Message,
    ModelInfo,
    ProviderConfig,
    ProviderUnavailableError,
    RequestSpec,
    SettingsError,
    Token,
    Transport,
)
from plugins.providers.google.adapter import CAPABILITIES, GeminiBody, decoded_models
from plugins.providers.google.contents import Signatures
from plugins.providers.google.parser import ResponseParser

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
EVERYWHERE = "global"
"""The region when none is set: Google chooses."""


class VertexAdapter:
    """Builds requests to Google Cloud and reads their streams."""

    id = "vertex"
    name = "Google Vertex AI"
    auth_method: AuthMethod = "oauth"
    transport: Transport = "sse"

    def __init__(self, capabilities: Capabilities = CAPABILITIES) -> None:
        self.capabilities = capabilities
        self._signatures = Signatures()
        self._body = GeminiBody(self._signatures, images=capabilities.images)

    def able(self, capabilities: Capabilities) -> VertexAdapter:
        """The same for models that can do other things."""
        return VertexAdapter(capabilities)

    def endpoint(self, config: ProviderConfig) -> str:
        """The address of the API in its region."""
        if not config.project_id:
            raise SettingsError(f"providers.{config.id}.project_id is needed, or GOOGLE_CLOUD_PROJECT")
        if config.base_url:
            return config.base_url.rstrip("/")
        region = config.region or EVERYWHERE
        return f"https://{'' if region == EVERYWHERE else f'{region}-'}aiplatform.googleapis.com"

    def build_chat_request(
        self, messages: Sequence[Message], options: ChatOptions, config: ProviderConfig
    ) -> RequestSpec:
        """A streamed answer to the conversation."""
        project, region = quote(config.project_id or "", safe=""), quote(config.region or EVERYWHERE, safe="")
        model = quote(options.model, safe="")
        place = f"projects/{project}/locations/{region}/publishers/google/models/{model}"
        url = f"{self._version(config)}/{place}:streamGenerateContent?alt=sse"
        return RequestSpec(url, "POST", _headers(config), self._body.encode(messages, options))

    def parser(self, writer: AnswerWriter) -> ResponseParser:
        """A parser for one answer."""
        return ResponseParser(writer, self._signatures)

    def build_models_request(self, config: ProviderConfig) -> RequestSpec:
        """The list of Google's own models."""
        return RequestSpec(f"{self._version(config)}/publishers/google/models", "GET", _headers(config))

    def parse_models_response(self, body: bytes, config: ProviderConfig) -> list[ModelInfo]:
        """The models of a list. Raises DeltaParseError."""
        return [
            ModelInfo(model.name.rpartition("/")[2], config.id, model.display_name)
            for model in decoded_models(body).publisher_models
        ]

    def _version(self, config: ProviderConfig) -> str:
        return f"{self.endpoint(config)}/{config.api_version or 'v1beta1'}"


def google_credentials(config: ProviderConfig) -> BearerAuthorizer:
    """Tokens of the service account whose file the settings name, or of what Google's tools have set up."""
    if unknown := sorted(set(config.credentials) - {"file"}):
        raise SettingsError(f"providers.{config.id}.credentials.{unknown[0]} is not known; known is file")
    loaded: list[Any] = []

    async def fetch(_: aiohttp.ClientSession) -> Token:
        # Google's library waits for the network where it stands: hence the thread.
        if not loaded:
            loaded.append(await asyncio.to_thread(_load, config))
        return await asyncio.to_thread(_refreshed, loaded[0])

    _library(config.id)
    return BearerAuthorizer(fetch)


def _library(provider_id: str) -> Any:
    """Google's library: an extra that is loaded here, since only this provider needs it."""
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
        raise AuthFailedError(f"there are no credentials of Google's: {error}") from None


def _refreshed(credentials: Any) -> Token:
    failures = import_module("google.auth.exceptions")
    try:
        credentials.refresh(import_module("google.auth.transport.requests").Request())
    except failures.TransportError as error:
        raise ProviderUnavailableError(f"Google gives no token: {error}") from None
    except failures.GoogleAuthError as error:
        raise AuthFailedError(f"Google gives no token: {error}") from None
    return Token(credentials.token, credentials.expiry.replace(tzinfo=UTC).timestamp())


def _headers(config: ProviderConfig) -> dict[str, str]:
    return {"Content-Type": "application/json", "Accept-Encoding": "identity", **config.custom_headers}
