"""Credentials that a login left behind."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from gateway import SettingsError
from gateway.contract.provider import ApiKey, Credential, OAuth
from gateway.models.credentials import FILE_NAME, CredentialStore, Keyring, StoredCredential
from gateway.models.providers import provider_config
from gateway.settings import Settings
from tests.gateway.models.file_keyring import FileKeyring

SIGNED = OAuth("access", "refresh", 1_900_000_000.0)


def with_keyring(folder: Path) -> CredentialStore:
    """Keys of a data directory that has a keyring beside it."""
    return CredentialStore(folder / "data", Keyring(FileKeyring(folder / "ring"), "trunkline test"))


def test_004_T11_credentials_are_kept_beside_each_other_by_kind_and_replaced(tmp_path: Path) -> None:
    keys = CredentialStore(tmp_path / "deep" / "data")
    assert keys.get("copilot") is None
    assert keys.save("copilot", ApiKey("one")) == str(tmp_path / "deep" / "data" / FILE_NAME)
    keys.save("other", ApiKey("two"))
    keys.save("copilot", SIGNED)
    assert json.loads((tmp_path / "deep" / "data" / FILE_NAME).read_text()) == {
        "copilot": {"type": "oauth", "access": "access", "refresh": "refresh", "expires": 1_900_000_000.0},
        "other": {"type": "api", "key": "two"},
    }
    assert (keys.get("copilot"), keys.get("other")) == (SIGNED, ApiKey("two"))
    assert (keys.delete("copilot"), keys.delete("copilot")) == (True, False)
    assert list(keys.stored()) == ["other"]


def test_004_T11_only_this_user_can_read_them(tmp_path: Path) -> None:
    file = Path(CredentialStore(tmp_path).save("copilot", ApiKey("one")))
    CredentialStore(tmp_path).save("copilot", ApiKey("two"))
    assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE_NAME, "keys.lock"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606, 0o777])
def test_a_file_that_others_can_read_is_taken_from_them(
    tmp_path: Path, mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(CredentialStore(tmp_path).save("copilot", ApiKey("the-key-itself")))
    file.chmod(mode)
    assert CredentialStore(tmp_path).get("copilot") == ApiKey("the-key-itself")
    assert file.stat().st_mode & 0o077 == 0
    said = capsys.readouterr().out
    assert "removed the access of other users" in said
    assert str(file) in said
    assert "the-key-itself" not in said


@pytest.mark.parametrize("text", ["[]", "{", '{"x": 5}', '{"x": {"type": "strange"}}', "\xff"])
def test_a_file_that_is_none_names_itself_and_the_way_out(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsError, match=r"cannot read the keys in .*keys\.json: .*sign in again"):
        CredentialStore(tmp_path).get("x")
    with pytest.raises(SettingsError, match=r"cannot read the keys in .*keys\.json"):
        CredentialStore(tmp_path).save("x", ApiKey("k"))
    assert (tmp_path / FILE_NAME).read_bytes() == text.encode("latin-1")


def test_a_key_without_a_kind_is_one_to_show(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"copilot": "plain"}')
    assert CredentialStore(tmp_path).get("copilot") == ApiKey("plain")


def test_two_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    writers = [
        threading.Thread(target=CredentialStore(tmp_path).save, args=(f"p{number}", ApiKey("k")))
        for number in range(20)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(CredentialStore(tmp_path).stored()) == 20


def test_a_credential_does_not_show_itself() -> None:
    assert "the-key-itself" not in repr((ApiKey("the-key-itself"), OAuth("the-key-itself", "the-key-itself")))


def test_where_there_is_a_keyring_the_file_only_says_so(tmp_path: Path) -> None:
    keys = with_keyring(tmp_path)
    assert keys.save("openai", ApiKey("the-key-itself")) == "the keyring (file)"
    assert "the-key-itself" not in (tmp_path / "data" / FILE_NAME).read_text()
    assert keys.stored() == {"openai": StoredCredential("the keyring", None)}
    fresh = with_keyring(tmp_path)
    fresh.load()
    (tmp_path / "ring").rename(tmp_path / "gone")
    assert fresh.get("openai") == ApiKey("the-key-itself")


def test_a_renewed_credential_stays_where_the_old_one_was(tmp_path: Path) -> None:
    keys = with_keyring(tmp_path)
    keys.save("a", SIGNED)
    keys.save("b", SIGNED, in_file=True)
    for name in ("a", "b"):
        keys.replace(name, OAuth("fresh-access"))
        assert with_keyring(tmp_path).get(name) == OAuth("fresh-access")
    assert (tmp_path / "data" / FILE_NAME).read_text().count("fresh-access") == 1


def test_what_leaves_the_keyring_leaves_nothing_there(tmp_path: Path) -> None:
    keys = with_keyring(tmp_path)
    keys.save("a", ApiKey("k"))
    keys.save("b", ApiKey("k"))
    keys.save("a", ApiKey("k"), in_file=True)
    assert list(json.loads((tmp_path / "ring").read_text())) == ["trunkline test/b"]
    assert keys.delete("b")
    assert json.loads((tmp_path / "ring").read_text()) == {}
    keys.save("b", ApiKey("k"))
    (tmp_path / "ring").unlink()
    assert keys.delete("b")


def test_a_keyring_that_is_locked_or_lost_names_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_keyring(tmp_path).save("a", ApiKey("k"))
    (tmp_path / "ring").unlink()
    with pytest.raises(SettingsError, match="no credential of a; `trunkline auth login a`"):
        with_keyring(tmp_path).get("a")
    (tmp_path / "ring").mkdir()
    with pytest.raises(SettingsError, match="KeyringLocked; unlock it, or use --file"):
        with_keyring(tmp_path).get("a")
    with_keyring(tmp_path).load()
    assert "cannot read a credential" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kept", "key"),
    [(ApiKey("kept"), "kept"), (SIGNED, "access"), (None, "there")],
)
def test_what_was_kept_counts_before_the_environment_and_after_the_settings(
    kept: Credential | None, key: str
) -> None:
    variables = {"api_key": ("X_API_KEY",)}
    given = Settings(providers={"x": {"api_key": "set"}})  # type: ignore[dict-item]
    there = {"X_API_KEY": "there"}
    made = provider_config(Settings(), there, "x", variables, kept)
    assert (made.api_key, made.oauth) == (key, kept if kept is SIGNED else None)
    assert provider_config(given, there, "x", variables, kept).api_key == "set"
    assert provider_config(given, there, "x", variables, kept).oauth is None
