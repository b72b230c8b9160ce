"""GitHub Copilot: signing in, exchanging tokens, and what each request says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from gateway import ImagePart, ProviderConfig, SettingsError, ToolCallPart, ToolResultPart
from gateway.contract.provider import SignsIn
from gateway.provider_http import AuthFailedError, OAuth, ServerFailedError
from gateway.testing.contracts.provider_calls import assistant, connected, deltas_of, text_of, user
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.fake_models.tokens import RIGHT, FakeTokens
from plugins.providers.openai import create


def credentials(tokens: FakeTokens) -> dict[str, str]:
    return {"api_url": tokens.url, "login_url": tokens.url}


def settings(tokens: FakeTokens, **more: Any) -> dict[str, Any]:
    return {"like": "copilot", "api_key": RIGHT, "credentials": credentials(tokens), **more}


async def test_a_token_of_github_is_exchanged_once_and_again_before_it_ends() -> None:
    async with FakeModels() as fake:
        for lifetime, given in ((1500, 1), (30, 3)):
            async with (
                FakeTokens(lifetime) as tokens,
                connected(create, fake.at("copilot"), **settings(tokens)) as provider,
            ):
                for _ in range(3):
                    await deltas_of(provider)
            assert tokens.given == given
            assert tokens.asked[0]["authorization"] == f"token {RIGHT}"
        assert fake.requests[0].headers["authorization"] == "Bearer token-1"
        assert RIGHT not in str(fake.requests)


async def test_a_refused_token_is_exchanged_again() -> None:
    async with (
        FakeModels(key="token-2") as fake,
        FakeTokens() as tokens,
        connected(create, fake.at("copilot"), **settings(tokens)) as provider,
    ):
        assert text_of(await deltas_of(provider)) == "You said: Hi"
        assert (tokens.given, len(fake.requests)) == (2, 1)


async def test_requests_go_where_the_token_is_good() -> None:
    async with FakeModels() as fake, FakeTokens(place=fake.at("copilot")) as tokens:
        config = ProviderConfig(id="copilot", api_key=RIGHT, credentials=credentials(tokens))
        provider = create(config)
        await provider.initialize(config)
        assert provider.api_endpoint == "https://api.githubcopilot.com"
        assert text_of(await deltas_of(provider)) == "You said: Hi"
        assert len(await provider.list_models()) == 2
        await provider.close()


async def test_what_follows_a_tool_is_not_a_wish_of_the_user() -> None:
    called = assistant(ToolCallPart("a", "clock", {}), ToolResultPart("a", "noon"))
    picture = user("Look", ImagePart("aGk=", "image/png"))
    async with (
        FakeModels() as fake,
        FakeTokens() as tokens,
        connected(create, fake.at("copilot"), **settings(tokens)) as provider,
    ):
        for messages in ((user("Hi"),), (user("Hi"), called), (user("Hi"), called, user("So?")), (picture,)):
            await deltas_of(provider, *messages)
        said = [asked.headers["x-initiator"] for asked in fake.requests]
        looked = [asked.headers.get("copilot-vision-request") for asked in fake.requests]
    assert said == ["user", "agent", "user", "user"]
    assert looked == [None, None, None, "true"]


async def test_a_user_without_a_login_gets_the_command_for_it() -> None:
    async with FakeModels() as fake, FakeTokens() as tokens:
        for key, said in ((None, "trunkline auth login copilot"), ("wrong-token-of-mine", "Bad credentials")):
            given = settings(tokens, api_key=key)
            async with connected(create, fake.at("copilot"), **given) as provider:
                with pytest.raises(AuthFailedError, match=said) as caught:
                    await deltas_of(provider)
                assert "wrong-token-of-mine" not in str(caught.value)
        assert fake.requests == []


async def test_a_person_signs_in_with_a_code() -> None:
    told: list[str] = []
    async with (
        FakeTokens(waits=3) as tokens,
        connected(create, "http://127.0.0.1:9", **settings(tokens, api_key=None)) as provider,
    ):
        assert isinstance(provider, SignsIn)
        assert await provider.sign_in(told.append) == OAuth(RIGHT)
        assert told == [f"Open {tokens.url}/login/device and enter the code ABCD-1234"]
        assert tokens.asked[0]["scope"] == "read:user"
        assert [form.get("device_code") for form in tokens.asked[1:]] == ["device"] * 4


async def test_a_login_that_ends_is_renewed_and_what_is_new_is_kept() -> None:
    async with FakeModels() as fake, FakeTokens(30, ends=61) as tokens:
        kept: list[OAuth] = []
        first = OAuth(RIGHT, "refresh-0", 1.0)
        given = settings(tokens, oauth=first, save_login=kept.append)
        async with connected(create, fake.at("copilot"), **given) as provider:
            for _ in range(2):
                assert text_of(await deltas_of(provider)) == "You said: Hi"
            assert [login.refresh for login in kept] == ["refresh-1"]
            assert (kept[0].access, kept[0].expires > 1.0) == (RIGHT, True)
            tokens.renewed = 9
        given = settings(tokens, oauth=first, save_login=kept.append)
        async with connected(create, fake.at("copilot"), **given) as provider:
            with pytest.raises(AuthFailedError, match=r"expired \(bad_refresh_token\): run `trunkline auth"):
                await deltas_of(provider)


async def test_who_signs_in_when_the_chat_says_so_needs_no_restart() -> None:
    async with FakeModels() as fake, FakeTokens() as tokens:
        found: list[OAuth] = []
        given = settings(tokens, api_key=None, load_login=lambda: found[0] if found else None)
        async with connected(create, fake.at("copilot"), **given) as provider:
            with pytest.raises(AuthFailedError, match="trunkline auth login copilot"):
                await deltas_of(provider)
            found.append(OAuth(RIGHT))
            assert text_of(await deltas_of(provider)) == "You said: Hi"


async def test_a_renewed_login_that_cannot_be_kept_is_good_all_the_same() -> None:
    def full(_: OAuth) -> None:
        raise OSError("no space left")

    async with FakeModels() as fake, FakeTokens(ends=3600) as tokens:
        given = settings(tokens, oauth=OAuth(RIGHT, "refresh-0", 1.0), save_login=full)
        async with connected(create, fake.at("copilot"), **given) as provider:
            assert text_of(await deltas_of(provider)) == "You said: Hi"


async def test_a_login_that_is_refused_or_runs_out_is_reported() -> None:
    for tokens, said in (
        (FakeTokens(denied="access_denied"), "access_denied"),
        (FakeTokens(waits=10**9, patience=0.2), "the code was not entered in time"),
    ):
        async with tokens, connected(create, "http://127.0.0.1:9", **settings(tokens)) as provider:
            assert isinstance(provider, SignsIn)
            with pytest.raises(AuthFailedError, match=said):
                await provider.sign_in(lambda _: None)


async def test_who_asks_too_often_asks_less_often() -> None:
    async with (
        FakeTokens(denied="slow_down", patience=0.2) as tokens,
        connected(create, "http://127.0.0.1:9", **settings(tokens)) as provider,
    ):
        assert isinstance(provider, SignsIn)
        with pytest.raises(AuthFailedError, match="in time"):
            await provider.sign_in(lambda _: None)
        assert len(tokens.asked) == 2


async def test_a_failed_server_of_github_is_not_a_login_error() -> None:
    async with FakeTokens(broken=True) as tokens, FakeModels() as fake:
        given = settings(tokens, max_retries=0)
        async with connected(create, fake.at("copilot"), **given) as provider:
            with pytest.raises(ServerFailedError):
                await deltas_of(provider)


def test_credentials_that_mean_nothing_are_reported() -> None:
    with pytest.raises(SettingsError, match=r"providers\.copilot\.credentials\.token is not known"):
        create(ProviderConfig(id="copilot", credentials={"token": "x"}))
    with pytest.raises(
        SettingsError, match=r"providers\.copilot\.api_keys: GitHub Copilot does not use API keys"
    ):
        create(ProviderConfig(id="copilot", api_keys=("one", "two")))
