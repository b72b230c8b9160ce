"""Secrets in settings: their type, the tokens of the server, masking secrets in text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator

from gateway.settings.section import Section, not_blank

MASK = "**********"

_URL_PASSWORD = re.compile(r"(?<=://)([^/@:\s]*):[^/@\s]+(?=@)")
_URL_PARAMETER = re.compile(r"(?<=[?&])([\w.-]+)=([^&#\s\"'`]+)")
_SECRET_WORDS = {
    "token",
    "secret",
    "password",
    "passphrase",
    "credential",
    "credentials",
    "key",
    "keys",
    "apikey",
    "authorization",
}


def without_passwords(text: str) -> str:
    """Mask the passwords of URLs in a text, and their parameters with a secret's name."""

    def masked(found: re.Match[str]) -> str:
        return f"{found[1]}={MASK}" if sounds_secret(found[1]) else found[0]

    return _URL_PARAMETER.sub(masked, _URL_PASSWORD.sub(rf"\1:{MASK}", text))


def url_secrets(url: str) -> Iterator[str]:
    """Yield what ``without_passwords`` masks in a URL; what is no URL has nothing of this kind."""
    try:
        parts = urlsplit(url)
        yield unquote(parts.password or "")
    except ValueError:
        return
    for name, value in _URL_PARAMETER.findall(f"?{parts.query}"):
        if sounds_secret(name):
            yield value
            yield unquote(value)


def secrets_in(environ: Mapping[str, str]) -> list[str]:
    """Return the values of variables with a secret's name, without file paths."""
    return [value for name, value in environ.items() if sounds_secret(name) and not value.startswith("/")]


def sounds_secret(name: str) -> bool:
    """Return whether a name denotes a secret: ``bot_token`` and ``apiKey`` do, ``max_tokens`` does not."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|-", "_", name)
    return not _SECRET_WORDS.isdisjoint(spaced.lower().split("_"))


def _not_blank(secret: SecretStr | None) -> SecretStr | None:
    if secret is not None:
        not_blank(secret.get_secret_value())
    return secret


Secret = Annotated[SecretStr | None, AfterValidator(_not_blank)]

MIN_TOKEN_LENGTH = 32
"""Minimum length of the token of a server that other machines can reach."""
MIN_TOKEN_VARIETY = 8
"""Minimum number of different characters in it: ``aaaa…`` is easy to guess."""
_GENERATE = '`python3 -c "import secrets; print(secrets.token_urlsafe(32))"`'


class TokenSettings(Section):
    """A named token of the server, for one person or program."""

    token: SecretStr = Field(description="Bearer token, 32 characters or more; required")
    role: Literal["admin", "viewer"] = Field(
        default="admin",
        description='"admin" may do everything, "viewer" only read figures and states; default "admin"',
    )

    @field_validator("token")
    @classmethod
    def _hard_to_guess(cls, token: SecretStr) -> SecretStr:
        check_token(token.get_secret_value(), "must have at least")
        return token

    @property
    def secret(self) -> str:
        """The token itself."""
        return self.token.get_secret_value()


def check_token(token: str, least: str) -> None:
    """Raise ValueError for a token that is easy to guess."""
    if len(token) < MIN_TOKEN_LENGTH:
        raise ValueError(f"{least} {MIN_TOKEN_LENGTH} characters; {_GENERATE} makes one")
    if len(set(token)) < MIN_TOKEN_VARIETY:
        raise ValueError(f"{least} {MIN_TOKEN_VARIETY} different characters; {_GENERATE} makes one")


def token_names(tokens: dict[str, TokenSettings]) -> dict[str, TokenSettings]:
    """Return named tokens, unless a name is ambiguous with another user in the audit log."""
    for name in tokens:
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,39}", name) or name == "owner":
            raise ValueError(f"{name!r} cannot be the name of a token; use a-z, 0-9, - and _, and not owner")
    return tokens
