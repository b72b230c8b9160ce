"""Proof of who we are to AWS: a signature over each request, from credentials wherever they come from."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from gateway import AuthFailedError, Authorizer, ProviderConfig, RequestSpec, SettingsError
from plugins.providers.bedrock.library import botocore

SERVICE = "bedrock"

_KNOWN = ("access_key_id", "secret_access_key", "session_token", "profile")


def signer_for(config: ProviderConfig) -> Authorizer | None:
    """What signs requests; None if there is a key. Raises SettingsError."""
    botocore("auth", config.id)
    if config.api_key is not None:
        return None
    given = config.credentials
    if unknown := sorted(set(given) - set(_KNOWN)):
        known = ", ".join(_KNOWN)
        raise SettingsError(f"providers.{config.id}.credentials.{unknown[0]} is not known; known are {known}")
    if ("access_key_id" in given) != ("secret_access_key" in given):
        raise SettingsError(
            f"providers.{config.id}.credentials: access_key_id and secret_access_key belong together"
        )
    return Signer(config)


class Signer:
    """Signs requests (Signature Version 4) with the credentials of the settings, or those of this machine."""

    def __init__(self, config: ProviderConfig) -> None:
        self._config = config
        self._source: Any = None

    async def authorize(self, request: RequestSpec, session: aiohttp.ClientSession) -> RequestSpec:
        """The request with its signature, at the address in the very form in which it is sent."""
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
        """The library sees to fresh credentials itself."""
        return False

    async def _credentials(self) -> Any:
        given = self._config.credentials
        if "access_key_id" in given:
            return botocore("credentials").Credentials(
                given["access_key_id"], given["secret_access_key"], given.get("session_token")
            )
        # The library reads files and waits for the network where it stands: hence the thread.
        return await asyncio.to_thread(self._of_this_machine)

    def _of_this_machine(self) -> Any:
        failures = botocore("exceptions")
        try:
            if self._source is None:
                session = botocore("session").Session(profile=self._config.credentials.get("profile"))
                self._source = session.get_credentials()
            if self._source is not None:
                return self._source.get_frozen_credentials()
        except failures.BotoCoreError as error:
            raise AuthFailedError(f"there are no credentials of AWS: {error}") from None
        raise AuthFailedError(
            "there are no credentials of AWS: set AWS_ACCESS_KEY_ID, or use `aws configure`"
        )
