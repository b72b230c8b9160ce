"""Keys that a login left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway import SettingsError
from gateway.routing.keys import NAME, KeptKeys
from gateway.routing.reaching import provider_config
from gateway.settings import Settings


def test_keys_are_kept_beside_each_other_and_replaced(tmp_path: Path) -> None:
    keys = KeptKeys(tmp_path / "deep" / "data")
    assert keys.read() == {}
    assert keys.keep("copilot", "one") == tmp_path / "deep" / "data" / NAME
    keys.keep("other", "two")
    keys.keep("copilot", "three")
    assert keys.read() == {"copilot": "three", "other": "two"}


def test_only_this_user_can_read_them(tmp_path: Path) -> None:
    file = KeptKeys(tmp_path).keep("copilot", "one")
    file.chmod(0o644)
    (tmp_path / "keys.new").write_text("left over")
    assert KeptKeys(tmp_path).keep("copilot", "two").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("[]")
    with pytest.raises(SettingsError, match=r"keys\.json cannot be read"):
        KeptKeys(tmp_path).read()


def test_what_was_kept_counts_before_the_environment_and_after_the_settings() -> None:
    variables = {"api_key": ("X_API_KEY",)}
    given = Settings(providers={"x": {"api_key": "set"}})  # type: ignore[dict-item]
    for settings, kept, key in (
        (given, {"x": "kept"}, "set"),
        (Settings(), {"x": "kept"}, "kept"),
        (Settings(), {"y": "kept"}, "there"),
    ):
        assert provider_config(settings, {"X_API_KEY": "there"}, "x", variables, kept).api_key == key
