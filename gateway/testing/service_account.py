"""A service account of Google's that only a fake knows."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gateway.contract.errors import SettingsError
from gateway.testing.tokens import FakeTokens


@cache
def private_key() -> str:
    """A key in PEM, made once. Raises SettingsError where the extra is not installed."""
    try:
        # It comes with Google's library, which is an extra; so it is only there where it is wanted.
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa
    except ImportError:
        raise SettingsError(
            "provider 'vertex' needs the extra vertex: pip install 'trunkline[vertex]'"
        ) from None
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    kind, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, kind, plain).decode()


def account(token_url: str) -> dict[str, str]:
    """The contents of the account's file."""
    return {
        "type": "service_account",
        "project_id": "ours",
        "private_key_id": "1",
        "private_key": private_key(),
        "client_email": "bot@ours.example",
        "client_id": "7",
        "token_uri": token_url,
    }


@asynccontextmanager
async def with_account(_: str = "", tokens: FakeTokens | None = None) -> AsyncGenerator[Mapping[str, Any]]:
    """The settings of a provider that has such an account."""
    with TemporaryDirectory() as folder:
        async with tokens or FakeTokens() as running:
            file = Path(folder) / "account.json"
            file.write_text(json.dumps(account(running.token_url)))
            yield {"project_id": "ours", "credentials": {"file": str(file)}}
