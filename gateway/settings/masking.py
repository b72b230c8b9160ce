"""Keeping secrets out of what is shown."""

from __future__ import annotations

import re

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
    """Mask the passwords of the URLs in a text."""
    return _URL_PASSWORD.sub(rf"\1:{MASK}", text)


def sounds_secret(name: str) -> bool:
    """Whether a name says that its value is a secret: ``bot_token``, ``apiKey``, but not ``max_tokens``."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|-", "_", name)
    return not _SECRET_WORDS.isdisjoint(spaced.lower().split("_"))
