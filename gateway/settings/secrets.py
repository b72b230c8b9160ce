"""Secrets in settings: their type, and masking them in text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, SecretStr

MASK = "**********"

_URL_PASSWORD = re.compile(r"(?<=://)([^/@:\s]*):[^/@\s]+(?=@)")
_SECRET_WORDS = {
    "token",
    "secret",
    "password",
    "passphrase",
    "credential",
    "credentials",
    "key",
    "keys",
    "authorization",
}


def without_passwords(text: str) -> str:
    """Mask the passwords of URLs in a text."""
    return _URL_PASSWORD.sub(rf"\1:{MASK}", text)


def secrets_in(environ: Mapping[str, str]) -> list[str]:
    """Return the values of variables with a secret's name, without file paths."""
    return [value for name, value in environ.items() if sounds_secret(name) and not value.startswith("/")]


def sounds_secret(name: str) -> bool:
    """Return whether a name denotes a secret: ``bot_token`` and ``apiKey`` do, ``max_tokens`` does not."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|-", "_", name)
    return not _SECRET_WORDS.isdisjoint(spaced.lower().split("_"))


def _not_blank(secret: SecretStr | None) -> SecretStr | None:
    if secret is not None and not secret.get_secret_value().strip():
        raise ValueError("must not be blank; give it a value, or remove the line")
    return secret


Secret = Annotated[SecretStr | None, AfterValidator(_not_blank)]
