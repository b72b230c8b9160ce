"""Signing in while the gateway runs: the next message is answered."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from gateway.contract.provider import ApiKey, ProviderConfig
from gateway.models.credentials import FILE_NAME, CredentialStore, Keyring
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import SocketClient, serving, until
from tests.gateway.models.file_keyring import FileKeyring

pytestmark = pytest.mark.slow


def held(key: str) -> list[ProviderConfig]:
    """All that remembers a key anywhere in this process."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, ProviderConfig) and key in each.keys]


async def answer(client: SocketClient, text: str = "Hi") -> str | None:
    """The error that a message is answered with; None if it is none."""
    await client.say(text, session="a")
    parts: list[dict[str, str]] = []
    while (frame := await client.until(lambda frame: frame["type"] in ("part", "complete")))[
        "type"
    ] == "part":
        parts.append(frame["part"])
    return next((part["error_name"] for part in parts if "error_name" in part), None)


async def test_004_T11_a_login_counts_from_the_next_message_on(tmp_path: Path) -> None:
    async with FakeModels(key="right") as fake:
        providers = {"openai": {"base_url": fake.openai_url, "max_retries": 0}}
        async with serving(tmp_path, fake=fake, providers=providers) as served, served.socket() as client:
            await client.say("Hi", session="a")
            assert (await client.until("part"))["part"]["error_name"] == "AuthFailedError"
            await client.until("complete")
            CredentialStore(tmp_path).save("openai", ApiKey("right"), in_file=True)
            await client.say("Again", session="a")
            await client.until("complete")
            assert len(fake.requests) == 1


async def test_004_T11_a_key_in_the_settings_counts_before_a_login(tmp_path: Path) -> None:
    async with FakeModels(key="right") as fake:
        CredentialStore(tmp_path).save("openai", ApiKey("right"), in_file=True)
        wrong = {"base_url": fake.openai_url, "api_key": "wrong", "max_retries": 0}
        async with (
            serving(tmp_path, fake=fake, providers={"openai": wrong}) as served,
            served.socket() as client,
        ):
            await client.say("Hi", session="a")
            assert (await client.until("part"))["part"]["error_name"] == "AuthFailedError"


async def test_004_T11_who_signs_out_is_forgotten_while_the_gateway_runs(tmp_path: Path) -> None:
    async with FakeModels(key="removed") as fake:
        kept = CredentialStore(tmp_path)
        kept.save("openai", ApiKey("removed"), in_file=True)
        providers = {"openai": {"base_url": fake.openai_url, "max_retries": 0}}
        async with serving(tmp_path, fake=fake, providers=providers) as served, served.socket() as client:
            assert await answer(client) is None
            assert held("removed")
            kept.delete("openai")
            await until(lambda: not held("removed"))
            assert await answer(client) == "AuthFailedError"
            kept.save("openai", ApiKey("removed"), in_file=True)
            assert await answer(client) is None


async def test_who_signs_in_with_another_key_is_shown_with_that_one(tmp_path: Path) -> None:
    async with FakeModels() as fake:
        kept = CredentialStore(tmp_path)
        kept.save("openai", ApiKey("old"), in_file=True)
        limited = {"base_url": fake.openai_url, "max_retries": 0, "concurrency": 2}
        async with (
            serving(tmp_path, fake=fake, providers={"openai": limited}) as served,
            served.socket() as client,
        ):
            assert await answer(client) is None
            kept.save("openai", ApiKey("new"), in_file=True)
            await until(lambda: not held("old"))
            assert await answer(client) is None
        assert [request.headers["authorization"] for request in fake.requests] == ["Bearer old", "Bearer new"]


async def test_a_login_chooses_the_model_where_the_settings_choose_none(tmp_path: Path) -> None:
    async with FakeModels() as fake:
        providers = {"openai": {"base_url": fake.openai_url}}
        local = {"local": {"base_url": "http://127.0.0.1:9"}}
        async with serving(tmp_path, fake=fake, model=None, providers={**providers, **local}) as served:
            assert served.gateway.model == "demo/demo"
            CredentialStore(tmp_path).save("openai", ApiKey("new"), in_file=True)
            await until(lambda: served.gateway.model == "openai/gpt-5.4-mini")
            CredentialStore(tmp_path).delete("openai")
            await until(lambda: served.gateway.model == "demo/demo")


async def test_a_file_of_keys_that_cannot_be_read_changes_nothing_until_it_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with FakeModels(key="unread") as fake:
        CredentialStore(tmp_path).save("openai", ApiKey("unread"), in_file=True)
        providers = {"openai": {"base_url": fake.openai_url, "max_retries": 0}}
        async with serving(tmp_path, fake=fake, providers=providers) as served, served.socket() as client:
            assert await answer(client) is None
            (tmp_path / FILE_NAME).write_bytes(b"{")
            await until(lambda: "cannot read the saved logins" in capsys.readouterr().out)
            assert await answer(client) is None
            (tmp_path / FILE_NAME).unlink()
            await until(lambda: not held("unread"))
            assert await answer(client) == "AuthFailedError"


def test_a_key_that_takes_the_place_of_another_in_the_keyring_is_noticed(tmp_path: Path) -> None:
    ours, theirs = (
        CredentialStore(tmp_path / "data", Keyring(FileKeyring(tmp_path / "ring"), "test")) for _ in range(2)
    )
    theirs.save("a", ApiKey("one"))
    theirs.save("b", ApiKey("b"))
    ours.load()
    assert (ours.poll_changes(), ours.get("a")) == (frozenset(), ApiKey("one"))
    theirs.save("a", ApiKey("two"))
    assert (ours.poll_changes(), ours.get("a")) == ({"a"}, ApiKey("two"))
    assert ours.poll_changes() == frozenset()
    theirs.delete("a")
    assert (ours.poll_changes(), ours.get("a")) == ({"a"}, None)


def test_what_the_gateway_itself_stores_is_not_reported_as_a_change(tmp_path: Path) -> None:
    ours, theirs = CredentialStore(tmp_path), CredentialStore(tmp_path)
    ours.load()
    theirs.save("b", ApiKey("b"), in_file=True)
    ours.save("a", ApiKey("renewed"), in_file=True)
    assert ours.poll_changes() == {"b"}
