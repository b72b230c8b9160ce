"""Where the credentials of providers come from, and which counts: what is told is what is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gateway.contract.provider import ApiKey, OAuth
from gateway.models.credentials import StoredCredential
from gateway.models.providers import credential_sources, key_hint, provider_config
from gateway.settings import Settings

KEY = "sk-0123456789abcdef"
VARIABLES = {
    "api_key": ("X_API_KEY", "X_TOKEN"),
    "base_url": ("X_URL",),
    "credentials.id": ("X_ID",),
    "credentials.secret": ("X_SECRET",),
}
KEPT = StoredCredential("/data/keys.json", ApiKey("kept-0123456789-kept"))


@pytest.mark.parametrize(
    ("given", "environ", "kept", "used"),
    [
        ({}, {}, None, []),
        ({}, {"X_URL": "u"}, None, []),
        ({}, {"X_API_KEY": "a", "X_TOKEN": "b"}, None, ["X_API_KEY"]),
        ({}, {"X_API_KEY": "", "X_TOKEN": "b"}, None, ["X_TOKEN"]),
        ({}, {"X_API_KEY": "a"}, KEPT, ["/data/keys.json"]),
        ({"api_key": "s"}, {"X_API_KEY": "a"}, KEPT, ["settings"]),
        ({"api_key": "s", "api_keys": ("t",)}, {}, KEPT, ["settings", "settings"]),
        ({"api_keys": ("t",)}, {"X_TOKEN": "b"}, None, ["settings"]),
        ({"credentials": {"id": "i"}}, {"X_SECRET": "s", "X_API_KEY": "a"}, None, ["settings", "X_API_KEY"]),
        ({}, {"X_ID": "i", "X_SECRET": "s"}, None, ["X_ID", "X_SECRET"]),
    ],
)
def test_what_is_said_to_be_used_is_what_is_used(
    given: dict[str, Any], environ: Mapping[str, str], kept: StoredCredential | None, used: list[str]
) -> None:
    settings = Settings(providers={"x": given}) if given else Settings()
    sources = credential_sources(settings, environ, "x", VARIABLES, kept)
    assert [source.place for source in sources if source.used] == used
    config = provider_config(settings, environ, "x", VARIABLES, kept.credential if kept else None)
    shown = {
        "settings": "s" if "api_key" in given else "t",
        "/data/keys.json": "kept-0123456789-kept",
    } | environ
    keys = [shown[source.place] for source in sources if source.used and source.what.startswith("api_key")]
    assert keys[:1] == ([config.api_key] if config.api_key else [])
    assert len(keys) == len(config.keys)


def test_of_a_long_key_the_end_is_shown_and_of_a_short_one_nothing() -> None:
    assert (key_hint(KEY), key_hint(KEY[:15]), key_hint("")) == ("…cdef", "", "")


def test_a_login_tells_when_it_ends_and_nothing_else_of_itself() -> None:
    (source,) = credential_sources(
        Settings(), {}, "x", VARIABLES, StoredCredential("f", OAuth("a" * 20, "", 5.0))
    )
    assert (source.kind, source.expires, source.hint) == ("login", 5.0, "…aaaa")
    (source,) = credential_sources(
        Settings(), {}, "x", VARIABLES, StoredCredential("f", OAuth("a" * 20, "renews", 5.0))
    )
    assert source.expires == 0.0
    (source,) = credential_sources(Settings(), {}, "x", VARIABLES, StoredCredential("the keyring", None))
    assert (source.hint, source.place) == ("", "the keyring")
