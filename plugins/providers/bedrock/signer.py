"""Signatures of requests to AWS, with credentials from the settings or from the machine."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

import msgspec
from yarl import URL

from gateway import ProviderConfig, SettingsError
from gateway.provider_http import AuthFailedError, Authorizer, HttpClient, RequestSpec
from plugins.providers.protocol import check_credentials

SERVICE = "bedrock"

_KNOWN = ("access_key_id", "secret_access_key", "session_token", "profile")


def botocore(module: str, provider_id: str = "bedrock") -> Any:
    """Import a module of botocore. Raises SettingsError if the extra is not installed."""
    # botocore is optional and takes long to load, so it is imported when a Bedrock provider is made.
    try:
        return import_module(f"botocore.{module}")
    except ImportError:
        raise SettingsError(
            f"provider {provider_id!r} needs the extra bedrock: pip install 'trunkline[bedrock]'"
        ) from None


def signer_for(config: ProviderConfig) -> Authorizer | None:
    """Make the signer; None if there is an API key. Raises SettingsError."""
    botocore("auth", config.id)
    if config.api_key is not None:
        return None
    given = config.credentials
    check_credentials(config, _KNOWN)
    if ("access_key_id" in given) != ("secret_access_key" in given):
        raise SettingsError(
            f"providers.{config.id}.credentials: access_key_id and secret_access_key must both be set"
        )
    return Signer(config)


class Signer:
    """Signs requests (Signature Version 4) with credentials from the settings or from the machine."""

    def __init__(self, config: ProviderConfig) -> None:
        self._config = config
        self._source: Any = None

    async def authorize(self, request: RequestSpec, client: HttpClient) -> RequestSpec:
        """Return the signed request."""
        # The signature covers the URL as aiohttp sends it, which yarl has normalized.
        credentials = await self._credentials()
        url = str(URL(request.url))
        signed = botocore("awsrequest").AWSRequest(
            method=request.method,
            url=url,
            data=request.body or b"",
            headers={"Content-Type": request.headers["Content-Type"]},
        )
        botocore("auth").SigV4Auth(credentials, SERVICE, self._config.region or "").add_auth(signed)
        return msgspec.structs.replace(request, url=url, headers={**request.headers, **dict(signed.headers)})

    def forget(self) -> bool:
        """Return False: botocore renews credentials itself."""
        return False

    async def _credentials(self) -> Any:
        given = self._config.credentials
        if "access_key_id" in given:
            return botocore("credentials").Credentials(
                given["access_key_id"], given["secret_access_key"], given.get("session_token")
            )
        # botocore blocks on files and the network.
        return await asyncio.to_thread(self._machine_credentials)

    def _machine_credentials(self) -> Any:
        failures = botocore("exceptions")
        try:
            if self._source is None:
                session = botocore("session").Session(profile=self._config.credentials.get("profile"))
                self._source = session.get_credentials()
            if self._source is not None:
                return self._source.get_frozen_credentials()
        except failures.BotoCoreError as error:
            raise AuthFailedError(f"no AWS credentials: {error}") from None
        raise AuthFailedError("no AWS credentials: set AWS_ACCESS_KEY_ID, or run `aws configure`")
